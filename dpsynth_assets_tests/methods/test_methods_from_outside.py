"""A package with an entry point adds a method: settings, plan, assets, paper link, one call."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Folder of the installed package, and of a dataset file that names its method."""
    folder = tmp_path_factory.mktemp("outside")
    source, target = folder / "source", folder / "site"
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--target", str(target), str(source)]
    subprocess.run(command, check=True, timeout=300)
    (folder / "home").mkdir()
    keep_demo_plans(tmp_path_factory, folder / "home")
    (folder / "notes").mkdir()
    (folder / "notes" / "defs.yaml").write_text(DATASET.format(folder=folder))
    (folder / "notes.csv").write_text("text,label\n" + "fine text,good\nsad text,bad\n" * 30)
    return folder


def ended(installed, program, site="site"):
    """Runs a program in a process that finds the packages installed in a folder."""
    environment = os.environ | {
        "PYTHONPATH": f"{installed / site}{os.pathsep}{ROOT}",
        "DPSYNTH_HOME": str(installed / "home"),
        "DAGSTER_HOME": str(installed / "home" / "dagster"),
        "DPSYNTH_DATASETS": str(installed),
    }
    (installed / "home" / "dagster").mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


def run(installed, program):
    made = ended(installed, program)
    assert made.returncode == 0, made.stderr[-3000:]
    return made.stdout


def test_it_is_registered_and_its_settings_are_checked(installed):
    out = run(
        installed,
        "from dpsynth_assets.methods.registry import REGISTRY, check_settings\n"
        "print(list(REGISTRY)[-1], check_settings('public_copy', {'rows': 0}))",
    )
    assert out.startswith("public_copy")
    assert "rows" in out


def test_it_has_assets_code_and_a_paper_link(installed):
    out = run(
        installed,
        "from dpsynth_assets.definitions import defs\n"
        "graph = defs.resolve_asset_graph() if hasattr(defs, 'resolve_asset_graph') else "
        "defs().resolve_asset_graph()\n"
        "for key in sorted(graph.get_all_asset_keys()):\n"
        "    node = graph.get(key)\n"
        "    if 'public_copy' in key.path:\n"
        "        print('/'.join(key.path), node.tags.get('dpsynth/mechanism'), node.description)\n"
        "        print(node.metadata['dagster/code_references'].code_references[0].file_path)\n",
    )
    assert "notes/public_copy/label_counts public_copy.label_counts" in out
    assert "notes/public_copy/candidate_corpus" in out
    assert "notes/public_copy/corpus" in out
    assert "https://arxiv.org/abs/2601.00001" in out
    assert "site/public_copy.py" in out


def test_it_runs_in_one_call_and_pays(installed):
    out = run(
        installed,
        "import polars as pl\n"
        "from dpsynth_assets import PublicBase, run_method\n"
        "texts = pl.DataFrame({'text': ['a', 'b'] * 40, 'label': ['good', 'bad'] * 40})\n"
        "private = pl.DataFrame({'text': ['x y'] * 90, 'label': ['good'] * 60 + ['bad'] * 30})\n"
        "made = run_method('public_copy', private, PublicBase(texts), epsilon=50.0, delta=1e-6,\n"
        "                  labels=('good', 'bad'), rows=30, cohort='in_memory')\n"
        "print(made.corpus['label'].value_counts(sort=True).rows())\n"
        "print(made.label['method']['name'], made.label['guarantee']['epsilon'])\n"
        "print([entry.kind for entry in made.entries])\n",
    )
    assert "('good', 20)" in out or "('good', 19)" in out
    assert "public_copy" in out
    assert "reserve" in out


def test_its_defaults_and_candidates_are_its_own(installed):
    out = run(
        installed,
        "from dpsynth_assets.advice.advice import advise\n"
        "from dpsynth_assets.datasets import PrivateDatasetSpec\n"
        "from dpsynth_assets.methods.planning import plan_dataset\n"
        "fields = {'name': 'notes', 'source': {'path': 'notes.csv'},\n"
        "          'columns': {'labels': ['label']},\n"
        "          'public_facts': {'labels': {'label': ['good', 'bad']}},\n"
        "          'budget': {'epsilon': 4.0, 'delta': 1e-6},\n"
        "          'methods': [{'method': 'public_copy'}]}\n"
        "spec = PrivateDatasetSpec.model_validate(fields)\n"
        "print(plan_dataset(spec).methods[0].config.rows)\n"
        "print([each.settings for each in advise(spec, None, rows=30).offers "
        "if each.method == 'public_copy'])\n",
    )
    assert out.splitlines() == ["20", "[{'rows': 30}]"]


def test_a_package_that_offers_no_method_is_named(installed):
    broken = installed / "broken" / "broken-1.0.dist-info"
    broken.mkdir(parents=True)
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text("[dpsynth.methods]\nbroken = json:dumps\n")
    made = ended(installed, "import dpsynth_assets.methods.registry", site="broken")
    assert made.returncode != 0
    assert "entry point broken of group dpsynth.methods in broken" in made.stderr
