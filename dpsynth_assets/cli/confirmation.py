"""Asks before `dpsynth run` pays: what would be released, at which price, and what remains."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.privacy.accounting import epsilon_of_fixed
from dpsynth_assets.privacy.ledger import BudgetTerms, Ledger, LedgerEntry, PlannedRelease
from dpsynth_assets.privacy.ledger.plans import is_secret
from dpsynth_assets.privacy.rounded import declared, rounded_down, rounded_up

if TYPE_CHECKING:
    from dpsynth_assets.methods.planned import DatasetPlan


@dataclass(frozen=True)
class PendingRelease:
    """A release that a run would pay for.

    Attributes:
        asset: Key of the asset, as in the ledger.
        epsilon: ε of the release alone; None where it has none.
        rows: Rows the plan expects, at least; None where they follow from a released histogram.
    """

    asset: str
    epsilon: float | None
    rows: int | None


def pending_releases(
    spec: PrivateDatasetSpec, selected: Collection[str], release: str, ledger: Ledger
) -> list[PendingRelease]:
    """Lists the selected releases that were not charged yet.

    Args:
        spec: The cohort.
        selected: Keys of the assets that would run.
        release: Name of a new release; empty for the first, which is reused once it exists.
        ledger: What was charged so far.
    """
    from dpsynth_assets.methods.planning import plan_dataset

    plan = plan_dataset(spec)
    charged = _charged(ledger.entries(plan.terms.ledger_account), release)
    rows = _rows(plan)
    return [
        PendingRelease(each.asset, _price(each, plan.budget), rows.get(each.asset))
        for each in plan.releases
        if each.asset in selected and each.asset not in charged
    ]


def show_pending(
    spec: PrivateDatasetSpec, pending: Sequence[PendingRelease], ledger: Ledger, console: Console
) -> None:
    """Prints the price list and what remains of the budget."""
    spend = ledger.spend(spec.account)
    table = Table(title=f"To be paid for by cohort {spec.name}", title_justify="left")
    for name in ("release", "ε alone", "rows"):
        table.add_column(name, overflow="fold")
    for each in pending:
        rows = "after the histogram" if each.rows is None else f"{each.rows} or more"
        table.add_row(each.asset, rounded_up(each.epsilon, ".4g"), rows)
    console.print(table)
    left = spec.budget.epsilon if spend.remaining_epsilon is None else spend.remaining_epsilon
    console.print(
        f"Budget: ε = {declared(spec.budget.epsilon)} at δ = {declared(spec.budget.delta)}; "
        f"{rounded_down(left, '.4g')} remains before this run. What is paid cannot be paid back."
    )


def _charged(entries: Sequence[LedgerEntry], release: str) -> set[str]:
    return {
        entry.asset
        for entry in entries
        if entry.kind == "reserve" and (not release or entry.release == release)
    }


def _price(release: PlannedRelease, terms: BudgetTerms) -> float | None:
    if release.event is None or is_secret(release.event):
        return None
    return epsilon_of_fixed([release.event], terms.delta, terms.accountant)


def _rows(plan: "DatasetPlan") -> dict[str, int | None]:
    """Rows that the plan expects of each release."""
    cohort = plan.terms.cohort
    return {
        release.asset: entry.plan.rows_estimate
        for release in plan.releases
        for entry in plan.methods
        if release.asset.startswith(f"{cohort}/{entry.folder}/")
    }
