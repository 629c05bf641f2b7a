"""A whole cohort through a Ray cluster: corpora are published, nothing private stays with Ray."""

import json
import os
import subprocess
import sys

import polars as pl
import pytest

from dpsynth_assets.report.card_check import LABEL_FILE
from dpsynth_assets_tests.end_to_end.conftest import CANARY, LABELS, public_spec, write_sources

pytestmark = pytest.mark.slow

GENERATOR = {
    "vocabulary": 400,
    "width": 32,
    "decoder_layers": 1,
    "heads": 2,
    "feed_forward": 64,
    "token_budget": 30_000,
    "batch_tokens": 512,
}
CORPORA = ("mean_uniform", "dp_fine_tuning")
COHORT = {
    "name": "letters",
    "columns": {"labels": ["label"], "id": "id"},
    "public_facts": {"labels": {"label": list(LABELS)}, "records": 402},
    "budget": {"epsilon": 60.0, "delta": 1e-5},
    "public_data": "tiny",
    "methods": [
        {
            "method": "mean_uniform",
            "budget_share": 0.5,
            "settings": {
                "expected_batch_size": 24,
                "max_batches": 3,
                "max_document_tokens": 40,
                "max_example_tokens": 40,
                "min_tokens_for_new_document": 8,
                "temperature": 1.2,
            },
        },
        {
            "method": "dp_fine_tuning",
            "budget_share": 0.5,
            "settings": {
                "steps": 4,
                "expected_batch_size": 32,
                "max_document_tokens": 40,
                "rows": 40,
            },
        },
    ],
}


def document(kind, attributes):
    return json.dumps({"type": f"dpsynth_assets.components.{kind}", "attributes": attributes})


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("letters")
    write_sources(folder)
    datasets = folder / "datasets"
    datasets.mkdir()
    base = public_spec(folder).model_dump(mode="json", exclude_unset=True)
    base["conditional_generator"] = {"settings": GENERATOR}
    (datasets / "tiny.yaml").write_text(document("PublicData", base))
    cohort = COHORT | {"source": {"path": str(folder / "private.jsonl")}}
    (datasets / "letters.yaml").write_text(document("PrivateDataset", cohort))
    (folder / "dagster").mkdir()
    (folder / "dagster" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    return folder


def materialise(folder, cluster, selection, **variables):
    environment = {
        **os.environ,
        **cluster.variables,
        "DPSYNTH_HOME": str(folder / "home"),
        "DPSYNTH_DATASETS": str(folder / "datasets"),
        "DPSYNTH_EXECUTOR": "ray",
        "DAGSTER_HOME": str(folder / "dagster"),
        "DAGSTER_REDACT_USER_CODE_ERRORS": "1",
        **variables,
    }
    code = "from dagster._cli import main; main()"
    command = ["asset", "materialize", "-m", "dpsynth_assets.definitions", "--select", selection]
    return subprocess.run(
        [sys.executable, "-c", code, *command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_run_that_no_node_can_hold_is_refused_at_once(installation, cluster):
    asked = 'key:"public/tiny/public_language_model"'
    done = materialise(installation, cluster, asked, DPSYNTH_GPU="nvidia.com/gpu")
    assert done.returncode != 0
    assert "Expected a node of the Ray cluster with 1 GPU(s)" in done.stdout + done.stderr


def test_a_cohort_is_published_and_leaves_nothing_private_with_ray(installation, cluster):
    wanted = " or ".join(f'+key:"letters/{method}/corpus"' for method in CORPORA)
    done = materialise(installation, cluster, wanted)
    assert done.returncode == 0, done.stdout + done.stderr
    released = installation / "home" / "released" / "letters"
    labels = {
        path.parent.name: json.loads(path.read_text()) for path in released.glob(f"*/{LABEL_FILE}")
    }
    assert set(labels) == {"mean_uniform", "dp_fine_tuning"}
    for name, label in labels.items():
        assert 0 < label["guarantee"]["epsilon"] <= 60
        assert pl.read_parquet(released / name / "data").height > 0
    for path in cluster.folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert CANARY.encode() not in content, path
            assert b"Brackenbury" not in content, path
