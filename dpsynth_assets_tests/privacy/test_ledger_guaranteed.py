"""What is guaranteed of a cohort is not what an odometer reads of it."""

import pytest

from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.errors import BudgetExceededError
from dpsynth_assets.privacy.events import GaussianEvent
from dpsynth_assets.privacy.ledger import PlannedRelease
from dpsynth_assets.privacy.ledger.export import history
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms

FIRST, SECOND = GaussianEvent(noise_multiplier=2.2), GaussianEvent(noise_multiplier=5.0)
A, B = "tickets/a/corpus", "tickets/b/corpus"


def charge(ledger, asset, event, terms, release="1"):
    plan = [PlannedRelease(A, FIRST)] if terms.accountant == "tight" else None
    ledger.reserve(make_request(asset=asset, event=event, release=release), terms, plan)


def test_a_filter_guarantees_its_budget_and_reads_less(ledger):
    charge(ledger, A, FIRST, make_terms(epsilon=4.0))
    spend = ledger.spend("tickets")
    assert (spend.guaranteed_epsilon, spend.delta, spend.basis) == (4.0, 1e-6, "filter")
    assert spend.epsilon == epsilon_of([FIRST], 1e-6, "zcdp") < 4.0


def test_the_largest_budget_counts_and_a_lowered_one_lowers_nothing(ledger):
    charge(ledger, A, FIRST, make_terms(epsilon=8.0))
    charge(ledger, B, SECOND, make_terms(epsilon=5.0))
    assert ledger.spend("tickets", make_terms(epsilon=4.0)).guaranteed_epsilon == 8.0


def test_a_plan_guarantees_all_copies_that_may_still_follow(ledger):
    """Who looks at one round decides on the next: ε of the charged rounds is no guarantee."""
    terms = make_terms(epsilon=9.0, accountant="tight")
    most = max(n for n in range(1, 60) if epsilon_of([FIRST] * n, 1e-6, "tight") <= 9.0)
    for copies in range(1, most + 1):
        charge(ledger, A, FIRST, terms, release=str(copies))
        spend = ledger.spend("tickets")
        assert spend.basis == "plan"
        assert spend.epsilon == epsilon_of([FIRST] * copies, 1e-6, "tight")
        assert spend.guaranteed_epsilon == epsilon_of([FIRST] * most, 1e-6, "tight") <= 9.0
    with pytest.raises(BudgetExceededError):
        charge(ledger, A, FIRST, terms, release="one more")
    assert ledger.spend("tickets").guaranteed_epsilon == ledger.spend("tickets").epsilon


def test_a_plan_of_which_very_many_copies_may_follow_guarantees_the_budget(ledger):
    event = GaussianEvent(noise_multiplier=200.0)
    terms = make_terms(epsilon=8.0, accountant="tight")
    ledger.reserve(make_request(asset=A, event=event), terms, [PlannedRelease(A, event)])
    assert ledger.spend("tickets").guaranteed_epsilon == 8.0


def test_a_plan_of_which_one_copy_fits_guarantees_that_copy(ledger):
    cost = epsilon_of([FIRST], 1e-6, "tight")
    charge(ledger, A, FIRST, make_terms(epsilon=1.2 * cost, accountant="tight"))
    assert ledger.spend("tickets").guaranteed_epsilon == cost


def test_after_a_switch_of_accountants_delta_is_doubled_everywhere(ledger):
    charge(ledger, A, FIRST, make_terms(accountant="tight"))
    assert ledger.spend("tickets").delta == 1e-6
    charge(ledger, B, SECOND, make_terms())
    spend = ledger.spend("tickets")
    assert (spend.guaranteed_epsilon, spend.delta) == (make_terms().epsilon, 2e-6)
    assert spend.basis == "plan, then filter"
    assert ledger.dataset_spend("tickets").delta == 2e-6
    assert [line.delta for line in history(ledger).lines] == [1e-6, 2e-6]


def test_a_plan_dearer_than_every_budget_is_still_covered_after_a_switch(ledger, monkeypatch):
    """A later version of the accounting may find a plan dearer than the budget it was under."""
    charge(ledger, A, FIRST, make_terms(accountant="tight"))
    charge(ledger, B, SECOND, make_terms())
    monkeypatch.setattr("dpsynth_assets.privacy.ledger.statement.plan_epsilon", lambda *_: 1e3)
    assert ledger.spend("tickets").guaranteed_epsilon == 1e3


def test_nothing_charged_guarantees_zero(ledger):
    assert ledger.spend("tickets", make_terms()).guaranteed_epsilon == 0.0
