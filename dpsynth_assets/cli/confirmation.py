"""Asks before `dpsynth run` pays: what would be released, at which price, and what remains."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.privacy.accounting import epsilon_of_fixed
from dpsynth_assets.privacy.directed_rounding import declared, rounded_down, rounded_up
from dpsynth_assets.privacy.events import event_to_json
from dpsynth_assets.privacy.ledger import BudgetTerms, Ledger, LedgerEntry, PlannedRelease
from dpsynth_assets.privacy.ledger.plans import is_secret
from dpsynth_assets.privacy.ledger.schema import RESERVE
from dpsynth_assets.privacy.ledger.terms import canonical_json

if TYPE_CHECKING:
    from dpsynth_assets.methods.dataset_plan import DatasetPlan


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
    entries = [e for e in ledger.entries(plan.terms.ledger_account) if e.kind == RESERVE]
    rows, settings = _rows(plan), _settings(plan)
    return [
        PendingRelease(each.asset, _price(each, plan.budget), rows.get(each.asset))
        for each in plan.releases
        if each.asset in selected
        and not any(
            _is_paid(entry, each, settings.get(each.asset), spec, release) for entry in entries
        )
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


@dataclass(frozen=True)
class _Settings:
    """What identifies the releases of one method beside their events."""

    code_version: str
    parameters: Mapping[str, Any]


def _is_paid(
    entry: LedgerEntry,
    planned: PlannedRelease,
    settings: _Settings | None,
    spec: PrivateDatasetSpec,
    release: str,
) -> bool:
    """Whether a charge is that of a planned release, as far as the dataset file can tell.

    What cannot be matched counts as unpaid: rather ask once too often. Models and clusters that
    were made anew are known only when the run comes to them.
    """
    if entry.asset != planned.asset or (release and entry.release != release):
        return False
    event = None if planned.event is None else canonical_json(event_to_json(planned.event))
    if event not in (entry.event_json, entry.priced_json):
        return False
    if entry.data_version != spec.source.version:
        return False
    known = entry.parameters
    return settings is None or (
        entry.code_version == settings.code_version
        and all(known[k] == v for k, v in settings.parameters.items() if k in known)
    )


def _settings(plan: "DatasetPlan") -> dict[str, _Settings]:
    """Code version and parameters of each planned release of a method."""
    return {
        release.asset: _Settings(
            entry.method.code_version, json.loads(canonical_json(dict(entry.plan.parameters)))
        )
        for release in plan.releases
        for entry in plan.methods
        if release.asset.startswith(f"{plan.terms.cohort}/{entry.folder}/")
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
