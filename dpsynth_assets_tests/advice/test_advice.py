"""Advice: from declarations and public corpora alone, at most a tenth worse than the best."""

import json
import math

import pytest

from dpsynth_assets.advice import minutes
from dpsynth_assets.advice.advice import advise
from dpsynth_assets.advice.evidence import Measured, expected, likeness, measured_lines
from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.methods.capabilities import Advice, DeclaredFacts
from dpsynth_assets.methods.registry import REGISTRY
from dpsynth_assets_tests.children import dpsynth
from dpsynth_assets_tests.declared import private

BASE = PublicDataSpec(name="words", domain="Letters", language_model={"kind": "smollm2"})
WORST = 0.1
"""Share of the best cell's score that advice may lose."""


pytestmark = pytest.mark.usefixtures("known_speed")


def declared(records=None, epsilon=4.0, labels=0, **further):
    values = {"kind": [f"kind {number}" for number in range(labels)]} if labels else {}
    own = {
        "columns": {"text": "text", "labels": list(values)},
        "public_facts": {"labels": values, "records": records},
        "budget": {"epsilon": epsilon, "delta": 1e-6},
        "public_data": "words",
        "methods": [{"method": "aug_pe"}],
    }
    return private(**own | further)


def cell(line, share, epsilon=3.0, records=4000, dataset="reviews", **told):
    place = {"dataset": dataset, "line": line, "epsilon": epsilon, "records": records}
    return Measured(**place, share=share, **told)


@pytest.mark.parametrize("method", REGISTRY.values(), ids=REGISTRY)
def test_every_method_names_settings_that_hold_or_says_why_it_has_none(method):
    facts = [DeclaredFacts(rows=300, labels=n, words=words) for n, words in ((1, None), (40, 9))]
    weighed = [each for own in facts for each in method.advice.candidates(own)]
    for candidate in weighed:
        method.config_type.model_validate(dict(candidate.settings))
    assert bool(weighed) != (method.advice.unadvised != Advice().unadvised)


def test_the_method_with_the_nearest_best_cells_comes_first():
    cells = [
        cell("aug_pe", 0.9, epsilon=10),
        cell("epsvec", 0.6, epsilon=10),
        cell("aug_pe", 0.3, epsilon=1),
        cell("epsvec", 0.5, epsilon=1),
    ]
    rich = advise(declared(4000, 10.0), BASE, cells=cells).offers
    poor = advise(declared(4000, 1.0), BASE, cells=cells).offers
    assert [each.line for each in rich][:2] == ["aug_pe", "epsvec"]
    assert [each.line for each in poor][:2] == ["epsvec", "aug_pe"]
    assert all(each.expectation is None for each in rich[2:])


def test_an_expectation_names_its_nearest_cell_and_the_distance():
    cells = [cell("aug_pe", 0.9, epsilon=10), cell("aug_pe", 0.5, epsilon=1, dataset="news")]
    found = expected("aug_pe", 2.0, 4000, cells)
    assert found is not None
    assert (found.nearest.dataset, found.factor) == ("news", pytest.approx(2.0))
    assert (found.low, found.high) == (0.5, 0.9)
    assert "your ε × number of records is 2 times as large" in found.distance_in_words()
    assert expected("epsvec", 2.0, 4000, cells) is None


def test_datasets_of_a_domain_worded_alike_count_more():
    cells = [
        cell("aug_pe", 0.9, domain="Yelp reviews of local businesses"),
        cell("aug_pe", 0.3, dataset="news", domain="Short news reports"),
    ]
    like = expected("aug_pe", 3.0, 4000, cells, "A review of the hotels on Yelp")
    assert like.share > 0.85
    assert like.nearest.dataset == "reviews"
    assert expected("aug_pe", 3.0, 4000, cells, "notes of nurses").share == pytest.approx(0.6)
    assert likeness("Yelp reviews", "reviews of hotels") == 0.5
    assert likeness("", "reviews") == 0


def test_a_corpus_that_is_scored_on_fewer_rows_too_is_one_corpus():
    cells = [
        cell("aug_pe", 0.6, dataset="news", domain="News"),
        cell("mean_uniform", 0.8, dataset="news_few_rows", domain="News"),
        cell("aug_pe", 0.6, dataset="reviews", domain="Reviews"),
    ]
    shares = {line: expected(line, 3.0, 4000, cells).share for line in ("aug_pe", "mean_uniform")}
    assert shares["mean_uniform"] > shares["aug_pe"]


def test_an_undeclared_number_of_records_counts_as_the_smallest_cell():
    cells = [cell("aug_pe", 0.9, records=4000), cell("aug_pe", 0.3, records=500)]
    assert expected("aug_pe", 3.0, None, cells) == expected("aug_pe", 3.0, 500, cells)


def test_what_does_not_fit_is_told_with_its_reason():
    found = advise(declared(500, 1.0, labels=5), BASE, rows=10_000, cells=[])
    why = dict(found.others)
    assert {"mean_clustered", "mean_uniform", "invisible_ink"} <= set(why)
    assert "do not fill" in why["mean_clustered"]
    undeclared = advise(declared(None), BASE, cells=[])
    assert "not declared" in dict(undeclared.others)["mean_uniform"]
    assert "No number of records" in " ".join(undeclared.notes)
    many = advise(declared(100_000, 8.0), BASE, rows=300, cells=[])
    assert "mean_uniform" in {each.line for each in many.offers}


def test_rows_beyond_what_a_budget_buys_rule_private_prediction_out():
    bought = advise(declared(20_000, 4.0), BASE, rows=100, cells=[])
    (offer,) = [each for each in bought.offers if each.line == "mean_uniform"]
    more = advise(declared(20_000, 4.0), BASE, rows=50 * offer.rows, cells=[])
    assert "mean_uniform" not in {each.line for each in more.offers}
    assert "rows" in dict(more.others)["mean_uniform"]


def test_minutes_follow_from_counts_and_a_trial_of_this_machine():
    def minutes_of(rows):
        offers = advise(declared(4000), BASE, rows=rows, cells=[], timed=True).offers
        return {each.line: each.minutes for each in offers}

    few, many = minutes_of(400), minutes_of(800)
    assert all(0 < few[line] < many[line] for line in ("aug_pe", "epsvec"))


def test_nobody_asked_for_minutes_and_none_are_tried(monkeypatch):
    monkeypatch.setattr(minutes, "machine_speed", lambda _: pytest.fail("was tried"))
    assert all(each.minutes is None for each in advise(declared(4000), BASE, cells=[]).offers)


def test_nothing_measured_on_free_text_is_expected_of_records_with_a_structure():
    schema = {"json_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
    cells = [cell("aug_pe", 0.9), cell("mean_uniform", 0.8)]
    found = advise(declared(30_000, 8.0, structured=schema), BASE, rows=100, cells=cells)
    follow = [offer.follows_schema for offer in found.offers]
    assert follow == sorted(follow, reverse=True)
    assert found.offers[0].line == "mean_svt"
    assert all(offer.expectation is None for offer in found.offers)
    assert "valid" in " ".join(found.notes)
    free = {**schema, "constrained_decoding": False}
    unbound = advise(declared(30_000, 8.0, structured=free), BASE, rows=100, cells=cells)
    assert not any(offer.follows_schema for offer in unbound.offers)
    plain = advise(declared(30_000, 8.0), BASE, rows=100, cells=cells)
    assert "declare `structured`" in dict(plain.others)["mean_svt"]


def test_declared_secrets_are_protected_by_one_method_and_priced_with_no_other():
    kind = {
        "name": "code", "detector": "regex", "pattern": "[A-Z]{3}-\\d{5}",
        "examples": ["ABC-12345"], "max_records": 3, "prior": 0.01, "posterior": 0.1,
    }  # fmt: skip
    secrets = {"adjacency": "removal", "kinds": [kind]}
    budget = {"epsilon": 4.0, "delta": 1e-6, "accountant": "tight"}
    spec = declared(20_000, secrets=secrets, budget=budget)
    offers = {offer.line: offer for offer in advise(spec, BASE, rows=100, cells=[]).offers}
    assert {"secpe", "aug_pe"} <= set(offers)
    assert offers["secpe"].epsilon is None
    assert 0 < offers["aug_pe"].epsilon <= 4
    assert "secpe" not in {each.line for each in advise(declared(20_000), BASE, cells=[]).offers}


def test_a_share_is_a_bound_where_every_cell_had_more_to_go_on():
    cells = [cell("aug_pe", 0.9, epsilon=10, records=4000)]
    assert expected("aug_pe", 1.0, 500, cells).share_in_words() == (
        "at most 90 % (no measurement has so few records at this ε)"
    )
    assert expected("aug_pe", 10.0, 4000, cells).share_in_words() == "90 %"


def test_the_command_reads_no_record_and_prints_what_it_expects(tmp_path, own_home):
    shown = dpsynth("advise", "--records", "5000", "--epsilon", "3", code=0)
    assert "Methods that cannot run" in shown.output
    content = json.loads(dpsynth("advise", "--json").stdout)
    assert content["offers"]
    assert not (tmp_path / "home" / "ledger").exists()


# Held-back cells of the leaderboard


def held_back():
    """Every dataset, ε and number of records with at least two methods, and all other cells."""
    lines = measured_lines()
    places = sorted({(each.dataset, each.epsilon, each.records) for each in lines})
    for dataset, epsilon, records in places:
        place = dataset, epsilon, records
        own = [each for each in lines if (each.dataset, each.epsilon, each.records) == place]
        others = [each for each in lines if each not in own]
        if len(own) > 1 and any(each.dataset == dataset for each in others):
            yield pytest.param(own, others, id=f"{dataset}-{epsilon:g}-{records}")


def advised(own, others):
    """The cell among `own` that all other cells put first."""

    def of_others(cell):
        found = expected(cell.line, cell.epsilon, cell.records, others, cell.domain)
        return -math.inf if found is None else found.share

    return max(own, key=of_others)


@pytest.mark.parametrize(("own", "others"), held_back())
def test_advice_on_held_back_cells_is_at_most_a_tenth_worse_than_the_best(own, others):
    """As far as scores of one seed decide it: shares come with their 95 % intervals."""
    chosen, best = advised(own, others), max(own, key=lambda each: each.share)
    least = (1 - WORST) * best.share
    undecided = 0.0 if chosen is best else math.hypot(chosen.margin, (1 - WORST) * best.margin)
    assert chosen.share >= least - undecided


def test_advice_on_held_back_cells_is_within_a_tenth_of_the_best_on_average():
    places = [each.values for each in held_back()]
    kept = [advised(*each).share / max(cell.share for cell in each[0]) for each in places]
    assert sum(kept) / len(kept) >= 1 - WORST


# Methods that build on another


def test_a_method_that_builds_on_another_is_offered_with_it():
    cells = [cell("aug_pe", 0.5), cell("aug_pe_from_ctcl", 0.9)]
    found = advise(declared(4000), BASE, cells=cells)
    best = found.offers[0]
    assert best.title == "aug_pe_from_corpus after ctcl"
    assert best.first["method"] == best.settings["corpus"] == "ctcl"
    assert best.epsilon <= 4.0
    assert found.offers[1].title == "aug_pe"
