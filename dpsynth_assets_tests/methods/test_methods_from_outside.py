"""A package with an entry point adds a method: settings, plan, assets, paper link, one call."""

import json
import os
import shutil
import tomllib
from pathlib import Path

import pytest

from dpsynth_assets_tests.children import python
from dpsynth_assets_tests.prepared import keep_demo_plans

PACKAGE = Path(__file__).with_name("outside")
ROOT = Path(__file__).parents[2]

DATASET = """
type: dpsynth_assets.components.PrivateDataset
attributes:
  name: notes
  source: {{path: {folder}/notes.csv}}
  columns: {{text: text, labels: [label]}}
  neighboring_relation: add-remove
  public_facts: {{labels: {{label: [good, bad]}}}}
  budget: {{epsilon: 4.0, delta: 1.0e-6}}
  methods:
    - method: public_copy
      settings: {{rows: 7}}
"""


PROGRAM = """
import json
import polars as pl
from dpsynth_assets import PublicBase, run_method
from dpsynth_assets.advice.advice import advise
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.definitions import defs
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.registry import REGISTRY, check_settings

graph = defs().resolve_asset_graph()
nodes = {key.path[-1]: graph.get(key) for key in graph.get_all_asset_keys()
         if "public_copy" in key.path}
spec = PrivateDatasetSpec.model_validate({
    "name": "notes", "source": {"path": "notes.csv"}, "columns": {"labels": ["label"]},
    "public_facts": {"labels": {"label": ["good", "bad"]}},
    "budget": {"epsilon": 4.0, "delta": 1e-6}, "methods": [{"method": "public_copy"}]})
texts = pl.DataFrame({"text": ["a", "b"] * 40, "label": ["good", "bad"] * 40})
private = pl.DataFrame({"text": ["x y"] * 90, "label": ["good"] * 60 + ["bad"] * 30})
made = run_method("public_copy", private, PublicBase(texts), epsilon=50.0, delta=1e-6,
                  labels=("good", "bad"), rows=30, cohort="in_memory")
print(json.dumps({
    "last": list(REGISTRY)[-1],
    "problems": str(check_settings("public_copy", {"rows": 0})),
    "mechanisms": {name: node.tags.get("dpsynth/mechanism") for name, node in nodes.items()},
    "told": nodes["candidate_corpus"].description,
    "code": nodes["candidate_corpus"].metadata["dagster/code_references"]
            .code_references[0].file_path,
    "default": plan_dataset(spec).methods[0].method.config.rows,
    "offers": [each.settings for each in advise(spec, None, rows=30).offers
               if each.method == "public_copy"],
    "good": made.corpus["label"].eq("good").sum(),
    "label": made.label["method"]["name"],
    "entries": [entry.kind for entry in made.entries],
}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The package as an installation lays it out, and a dataset file that names its method."""
    folder = tmp_path_factory.mktemp("outside")
    facts = folder / "site" / "public_copy-1.0.dist-info"
    facts.mkdir(parents=True)
    shutil.copy(PACKAGE / "public_copy.py", folder / "site")
    declared = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]["entry-points"]
    points = [f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in own.items())
              for group, own in declared.items()]  # fmt: skip
    (facts / "entry_points.txt").write_text("".join(points))
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: public-copy\nVersion: 1.0\n")
    (folder / "home" / "dagster").mkdir(parents=True)
    keep_demo_plans(tmp_path_factory, folder / "home")
    (folder / "notes").mkdir()
    (folder / "notes" / "defs.yaml").write_text(DATASET.format(folder=folder))
    (folder / "notes.csv").write_text("text,label\n" + "fine text,good\nsad text,bad\n" * 30)
    return folder


def ended(folder, program, site="site", code=0):
    """What a program prints in a process that finds the packages installed in a folder."""
    return python(
        *("-c", program),
        code=code,
        PYTHONPATH=f"{folder / site}{os.pathsep}{ROOT}",
        DPSYNTH_HOME=str(folder / "home"),
        DAGSTER_HOME=str(folder / "home" / "dagster"),
        DPSYNTH_DATASETS=str(folder),
    )


@pytest.fixture(scope="module")
def told(folder):
    """What a process with the package says of its method."""
    return json.loads(ended(folder, PROGRAM).splitlines()[-1])


def test_it_is_registered_and_its_settings_are_checked(told):
    assert told["last"] == "public_copy"
    assert "rows" in told["problems"]


def test_it_has_assets_code_and_a_paper_link(told):
    assert told["mechanisms"]["label_counts"] == "public_copy.label_counts"
    assert {"candidate_corpus", "corpus"} <= told["mechanisms"].keys()
    assert "https://arxiv.org/abs/2601.00001" in told["told"]
    assert told["code"].endswith("site/public_copy.py")


def test_it_runs_in_one_call_and_pays(told):
    assert told["good"] in (19, 20)
    assert told["label"] == "public_copy"
    assert "reserve" in told["entries"]


def test_its_defaults_and_candidates_are_its_own(told):
    assert (told["default"], told["offers"]) == (20, [{"rows": 30}])


def test_a_package_that_offers_no_method_is_named(folder):
    broken = folder / "broken" / "broken-1.0.dist-info"
    broken.mkdir(parents=True)
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text("[dpsynth.methods]\nbroken = json:dumps\n")
    program = """
try:
    import dpsynth_assets.methods.registry
except Exception as error:
    print(error)
"""
    told = ended(folder, program, site="broken")
    assert "entry point broken of group dpsynth.methods in broken" in told
