"""The code location: quick to open, whole, and extended by YAML alone."""

from pathlib import Path

import dagster as dg
import yaml

from dpsynth_assets.datasets.template import dataset_template
from dpsynth_assets.definitions import defs
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.privacy_budgets import BUDGETS
from dpsynth_assets.orchestration.components.declared import PrivateDataset, PublicData
from dpsynth_assets.orchestration.resources.model_pool import PROCESSOR_POOL
from dpsynth_assets.tags import MECHANISM, PRIVACY
from dpsynth_assets_tests.children import python
from dpsynth_assets_tests.prepared import keep_demo_plans

ROOT = Path(__file__).parents[2]
HEAVY = (
    "torch",
    "transformers",
    "opacus",
    "vllm",
    "sentence_transformers",
    "faiss",
    "hdbscan",
    "mauve",
    "sklearn",
    "scipy",
    "matplotlib",
    "opendp",
    "dp_accounting",
)

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


def test_every_asset_states_its_privacy_level_and_belongs_to_a_group(graph):
    for key in graph.get_all_asset_keys():
        assert PRIVACY in graph.get(key).tags, key
        assert len(key.path) == 3 or key == BUDGETS, key


def test_stages_that_run_models_wait_in_the_pool_of_processors(graph):
    for key in graph.get_all_asset_keys():
        if "pytorch" in graph.get(key).kinds and key.path[-1] not in NAME_A_MODEL:
            pools = {op.pool for op in graph.get(key).assets_def.node_def.iterate_op_defs()}
            assert pools == {PROCESSOR_POOL}, key


def test_every_mechanism_of_the_demo_is_marked(graph):
    marked = {
        k.to_user_string() for k in graph.get_all_asset_keys() if MECHANISM in graph.get(k).tags
    }
    assert marked == {
        "tickets/shared/cluster_histogram",
        "tickets/mean_uniform/candidate_corpus",
        "tickets/mean_clustered/candidate_corpus",
        "savings/shared/topic_histogram",
        "savings/ctcl/finetuned_generator",
        "savings/dp_fine_tuning/finetuned_generator",
        "enquiries/aug_pe_from_corpus/population",
        "enquiries/epsvec/fixed_shots",
        "enquiries/epsvec/dataset_vectors",
        "cases/secpe/secret_clusters",
        "feedback/aug_pe/population",
    }


def test_definitions_are_loadable(loaded):
    dg.Definitions.validate_loadable(loaded)


CTCL = {"method": "ctcl", "settings": {"steps": 4}}
MISTAKEN = {
    "no_topics": {"methods": [CTCL]},
    "a_circle": {
        "methods": [{"method": "resampled", "settings": {"corpus": "resampled"}}, CTCL],
        "topic_histogram": {},
    },
}
"""A method that cannot be made at all, and one beside another; each kind: `test_contract.py`."""


def test_a_method_without_its_inputs_is_refused_and_keeps_no_other_cohort_from_opening(
    tmp_path, monkeypatch
):
    file = yaml.safe_load(dataset_template("reviews"))
    (tmp_path / "reviews.yaml").write_text(yaml.safe_dump(file))
    for name, mistake in MISTAKEN.items():
        attributes = file["attributes"] | {"name": name, "schedule": None} | mistake
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(file | {"attributes": attributes}))
    monkeypatch.setenv("DPSYNTH_DATASETS", str(tmp_path))
    opened = defs()
    dg.Definitions.validate_loadable(opened)
    graph = opened.resolve_asset_graph()
    keys = {key.to_user_string() for key in graph.get_all_asset_keys()}
    assert {"reviews/audit/privacy_statement", "tickets/mean_uniform/corpus"} <= keys
    for place in (
        "no_topics/ctcl/finetuned_generator",
        "no_topics/ctcl/candidate_corpus",
        "a_circle/resampled/candidate_corpus",
    ):
        assert "Refused: " in graph.get(dg.AssetKey(place.split("/"))).description
    # What can be made of such a file still can.
    assert "Refused: " not in graph.get(dg.AssetKey(["a_circle", "ctcl", "corpus"])).description


def test_components_are_described_for_the_catalogue():
    for component in (PrivateDataset, PublicData):
        assert component.get_spec().description


def test_the_scaffolded_dataset_is_one_whose_plan_can_run():
    spec = PrivateDataset.from_attributes_dict(
        attributes=yaml.safe_load(dataset_template("reviews"))["attributes"]
    ).spec
    plan = plan_dataset(spec)
    assert [planned.plan.refusal for planned in plan.methods] == [None]
    assert plan.total_epsilon <= spec.budget.epsilon
