"""The `dpsynth` command on a small house, as a person types it."""

import json
import shutil
import subprocess
import sys

import pytest

from dpsynth_assets.cli.main import app
from dpsynth_assets_tests.end_to_end.conftest import private_spec, public_spec

pytestmark = pytest.mark.slow


def declare(folder):
    """Writes the tiny public base and dataset as files of a folder."""
    datasets = folder / "datasets"
    datasets.mkdir()
    for kind, spec in (
        ("PublicData", public_spec(folder)),
        ("PrivateDataset", private_spec(folder)),
    ):
        content = {
            "type": f"dpsynth_assets.components.{kind}",
            "attributes": spec.model_dump(mode="json", exclude_unset=True),
        }
        (datasets / f"{kind}.yaml").write_text(json.dumps(content))  # JSON is YAML.
    return datasets


@pytest.fixture(scope="module")
def installation(tmp_path_factory, tiny_base):
    folder = tmp_path_factory.mktemp("cli") / "copy"
    shutil.copytree(tiny_base, folder)
    return folder, declare(folder)


def dpsynth(installation, *arguments):
    import os

    folder, datasets = installation
    environment = {
        **os.environ,
        "DPSYNTH_HOME": str(folder / "home"),
        "DPSYNTH_DATASETS": str(datasets),
        "HF_HUB_OFFLINE": "1",
    }
    environment.pop("DAGSTER_HOME", None)
    code = "from dpsynth_assets.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def test_plan_prices_every_release_and_reads_nothing_private(installation):
    folder, _ = installation
    source = folder / "private.jsonl"
    hidden = source.rename(folder / "hidden")
    try:
        result = dpsynth(installation, "plan", "letters", "--json")
    finally:
        hidden.rename(source)
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    assert 0 < plan["total_epsilon"] <= plan["budget_epsilon"]
    assert [row["refusal"] for row in plan["releases"]] == [None] * 5


def test_run_then_ledger_show_and_verify(installation):
    selection = 'key:"letters/shared/*"'
    ran = dpsynth(installation, "run", "letters", "--select", selection, "--yes", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["epsilon"] > 0
    shown = dpsynth(installation, "ledger", "show", "--json")
    assert "letters/shared/cluster_histogram" in shown.stdout
    assert dpsynth(installation, "ledger", "verify").returncode == 0
    exported = dpsynth(installation, "ledger", "export", "--format", "csv")
    assert "cluster_histogram" in exported.stdout


def test_unknown_cohort_is_one_line_with_a_suggestion(installation):
    result = dpsynth(installation, "plan", "leters")
    assert result.returncode == 2
    assert "Did you mean 'letters'?" in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_datasets_check_passes_on_the_declared_files(installation):
    result = dpsynth(installation, "datasets", "check")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "command",
    ["account", "audit", "calibrate", "datasets", "evaluate", "ledger", "plan", "run"],
)
def test_every_verb_explains_itself(command):
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output
