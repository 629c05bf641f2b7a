"""Asks before `dpsynth run` pays: what would be released, at which price, and what remains."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.console import Console

from dpsynth_assets.cli.terminal import say, show_table
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.prompt_words import prompt_problems
from dpsynth_assets.datasets.standing import declared_base
from dpsynth_assets.privacy.accounting import epsilon_of_fixed
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_down, epsilon_up
from dpsynth_assets.privacy.ledger import BudgetTerms, Ledger, LedgerEntry, PlannedRelease
from dpsynth_assets.privacy.ledger.plans import is_secret
from dpsynth_assets.privacy.ledger.schema import RESERVE

if TYPE_CHECKING:
    from dpsynth_assets.advice.minutes import ExpectedMinutes
    from dpsynth_assets.methods.dataset_plan import DatasetPlan


@dataclass(frozen=True)
class PendingRelease:
    """A release that a run would pay for.

    Attributes:
        asset: Key of the asset, as in the ledger.
        epsilon: ε of the release alone; None where it has none.
        rows: Rows the plan expects, at least; None where they follow from a released histogram.
        again: Whether the same name was paid for before, from another declaration or other inputs.
    """

    asset: str
    epsilon: float | None
    rows: int | None
    again: bool = False


def pending_releases(
    spec: PrivateDatasetSpec, selected: Collection[str], release: str, ledger: Ledger
) -> list[PendingRelease]:
    """Lists the selected releases that were not charged yet.

    Args:
        spec: The cohort.
        selected: Keys of the assets that would run.
        release: Name of the release; empty for the one that a run without a name asks for.
        ledger: What was charged so far.
    """
    from dpsynth_assets.methods.planning import plan_dataset
    from dpsynth_assets.orchestration.assets.launch import DEFAULT_RELEASE

    plan, name = plan_dataset(spec), release or DEFAULT_RELEASE
    entries = [e for e in ledger.entries(plan.terms.ledger_account) if e.kind == RESERVE]
    rows = _rows(plan)
    named = [entry for entry in entries if entry.release == name]
    paid = {entry.asset for entry in named if _is_paid(entry, spec, plan, ledger)}
    chosen = [each for each in plan.releases if each.asset in selected]
    anew = {each.asset for each in chosen} - paid

    def is_drawn(asset: str) -> bool:
        behind = plan.graph.behind(asset.removeprefix(f"{spec.name}/"))
        return not anew.isdisjoint([asset, *(f"{spec.name}/{each}" for each in behind)])

    return [
        PendingRelease(
            each.asset,
            _price(each, plan.budget),
            rows.get(each.asset),
            again=any(entry.asset == each.asset for entry in named),
        )
        for each in chosen
        if is_drawn(each.asset)
    ]


def show_pending(
    spec: PrivateDatasetSpec, pending: Sequence[PendingRelease], ledger: Ledger, console: Console
) -> "ExpectedMinutes":
    """Prints the price list, the minutes of the whole run, which it returns, and what remains."""
    from dpsynth_assets.advice.minutes import TRIAL, expected_minutes, whole_in_words
    from dpsynth_assets.methods.planning import plan_dataset

    spend = ledger.spend(spec.account)
    rows = (
        (
            each.asset,
            epsilon_up(each.epsilon),
            "after the histogram" if each.rows is None else f"{each.rows} or more",
        )
        for each in pending
    )
    title = f"To be paid for by cohort {spec.name}"
    show_table(("release", "ε alone", "rows"), rows, title=title, to=console)
    problems = prompt_problems(spec, declared_base(spec.public_data))
    say(*(str(replace(each, file=spec.name)) for each in problems), style="yellow", to=console)
    with console.status(TRIAL):
        expected = expected_minutes(spec, plan_dataset(spec))
    left = spec.budget.epsilon if spend.remaining_epsilon is None else spend.remaining_epsilon
    say(
        whole_in_words(expected.whole, expected.unknown),
        *(
            f"{each.asset}: this name was paid for before, from another declaration or other "
            "inputs. It is paid again: restore the file to reuse what is there."
            for each in pending
            if each.again
        ),
        f"Budget: ε = {declared(spec.budget.epsilon)} at δ = {declared(spec.budget.delta)}; "
        f"{epsilon_down(left)} remains before this run. What is paid cannot be paid back.",
        to=console,
    )
    return expected


def _is_paid(
    entry: LedgerEntry, spec: PrivateDatasetSpec, plan: "DatasetPlan", ledger: Ledger
) -> bool:
    """Asks the ledger whether a charge is that of the release as the file declares it now.

    The request is the run's own, on what the charge was made from: models and clusters that were
    made anew are known only when the run comes to them.
    """
    from dpsynth_assets.methods.requests import stage_request

    node = plan.graph.nodes.get(entry.asset.removeprefix(f"{spec.name}/"))
    if node is None or node.stage is None or node.stage.mechanism is None:
        return False
    request = stage_request(spec, node.part, node.stage, release=entry.release)
    # Under the names that the entry has: a method may record inputs under its own.
    made_from = {"inputs", *node.stage.reads}
    recorded = {k: v for k, v in entry.parameters.items() if k in made_from}
    request = replace(request, parameters={**request.parameters, **recorded})
    released = ledger.preview(request, plan.budget, plan.releases).reused
    return released or bool(ledger.pending(request))


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
