"""`dpsynth` without a command: where it works, what each cohort has spent, and what to do next."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dpsynth_assets.cli.terminal import say, show_table
from dpsynth_assets.datasets import PrivateDatasetSpec, dataset_folders, standing
from dpsynth_assets.methods.declared_terms import budget_terms
from dpsynth_assets.paths import Home, home_root
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_down, epsilon_up

if TYPE_CHECKING:
    from dpsynth_assets.privacy.ledger import CohortSpend, Ledger

MOST_ROWS = 12
"""Cohorts shown, those of the latest results first: the table is to fit a screen."""


_NUMERIC = ("ε spent", "ε left", "of", "corpora")


@dataclass(frozen=True, kw_only=True)
class CohortState:
    """What one cohort has spent and made.

    Attributes:
        name: Name of the cohort.
        budget: Declared ε.
        spend: What the ledger says; None where there is no ledger.
        published: Number of corpora that were published.
        last_result: Seconds since the epoch at which a run last wrote a result; 0 for none.
    """

    name: str
    budget: float
    spend: "CohortSpend | None"
    published: int
    last_result: float

    @property
    def next_command(self) -> str:
        """The command that this cohort waits for."""
        if self.published:
            return f"dpsynth report {self.name}"
        charged = self.spend is not None and self.spend.dataset
        return f"dpsynth {'run' if charged else 'plan'} {self.name}"


def overview() -> None:
    """Prints where this installation is, its cohorts with their budgets, and the next commands.

    Reads declarations, the ledger and the dates of files; creates nothing.
    """
    from dpsynth_assets.cli.ledger import ledger_if_any

    found = standing(dataset_folders())
    ledger = ledger_if_any()
    states = sorted(
        (_state(spec, ledger) for spec, _ in found.cohorts.values()),
        key=lambda state: (-state.last_result, state.name),
    )
    say(*(f"{name:>8}: {value}" for name, value in _places()))
    if states:
        columns = ("cohort", *_NUMERIC, "last result", "next")
        show_table(columns, map(_row, states[:MOST_ROWS]), numeric=_NUMERIC)
    if len(states) > MOST_ROWS:
        say(f"{len(states) - MOST_ROWS} more: dpsynth datasets list.")
    if found.refused:
        files = len(found.refused)
        say(f"{files} dataset file(s) cannot be used: dpsynth datasets check.", style="red")
    say(
        "Your own data: dpsynth init NAME --from FILE. Web UI: dpsynth ui.",
        "All commands: dpsynth --help.",
    )


def _places() -> Iterator[tuple[str, str]]:
    """The folders and addresses that commands of this terminal use."""
    root = home_root()
    new = "" if root.exists() else " (not there yet)"
    yield "home", f"{root}{new}"
    yield "dagster", os.environ.get("DAGSTER_HOME", str(Home(root).dagster))
    yield "datasets", ", ".join(str(folder) for folder in dataset_folders())


def _state(spec: PrivateDatasetSpec, ledger: "Ledger | None") -> CohortState:
    stores = Home(home_root())  # Looking creates nothing.
    corpora = [path.parent for path in (stores.released / spec.name).glob("*/data")]
    results = [path.stat().st_mtime for path in (stores.reports / spec.name).glob("*.*")]
    results += [path.stat().st_mtime for path in corpora]
    return CohortState(
        name=spec.name,
        budget=spec.budget.epsilon,
        spend=None if ledger is None else _spend(spec, ledger),
        published=len(corpora),
        last_result=max(results, default=0.0),
    )


def _spend(spec: PrivateDatasetSpec, ledger: "Ledger") -> "CohortSpend":
    """The statement under the declared terms or, where δ was edited, under those charged last."""
    from dpsynth_assets.privacy.errors import PrivacyError

    try:
        return ledger.spend(spec.account, budget_terms(spec))
    except PrivacyError:
        return ledger.spend(spec.account)


def _row(state: CohortState) -> tuple[str, ...]:
    spent = 0.0 if state.spend is None else state.spend.epsilon
    left = state.budget if state.spend is None else state.spend.remaining_epsilon
    made = datetime.fromtimestamp(state.last_result, UTC) if state.last_result else None
    return (
        state.name,
        epsilon_up(spent),
        epsilon_down(state.budget if left is None else left),
        declared(state.budget),
        str(state.published),
        "—" if made is None else f"{made:%Y-%m-%d %H:%M} UTC",
        state.next_command,
    )
