"""A dataset file that cannot be used harms itself alone, and says why wherever it is asked for."""

from pathlib import Path

import dagster as dg
import pytest

import dpsynth_assets
from dpsynth_assets.datasets import Problem
from dpsynth_assets.definitions import defs
from dpsynth_assets.orchestration.components.declared import definitions_of_files
from dpsynth_assets.orchestration.components.refused import PREFIX, refused_definitions
from dpsynth_assets.orchestration.lineage import verify_privacy_lineage
from dpsynth_assets_tests.assets.declared_cases import failure
from dpsynth_assets_tests.children import dpsynth
from dpsynth_assets_tests.prepared import keep_demo_plans

DEMO = (Path(dpsynth_assets.__file__).parent / "defs" / "tickets" / "defs.yaml").read_text()


def renamed(name, **changes):
    text = DEMO.replace("name: tickets", f"name: {name}", 1)
    for old, new in changes.values():
        assert old in text
        text = text.replace(old, new, 1)
    return text


BROKEN = {
    "negative": (
        "type: dpsynth_assets.components.PrivateDataset\n"
        "attributes: {name: negative, budget: {epsilon: -1}}\n",
        "budget.epsilon: expected greater than 0, got -1",
    ),
    "unparsed": ("type: [1, 2\n", "expected a YAML file"),
    "unmethodical": (
        renamed("unmethodical", method=("method: mean_uniform", "method: mean_uniformm")),
        "Did you mean 'mean_uniform'?",
    ),
    "baseless": (
        renamed("baseless", base=("public_data: demo", "public_data: nobodys")),
        "expected the name of a declared public base",
    ),
    "maimed_base": (
        "type: dpsynth_assets.components.PublicData\n"
        "attributes: {name: maimed_base, clusters: {count: 0}}\n",
        "clusters.count: expected",
    ),
    "on_maimed": (
        renamed("on_maimed", base=("public_data: demo", "public_data: maimed_base")),
        "declares it but has mistakes: fix that file first",
    ),
}


@pytest.fixture
def folder(tmp_path, tmp_path_factory, monkeypatch):
    """A folder of DPSYNTH_DATASETS with a sound file, two of one name, and every broken one."""
    place = tmp_path / "datasets"
    place.mkdir()
    (place / "sound.yaml").write_text(renamed("sound"))
    (place / "one.yaml").write_text(renamed("shared_name"))
    (place / "two.yaml").write_text(renamed("shared_name"))
    for name, (text, _) in BROKEN.items():
        (place / f"{name}.yaml").write_text(text)
    monkeypatch.setenv("DPSYNTH_DATASETS", f"{place}:{tmp_path / 'absent'}")
    keep_demo_plans(tmp_path_factory, tmp_path / "home")
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))
    monkeypatch.setenv("COLUMNS", "500")
    return place


def test_every_other_file_loads_and_each_broken_one_is_an_asset_that_says_why(folder):
    loaded = defs()
    graph = loaded.resolve_asset_graph()
    keys = graph.get_all_asset_keys()
    assert {"sound", "tickets", "enquiries"} <= {key.path[0] for key in keys}
    assert not {*BROKEN, "shared_name"} & {key.path[0] for key in keys}
    refused = {key.path[1].rpartition("_")[0]: key for key in keys if key.path[0] == PREFIX}
    assert set(refused) == {*BROKEN, "one", "two", "absent"}
    for name, (_, line) in BROKEN.items():
        node = graph.get(refused[name])
        assert line in node.metadata["problems"], name
        assert line in " ".join(node.description.split()), name
        assert not node.parent_keys
    assert "which" in graph.get(refused["one"]).metadata["problems"]
    verify_privacy_lineage(loaded)


def test_materialising_a_refused_file_fails_with_its_line():
    problem = Problem(file="a.yaml", field="x", expected="b", got="<b>c</b>", remedy="Fix it.")
    refused = refused_definitions(Path("a.yaml"), [problem])
    result = dg.materialize(refused.assets, raise_on_error=False)
    assert not result.success
    assert failure(result) == str(problem)
    (spec,) = refused.assets[0].specs
    shown = [line for line in spec.description.splitlines() if line.startswith("    ")]
    assert " ".join(line.strip() for line in shown) == str(problem), "as it is, never as HTML"


@pytest.mark.parametrize(
    ("command", "name"),
    [("plan", "negative"), ("plan", "baseless"), ("run", "unmethodical"), ("run", "shared_name")],
)
def test_plan_and_run_say_the_same_line_and_charge_nothing(folder, command, name):
    result = dpsynth(command, name, code=2)
    assert "Traceback" not in result.output
    _, line = BROKEN.get(name, ("", "expected a unique name"))
    assert line in result.output
    assert not (folder.parent / "home" / "ledger").exists()


def test_cohorts_are_listed_beside_what_cannot_be_used(folder):
    result = dpsynth("datasets", "cohorts", code=2)
    for name, (_, line) in BROKEN.items():
        assert name == "unmethodical" or line in result.output


def test_what_else_a_refused_file_declares_stays_in_the_graph(tmp_path):
    base = "type: dpsynth_assets.components.PublicData\nattributes: {name: own_base}\n"
    (tmp_path / "pair.yaml").write_text(f"{base}---\n{BROKEN['negative'][0]}")
    loaded = definitions_of_files([tmp_path])
    keys = {key for part in loaded.assets for key in part.keys}
    assert any(key.path[0] == PREFIX for key in keys)
    own = {key.path[-1] for key in keys if key.path[:2] == ["public", "own_base"]}
    assert {"public_corpus", "topic_model", "conditional_generator"} <= own
