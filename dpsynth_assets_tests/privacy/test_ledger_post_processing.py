"""Rows written from earlier releases are recorded in the ledger and charge nothing."""

import pytest

from dpsynth_assets.privacy.errors import PlanChangedError
from dpsynth_assets.privacy.events import (
    POST_PROCESSING,
    ComposedEvent,
    GaussianEvent,
    event_from_json,
    event_to_json,
    is_post_processing,
)
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import PlannedRelease
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms

STAGE = "tickets/ctcl/finetuned_generator"
CORPUS = "tickets/ctcl/candidate_corpus"
EVENT = GaussianEvent(noise_multiplier=2.0)
PLAN = [PlannedRelease(asset=STAGE, event=EVENT)]


@pytest.fixture(params=["zcdp", "tight"])
def terms(request):
    return make_terms(accountant=request.param)


def pay(ledger, terms, **changes):
    reservation = ledger.reserve(make_request(**changes), terms, PLAN)
    if not reservation.reused:
        ledger.commit(reservation, artifact_digest="d", artifact_uri="u")
    return reservation


def write_rows(ledger, terms, rows):
    parameters = {"rows": rows}
    return pay(ledger, terms, asset=CORPUS, event=POST_PROCESSING, parameters=parameters)


def test_any_number_of_corpora_costs_what_their_stage_cost(ledger, terms):
    pay(ledger, terms, asset=STAGE, event=EVENT)
    paid = ledger.spend("tickets", terms).epsilon
    entries = len(ledger.entries())
    for rows in (100, 1_000, 10_000):
        assert not write_rows(ledger, terms, rows).reused
    assert ledger.spend("tickets", terms).epsilon == paid
    assert len(ledger.entries()) == entries + 6
    assert ledger.verify().ok


def test_rows_are_free_when_nothing_is_left(ledger):
    terms = make_terms(epsilon=2.0)
    while ledger.preview(make_request(release=str(len(ledger.entries()))), terms).admitted:
        pay(ledger, terms, release=str(len(ledger.entries())))
    assert not write_rows(ledger, terms, 10).reused


def test_rows_are_free_after_a_fixed_plan_changed(ledger):
    terms = make_terms(accountant="tight")
    pay(ledger, terms, asset=STAGE, event=EVENT)
    paid = ledger.spend("tickets", terms).epsilon
    ledger.reserve(make_request(asset=CORPUS, event=POST_PROCESSING), terms, [*PLAN, *PLAN])
    assert ledger.spend("tickets", terms).epsilon == paid
    assert ledger.verify().ok
    with pytest.raises(PlanChangedError, match=r"zcdp.*counts ε="):
        ledger.reserve(make_request(asset=STAGE, event=EVENT, release="2"), terms, [*PLAN, *PLAN])


def test_an_ex_post_release_is_no_free_row_of_a_changed_plan(ledger):
    terms = make_terms(accountant="tight", accepts_ex_post=True)
    pay(ledger, terms, asset=STAGE, event=EVENT)
    drawn = make_request(asset=CORPUS, event=None, guarantee=GuaranteeType.EX_POST)
    with pytest.raises(PlanChangedError):
        ledger.reserve(drawn, terms, [*PLAN, PlannedRelease(asset=CORPUS, event=None)])


def test_rows_keep_a_cohort_on_its_fixed_plan(ledger):
    terms = make_terms(accountant="tight")
    write_rows(ledger, terms, 10)
    with pytest.raises(PlanChangedError):
        ledger.reserve(
            make_request(asset=STAGE, event=GaussianEvent(noise_multiplier=1.0)), terms, PLAN
        )
    assert pay(ledger, terms, asset=STAGE, event=EVENT)


@pytest.mark.parametrize("event", [POST_PROCESSING, ComposedEvent(events=(POST_PROCESSING,))])
def test_post_processing_survives_the_ledger_as_what_it_is(event):
    assert is_post_processing(event_from_json(event_to_json(event)))


def test_only_the_empty_composition_is_free():
    assert not is_post_processing(None)
    assert not is_post_processing(EVENT)
    assert not is_post_processing(ComposedEvent(events=(POST_PROCESSING, EVENT)))
