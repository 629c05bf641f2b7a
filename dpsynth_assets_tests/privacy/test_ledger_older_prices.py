"""Ledgers of older versions: whole counts charged as continuous noise, read at their true price.

`ledger_before_0_2.sql` was written by the last version that did so. Its cohorts: `fitted`, one
histogram that takes all of its budget, and rows from it; `open`, shots whose vectors are yet to be
charged; `declared`, people of three replaced records, noise declared and room left; `filtered`,
ten rounds of votes under the filter.
"""

import json
import math
import sqlite3
from pathlib import Path

import pytest

from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.errors import BudgetExceededError, PlanChangedError
from dpsynth_assets.privacy.events import (
    POST_PROCESSING,
    ComposedEvent,
    DiscreteGaussianEvent,
    GaussianEvent,
    event_to_json,
)
from dpsynth_assets.privacy.gaussian_dp import gaussian_epsilon, gaussian_mu
from dpsynth_assets.privacy.histogram import NoisyHistogram
from dpsynth_assets.privacy.ledger import Ledger, PlannedRelease
from dpsynth_assets.privacy.ledger.accounts import Book
from dpsynth_assets.privacy.ledger.checkpoint import Checkpoint
from dpsynth_assets.privacy.ledger.export import history
from dpsynth_assets.privacy.ledger.older_prices import restated_event, restated_plan
from dpsynth_assets.privacy.ledger.terms import canonical_json
from dpsynth_assets.privacy.units import NeighboringRelation, PrivacyUnit
from dpsynth_assets.report.audit_agreement import unaccounted
from dpsynth_assets.report.audit_trail import spends_of
from dpsynth_assets.report.cards import cohort_line
from dpsynth_assets.report.label import cohort_label
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms

ADD_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation
WRITTEN = Path(__file__).with_name("ledger_before_0_2.sql")
DELTA = 1e-6
STATED = {"fitted": 2.9999999983409, "open": 2.9999999983409005, "declared": 2.4699070999372137}
PEOPLE = PrivacyUnit(column="person", max_records=3)


@pytest.fixture
def url(tmp_path):
    connection = sqlite3.connect(tmp_path / "ledger.sqlite")
    connection.executescript(WRITTEN.read_text(encoding="utf-8"))
    connection.close()
    return f"sqlite:///{tmp_path / 'ledger.sqlite'}"


@pytest.fixture
def ledger(url):
    return Ledger(url)


def terms(**changes):
    return make_terms(**{"epsilon": 3.0, "accountant": "tight", **changes})


def request(cohort, asset, event, **changes):
    fields = {
        "cohort": cohort,
        "dataset": cohort,
        "asset": f"{cohort}/{asset}",
        "mechanism": "epsvec",
        "event": event,
        "parameters": {"inputs": {}},
    }
    return make_request(**{**fields, **changes})


def counts(noise_std):
    return NoisyHistogram(noise="gaussian", scale=noise_std, relation=ADD_REMOVE).event()


def fitted(noise_std=1.57):
    """What the cohort `fitted` asks for once its noise is found at the price of whole counts."""
    event = counts(noise_std)
    parameters = {"candidates": 5, "inputs": {}, "noise": "y", "shots_noise_std": noise_std}
    asked = request("fitted", "epsvec/fixed_shots", event, parameters=parameters)
    return asked, [PlannedRelease(asked.asset, event)]


def open_plan(shots=2.83, vectors=2.0):
    return [
        PlannedRelease("open/epsvec/fixed_shots", counts(shots)),
        PlannedRelease("open/epsvec/dataset_vectors", GaussianEvent(noise_multiplier=vectors)),
    ]


def test_the_old_ledger_verifies_and_is_not_written_to(ledger):
    before = [entry.event_json for entry in ledger.entries()]
    assert ledger.verify().ok
    assert '"type":"gaussian"' in "".join(filter(None, before))
    for cohort in STATED:
        ledger.spend(cohort)
    assert [entry.event_json for entry in ledger.entries()] == before


def test_what_was_spent_is_restated_upwards(ledger):
    spend = ledger.spend("fitted")
    noise_std = 1 / math.sqrt(gaussian_mu(3.0, DELTA) ** 2 * (1 - 1e-9))
    assert spend.epsilon == epsilon_of([counts(noise_std)], DELTA, "tight")
    assert spend.epsilon == pytest.approx(3.04735, abs=1e-5)
    assert spend.epsilon == spend.guaranteed_epsilon
    for cohort, stated in STATED.items():
        assert ledger.spend(cohort).restated_from == pytest.approx(stated, rel=1e-12)
        assert ledger.spend(cohort).epsilon >= stated


def test_a_restated_total_beyond_the_budget_says_so(ledger):
    spend = ledger.spend("fitted")
    assert spend.remaining_epsilon == 0
    assert spend.restated == (
        "restated: ε = 3.04735 instead of 3, beyond the budget of 3, by the price of integer noise "
        "on whole counts since version 0.2.0"
    )
    assert spend.to_json()["restated"] == spend.restated
    within = ledger.spend("declared").restated
    assert "restated" in within
    assert "beyond" not in within


def test_label_and_history_state_the_true_price(ledger):
    label = cohort_label(ledger.entries(), "fitted")
    guarantee = label["guarantee"]
    assert guarantee["epsilon"] == ledger.spend("fitted").epsilon
    assert label["mechanisms"][0]["event"]["type"] == "discrete_gaussian"
    assert label["mechanisms"][0]["epsilon_alone"] == pytest.approx(3.04735, abs=1e-5)
    assert "beyond the budget of 3" in label["cohort"]["restated"]
    assert "beyond the budget of 3" in cohort_line(label["cohort"])
    line = history(ledger, "fitted").lines[0]
    assert (line.epsilon_alone, line.epsilon_cumulative) == (guarantee["epsilon"],) * 2


def test_the_filter_s_account_stays_what_it_was(ledger):
    spend = ledger.spend("filtered")
    assert spend.epsilon == 3.9999999999999956
    assert spend.remaining_epsilon == pytest.approx(1.0, rel=1e-12)
    assert not spend.restated


def test_a_stored_release_is_reused_though_its_noise_would_be_another(ledger):
    asked, plan = fitted()
    entries = len(ledger.entries())
    assert ledger.preview(asked, terms(), plan).reused
    reservation = ledger.reserve(asked, terms(), plan)
    assert reservation.reused
    assert reservation.artifact_uri == "fitted/epsvec/fixed_shots"
    assert len(ledger.entries()) == entries
    # It shows what it cost, not what another noise would.
    assert reservation.request.event.noise_std == pytest.approx(1.5438614185475854)
    votes = DiscreteGaussianEvent(noise_std=4.009216041597302)
    asked = request(
        "filtered",
        "aug_pe/population",
        ComposedEvent(events=(votes,) * 10),
        mechanism="aug_pe",
        parameters={"noise_std": 4.009216041597302, "noise": "y", "inputs": {}},
    )
    assert ledger.reserve(asked, terms(accountant="zcdp", epsilon=5.0)).reused


def test_another_release_of_that_name_is_not_taken_for_it(ledger):
    asked, plan = fitted()
    for change in ({"parameters": {"candidates": 6, "inputs": {}}}, {"release": "2"}):
        again = request("fitted", "epsvec/fixed_shots", asked.event, **change)
        with pytest.raises(PlanChangedError):
            ledger.reserve(again, terms(), plan)


def test_rows_are_written_from_what_was_released(ledger):
    _, plan = fitted()
    rows = request("fitted", "epsvec/corpus", POST_PROCESSING, parameters={"rows": 70})
    reservation = ledger.reserve(rows, terms(), plan)
    assert not reservation.reused
    ledger.commit(reservation, artifact_digest="d", artifact_uri="u")
    assert ledger.verify().ok
    assert ledger.spend("fitted").epsilon == pytest.approx(3.04735, abs=1e-5)


def test_a_further_charge_of_a_fitted_plan_is_refused_in_one_line(ledger):
    plan = open_plan()
    asked = request("open", "epsvec/dataset_vectors", plan[1].event)
    with pytest.raises(PlanChangedError) as refused:
        ledger.reserve(asked, terms(), plan)
    message = str(refused.value)
    assert "pinned to before version 0.2.0" in message
    assert "Name a cohort of other records, or set `accountant: zcdp`" in message
    assert "\n" not in message
    assert ledger.preview(asked, terms(), plan).refusal == message
    # At the noise it was pinned to the plan costs more than the budget.
    pinned = [PlannedRelease(*line) for line in _pinned(ledger, "open")]
    asked = request("open", "epsvec/dataset_vectors", pinned[0].event)
    with pytest.raises(BudgetExceededError, match="overspend cohort 'open'"):
        ledger.reserve(asked, terms(), pinned)


def _pinned(ledger, cohort):
    from dpsynth_assets.privacy.events import event_from_json

    book = Book()
    for entry in ledger.entries():
        book.post(entry)
    lines = json.loads(book.accounts[cohort].plan_json)
    return [(asset, event_from_json(event)) for asset, event in lines]


def test_a_plan_of_other_releases_is_refused_as_ever(ledger):
    plan = [PlannedRelease("open/other/corpus", GaussianEvent(noise_multiplier=9.0))]
    asked = request("open", "other/corpus", plan[0].event)
    with pytest.raises(PlanChangedError, match="first charged for"):
        ledger.reserve(asked, terms(), plan)


def test_a_plan_of_declared_noise_goes_on_at_its_true_price(ledger):
    topics, clusters = (
        NoisyHistogram(
            noise="gaussian", scale=scale, relation=REPLACE_ONE, max_records_per_unit=3
        ).event()
        for scale in (10.0, 12.5)
    )
    plan = [
        PlannedRelease("declared/shared/topic_histogram", topics),
        PlannedRelease("declared/shared/cluster_histogram", clusters),
    ]
    budget = terms(relation=REPLACE_ONE, unit=PEOPLE, epsilon=4.0)
    asked = request("declared", "shared/cluster_histogram", clusters)
    ledger.commit(ledger.reserve(asked, budget, plan), artifact_digest="d", artifact_uri="u")
    assert ledger.verify().ok
    spend = ledger.spend("declared")
    assert spend.epsilon == epsilon_of([topics, clusters], DELTA, "tight")
    assert spend.epsilon > STATED["declared"]


def test_a_checkpoint_keeps_what_was_restated(ledger, url, tmp_path):
    book = Book()
    for entry in ledger.entries():
        book.post(entry)
    checkpoint = Checkpoint(tmp_path / "kept", url)
    checkpoint.save(book)
    assert checkpoint.load() == book
    asked, plan = fitted()
    assert Ledger(url, checkpoint=checkpoint).reserve(asked, terms(), plan).reused


def test_what_old_runs_showed_is_no_false_claim(ledger):
    from dpsynth_assets.report.audit_agreement import Materialised

    charge = ledger.entries("fitted")[0]
    shown = [
        Materialised(
            storage_id=1,
            run_id="run",
            asset=charge.asset,
            reservation=charge.reservation,
            guarantee="dp",
            epsilon=STATED["fitted"],
            event=json.loads(text),
        )
        for text in (charge.event_json,)
    ]
    assert not unaccounted(ledger.entries(), spends_of(ledger, ledger.entries()), shown)


COUNTED = [
    "c/shared/cluster_histogram",
    "c/shared/topic_histogram",
    "c/epsvec/fixed_shots",
    "c/aug_pe/label_histogram",
    "c/aug_pe/population",
]


@pytest.mark.parametrize("asset", COUNTED)
@pytest.mark.parametrize("relation", list(NeighboringRelation))
@pytest.mark.parametrize("records", [1, 2, 3, 7])
@pytest.mark.parametrize("noise_std", [1.0, 10.0, 12.5, 1.5438614185475854, 31.415926535897931])
def test_every_kind_of_count_finds_its_noise_again(asset, relation, records, noise_std):
    root = math.sqrt(relation.records_changed)
    exact = records * root
    sensitivity = exact if root == 1 else math.nextafter(exact, math.inf)
    old = GaussianEvent(noise_multiplier=noise_std / sensitivity)
    unit = PrivacyUnit(column="person" if records > 1 else None, max_records=records)
    declared = terms(relation=relation, unit=unit).to_json()
    twice = canonical_json(event_to_json(ComposedEvent(events=(old, old))))
    now = json.loads(restated_event(twice, asset, declared))["events"]
    assert now[0] == now[1]
    assert now[0]["type"] == "discrete_gaussian"
    assert now[0]["noise_std"] == pytest.approx(noise_std, rel=1e-15)
    assert (now[0]["shift"], now[0]["count"]) == (records, relation.records_changed)
    if noise_std in (1.0, 10.0, 12.5):
        assert now[0]["noise_std"] == noise_std


@pytest.mark.parametrize(
    ("asset", "event"),
    [
        ("c/epsvec/dataset_vectors", GaussianEvent(noise_multiplier=2.0)),
        ("c/any/candidate_corpus", GaussianEvent(noise_multiplier=2.0)),
        ("c/epsvec/fixed_shots", POST_PROCESSING),
        ("c/shared/topic_histogram", DiscreteGaussianEvent(noise_std=10.0)),
    ],
)
def test_vectors_and_what_is_priced_already_stay(asset, event):
    text = canonical_json(event_to_json(event))
    assert restated_event(text, asset, terms().to_json()) == text
    plan = canonical_json([[asset, event_to_json(event)], ["c/ex/post", None]])
    assert restated_plan(plan, terms().to_json()) == plan


def test_the_old_price_was_that_of_continuous_noise():
    """What the fixture's numbers are: the closed form of Gaussian noise."""
    mu = gaussian_mu(3.0, DELTA) * math.sqrt(1 - 1e-9)
    assert gaussian_epsilon(mu, DELTA) == pytest.approx(STATED["fitted"], rel=1e-9)
