"""The code location: quick to open, whole, and extended by YAML alone."""

from pathlib import Path

import dagster as dg
import yaml

from dpsynth_assets.datasets.template import dataset_template
from dpsynth_assets.definitions import defs
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.components.declared import PrivateDataset
from dpsynth_assets.orchestration.resources.model_pool import PROCESSOR_POOL
from dpsynth_assets_tests.assets.declared_cases import letters, loaded as loaded_of
from dpsynth_assets_tests.children import python
from dpsynth_assets_tests.prepared import keep_demo_plans

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "faiss", "scipy", "matplotlib", "opendp", "dp_accounting")
"""Other heavy libraries import some of these."""

NAME_A_MODEL = ("text_embedder", "conditional_generator")
"""Public assets that say which model is used; they run none and need no place."""


def test_a_fixed_plan_dataset_opens_without_the_accounting_library_once_it_was_planned(
    tmp_path, tmp_path_factory, monkeypatch
):
    keep_demo_plans(tmp_path_factory, tmp_path / "home")
    demo = (ROOT / "dpsynth_assets" / "defs" / "tickets" / "defs.yaml").read_text()
    fixed = demo.replace("name: tickets", "name: fixed")
    fixed = fixed.replace("accountant: zcdp", "accountant: tight")
    (tmp_path / "fixed.yaml").write_text(fixed)
    code = (
        "import sys, dpsynth_assets.definitions as d;"
        "keys = {key.path[0] for key in d.defs().resolve_asset_graph().get_all_asset_keys()};"
        f"print('fixed' in keys, sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    monkeypatch.setenv("DPSYNTH_DATASETS", str(tmp_path))
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    defs()
    assert python("-c", code).strip() == "True []"


def test_stages_that_run_models_wait_in_the_pool_of_processors(graph):
    for key in graph.get_all_asset_keys():
        if "pytorch" in graph.get(key).kinds and key.path[-1] not in NAME_A_MODEL:
            pools = {op.pool for op in graph.get(key).assets_def.node_def.iterate_op_defs()}
            assert pools == {PROCESSOR_POOL}, key


def test_definitions_are_loadable(loaded):
    dg.Definitions.validate_loadable(loaded)


def test_a_method_without_its_inputs_is_refused_and_what_else_can_be_made_still_is(own_home):
    """One that cannot be made at all, beside another; each kind: `test_contract.py`."""
    circle = {"method": "resampled", "settings": {"corpus": "resampled"}}
    ctcl = {"method": "ctcl", "settings": {"steps": 4}}
    without, beside = letters(methods=[ctcl]), letters(methods=[circle, ctcl], topic_histogram={})
    for spec, refused, made in (
        (without, "ctcl/finetuned_generator", "audit/privacy_statement"),
        (without, "ctcl/candidate_corpus", "audit/privacy_statement"),
        (beside, "resampled/candidate_corpus", "ctcl/corpus"),
    ):
        opened = loaded_of(spec)
        dg.Definitions.validate_loadable(opened)
        graph = opened.resolve_asset_graph()
        told = [graph.get(dg.AssetKey(["letters", *key.split("/")])) for key in (refused, made)]
        assert ["Refused: " in node.description for node in told] == [True, False]


def test_the_scaffolded_dataset_is_one_whose_plan_can_run():
    spec = PrivateDataset.from_attributes_dict(
        attributes=yaml.safe_load(dataset_template("reviews"))["attributes"]
    ).spec
    plan = plan_dataset(spec)
    assert [planned.plan.refusal for planned in plan.methods] == [None]
    assert plan.total_epsilon <= spec.budget.epsilon
