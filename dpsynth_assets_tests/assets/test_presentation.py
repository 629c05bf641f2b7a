"""What the web UI shows of every asset: its papers, its code, its spend."""

import re
from pathlib import Path

import pytest

from dpsynth_assets.methods.registry import REGISTRY
from dpsynth_assets.orchestration.metadata import (
    bound_down,
    bound_up,
    code_of,
    code_references,
    in_words,
    with_paper_links,
)
from dpsynth_assets.paths import project_root
from dpsynth_assets.privacy.ledger import CohortSpend

UNLINKED = re.compile(r"(?<!\[)\b[A-Z][\w-]+ et al\.,? \d{4}")
CATALOGUE = "plugin_component_types_json"


@pytest.fixture
def nodes(graph):
    return {key.to_user_string(): graph.get(key) for key in graph.get_all_asset_keys()}


def test_every_asset_is_described_and_every_paper_it_names_is_linked(nodes):
    for name, node in nodes.items():
        assert node.description, name
        assert not UNLINKED.search(node.description), (name, node.description)


@pytest.mark.parametrize("method", REGISTRY.values(), ids=list(REGISTRY))
def test_the_paper_of_every_method_has_an_address_and_its_code_is_found(method):
    assert f"https://arxiv.org/abs/{method.arxiv}" in with_paper_links(method.paper)
    assert code_references(code_of(method))


CODE = {
    "tickets/mean_clustered/candidate_corpus": "class MeanClustered",
    "feedback/aug_pe/corpus": "class AugPe",
    "savings/ctcl/finetuned_generator": "class Ctcl",
    "tickets/shared/cluster_histogram": "class ClusterHistogramRelease",
    "public/demo/public_clusters": "def fit_centers",
}


def test_every_asset_leads_to_the_code_that_computes_it(nodes):
    """Not to its Dagster asset, nor to the declaration: to the algorithm, at the line it begins."""
    for name, node in nodes.items():
        references = node.metadata["dagster/code_references"].value.code_references
        code = [one for one in references if Path(one.file_path).suffix == ".py"]
        assert code, name
        for reference in code:
            part = Path(reference.file_path).relative_to(project_root() / "dpsynth_assets").parts[0]
            assert part not in {"assets", "components", "defs"}, name
            line = Path(reference.file_path).read_text().splitlines()[reference.line_number - 1]
            assert line.startswith(CODE.get(name, ("class ", "def "))), name


def test_code_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="fit_centres"):
        code_references("dpsynth_assets.clustering.fit_centres")


def test_opening_the_location_builds_no_catalogue_of_all_component_types(loaded):
    assert CATALOGUE not in (loaded.metadata or {})


def said(guarantee, of_the_release, **changes):
    facts = {"delta": 1e-6, "budget_epsilon": 4.0, "guaranteed_epsilon": 3.98001}
    return in_words(
        guarantee, of_the_release, "one record", CohortSpend(cohort="letters", **facts, **changes)
    )


@pytest.mark.parametrize(
    ("spent", "left", "words"),
    [(1.2301, 2.7699, "1.24 of 4 spent, 2.76 left"), (1.1, 2.9, "1.10 of 4 spent, 2.90 left")],
)
def test_what_is_spent_is_rounded_up_and_what_is_left_down(spent, left, words):
    found = said("dp", 1.2301, epsilon=spent, remaining_epsilon=left)
    assert found["dpsynth/in_words"].startswith("(1.24, 1e-06)-DP for one record")
    assert found["dpsynth/budget"] == f"ε = {words}; guaranteed: ε = 3.99"


def test_numbers_that_the_ui_draws_bound_what_they_stand_for():
    assert (bound_up(14.985616430450156), bound_down(0.014383569549844209)) == (14.9857, 0.0143835)
    assert (bound_up(4.0), bound_down(0.0)) == (4.0, 0.0)


def test_no_epsilon_is_claimed_in_words_where_there_is_none():
    assert said("ex-post", None)["dpsynth/in_words"] == "not (ε, δ)-DP; its guarantee is ex-post"
