"""The asset graph as the web UI draws it: boxes of one privacy level, and edges that are needed."""

import dagster as dg
import pytest

from dpsynth_assets.datasets import PrivateDatasetSpec, dataset_folders, standing
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.attacks import attack_definitions
from dpsynth_assets.orchestration.assets.keys import PUBLIC_BASES
from dpsynth_assets.orchestration.assets.privacy_budgets import BUDGETS
from dpsynth_assets.tags import INTERNAL, MECHANISM, PRIVACY, PRIVACY_LEVELS, PUBLIC
from dpsynth_assets_tests.assets.declared_cases import definitions_of, letters


def parents(graph, *path):
    return {key.to_user_string() for key in graph.get(dg.AssetKey(path)).parent_keys}


# Boxes


def test_a_box_says_its_privacy_level_and_within_it_the_method(graph):
    for key in graph.get_all_asset_keys() - {BUDGETS}:
        node = graph.get(key)
        first, second, *inner = node.group_name.split("/")
        level = PUBLIC if first == PUBLIC_BASES else second
        assert level == node.tags[PRIVACY], key
        assert first == key.path[0]
        assert inner in ([], [key.path[1]]), key
        assert not PRIVACY_LEVELS & node.kinds, "a level is no kind"


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_boxes_stand_in_the_order_of_the_data_however_far_they_are_opened(graph, depth):
    """Else an edge would lead back, and the drawing would have no left and right."""

    def box(key):  # A node of a box that is open stands by itself.
        parts = graph.get(key).group_name.split("/")
        return "/".join(parts[:depth]) if len(parts) >= depth else key.to_user_string()

    above = {box(key): set() for key in graph.get_all_asset_keys()}
    for key in graph.get_all_asset_keys():
        above[box(key)] |= {box(parent) for parent in graph.get(key).parent_keys}
    placed = set()
    while waiting := {name for name in above if name not in placed}:
        ready = {name for name in waiting if above[name] - {name} <= placed}
        assert ready, f"boxes that lead to each other: {sorted(waiting)}"
        placed |= ready


# Edges


def mechanisms(graph, cohort):
    return {
        key
        for key in graph.get_all_asset_keys()
        if key.path[0] == cohort and MECHANISM in graph.get(key).tags
    }


def test_statement_trail_and_report_depend_on_what_they_read(graph):
    for cohort in (file.spec for file in standing(dataset_folders()).usable):
        if isinstance(cohort, PrivateDatasetSpec):
            name, plan = cohort.name, plan_dataset(cohort)
            statement = dg.AssetKey([name, "audit", "privacy_statement"])
            assert mechanisms(graph, name) <= graph.get_ancestor_asset_keys(statement)
            corpora = {f"{name}/{planned.folder}/corpus" for planned in plan.corpora}
            attacks = attack_definitions(cohort, plan).assets
            audits = {asset.key.to_user_string() for asset in attacks}
            audits.add(f"{name}/audit/mechanism_audits")
            assert corpora | audits <= parents(graph, *statement.path)
            trail = parents(graph, name, "audit", "audit_trail")
            assert trail == corpora | {statement.to_user_string()}
            private = {f"{name}/shared/private_{each}" for each in ("records", "embeddings")}
            report = parents(graph, name, "evaluation", "evaluation_report")
            assert corpora | private <= report
            # What a corpus is made from comes before it: an edge of its own would cross others.
            above = graph.get(statement).parent_keys
            made = [key for key in above if key.path[-1] == "corpus"]
            behind = {key for corpus in made for key in graph.get_ancestor_asset_keys(corpus)}
            assert not above & behind & mechanisms(graph, name)


def test_releases_that_no_corpus_is_made_from_stand_before_the_statement(own_home):
    methods = [
        {"method": "mean_uniform", "budget_share": 0.4},
        {"method": "downstream_fine_tuning", "budget_share": 0.4},
    ]
    facts = {"public_facts": {"records": 1000}, "cluster_histogram": None, "topic_histogram": {}}
    graph = definitions_of(letters(methods=methods, **facts)).resolve_asset_graph()
    above = parents(graph, "letters", "audit", "privacy_statement")
    charging = mechanisms(graph, "letters")
    statement = dg.AssetKey(["letters", "audit", "privacy_statement"])
    assert charging <= graph.get_ancestor_asset_keys(statement)
    alone = {key.to_user_string() for key in charging if key.path[1] != "mean_uniform"}
    assert len(alone) == 2
    assert alone <= above


def test_no_level_but_internal_holds_what_the_steward_alone_sees(graph):
    shown = {
        key.path[-1]
        for key in graph.get_all_asset_keys()
        if graph.get(key).group_name.split("/")[1:2] == [INTERNAL]
    }
    assert shown >= {"evaluation_report", "audit_trail", "copied_spans", "non_private_corpus"}
