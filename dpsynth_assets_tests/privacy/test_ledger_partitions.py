"""Laws of cohorts that part a dataset, and of terms that other versions have written."""

import pytest

from dpsynth_assets.cli.ledger import show
from dpsynth_assets.privacy.directed_rounding import epsilon_up
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import GaussianEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.ledger import BudgetTerms, Ledger
from dpsynth_assets.privacy.ledger.accounts import CohortAccount
from dpsynth_assets.privacy.ledger.statement import dataset_spend
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms, sqlite_url

ONE = GaussianEvent(noise_multiplier=10.0)  # ρ = 1/200


def charge(ledger: Ledger, name: str, allowed: BudgetTerms | None = None, **changes) -> str:
    asked = make_request(event=ONE, release=name, **changes)
    return ledger.reserve(asked, allowed or make_terms()).id


def test_two_rules_may_not_part_one_dataset(ledger):
    def ask(cohort, partition, **changes):
        return charge(ledger, "1", make_terms(partition=partition, **changes), cohort=cohort)

    ask("tickets_2026_01", "month of created")
    ask("tickets_2026_02", "month of created")
    for other in ("week of created", None):
        with pytest.raises(PrivacyError, match="partitioned by month of created"):
            ask("tickets_2026_w05", other)
    assert ledger.dataset_spend("tickets").composition == "parallel"


def test_a_dataset_charged_as_a_whole_may_not_be_parted_afterwards(ledger):
    charge(ledger, "1")
    with pytest.raises(PrivacyError, match="partitioned by no rule"):
        charge(ledger, "1", make_terms(partition="month of created"), cohort="tickets_2026_01")


def test_show_tells_what_disjoint_cohorts_cost_together(ledger, tmp_path, monkeypatch, capsys):
    allowed = make_terms(partition="month of created", relation=NeighboringRelation.ADD_REMOVE)
    for cohort, releases in (("tickets_2026_01", 1), ("tickets_2026_02", 3)):
        for number in range(releases):
            charge(ledger, f"{number}", allowed, cohort=cohort)
    monkeypatch.setenv("DPSYNTH_LEDGER_URL", sqlite_url(tmp_path))
    show(last=5)
    printed = capsys.readouterr().out
    assert "in parallel: the largest cohort" in printed
    total = ledger.dataset_spend("tickets")
    assert total.epsilon == ledger.spend("tickets_2026_02").epsilon
    assert epsilon_up(total.epsilon) in printed


def test_cohorts_of_two_rules_would_add_up():
    accounts = [
        CohortAccount(cohort, "tickets", opened=make_terms(partition=rule), latest=make_terms())
        for cohort, rule in (("tickets_a", "month of created"), ("tickets_b", "week of created"))
    ]
    assert dataset_spend("tickets", accounts[:1] * 2).composition == "parallel"
    assert dataset_spend("tickets", accounts).composition == "sequential"
