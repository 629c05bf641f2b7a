"""All budgets of the installation as one asset, with a check that is repeated every hour."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import dagster as dg

from dpsynth_assets.datasets import dataset_folders, standing
from dpsynth_assets.files.kept import version_of
from dpsynth_assets.files.whole import write_whole
from dpsynth_assets.orchestration.assets.keys import AGREES, AUDIT, AUDIT_TRAIL, asset_of_cohort
from dpsynth_assets.orchestration.dagster_internals import schedule_execution_time_iterator
from dpsynth_assets.orchestration.metadata import (
    check_result,
    check_specs,
    code_references,
    compared,
    short_digest,
)
from dpsynth_assets.orchestration.resources.check_results import last_result, report_check
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.report.audit_page import LEVELS, budget_lines, budget_page, budget_table
from dpsynth_assets.report.budgets import Budgets, CohortBudget, read_budgets
from dpsynth_assets.report.cards import LABEL_FILE
from dpsynth_assets.report.pages import page_address
from dpsynth_assets.tags import COHORT, INTERNAL, PRIVACY

BUDGETS = dg.AssetKey("privacy_budgets")
BUDGETS_HOLD = "budgets_hold"
BUDGETS_GROUP = "installation"
PAGE = "budgets.html"
_HOLDS = (
    "No cohort has spent more than its total, the ledger is valid, and no audit found a "
    "disagreement."
)
_EXPECTED = "no cohort over its total, a valid ledger, and no disagreement in any audit"


def budgets_now(
    ledger: Ledger | None, instance: dg.DagsterInstance, audited: Mapping[str, int] | None = None
) -> Budgets:
    """Reads the accounts of all cohorts, the results of their last audits, and their last runs.

    Args:
        ledger: Where charges are; None before the first one.
        instance: Whose event log holds audits and runs.
        audited: Cohort -> disagreements of an audit that the event log does not hold yet.

    Raises:
        LedgerIntegrityError: The chain is broken.
    """
    specs = [spec for spec, _ in standing(dataset_folders()).cohorts.values()]
    budgets = read_budgets(ledger, specs)
    names = [each.cohort for each in budgets.cohorts]
    findings = {**last_findings(names, instance), **(audited or {})}
    sharing: dict[str, list[str]] = {name: [name] for name in names}
    for spec in specs:
        sharing.setdefault(spec.account, []).append(spec.name)
    told = (_with_run_and_month(each, sharing[each.cohort], instance) for each in budgets.cohorts)
    told = (replace(each, findings=findings.get(each.cohort)) for each in told)
    return replace(budgets, cohorts=tuple(told))


def last_findings(cohorts: Sequence[str], instance: dg.DagsterInstance) -> dict[str, int]:
    """Cohort -> number of disagreements that its last audit found, of those that were audited."""
    found: dict[str, int] = {}
    for name in cohorts:
        asset, partition = asset_of_cohort(name, AUDIT, AUDIT_TRAIL)
        last = last_result(instance, dg.AssetCheckKey(asset, AGREES), partition)
        if last is not None:
            shown = last.metadata.get("findings")
            lines = shown.value if shown is not None and isinstance(shown.value, list) else []
            found[name] = 0 if last.passed else max(1, len(lines))
    return found


def _with_run_and_month(
    cohort: CohortBudget, sharing: Sequence[str], instance: dg.DagsterInstance
) -> CohortBudget:
    """Adds the last run, of the account's cohorts or by its last charge, and what else it came to.

    A run for several cohorts is tagged with all of them at once, so that a search for one does not
    find it: its charges do.
    """
    tagged = instance.get_run_records(filters=dg.RunsFilter(tags={COHORT: list(sharing)}), limit=1)
    run = cohort.last_run
    if tagged and f"{tagged[0].create_timestamp:%Y-%m-%d %H:%M}" >= cohort.last_charge:
        run = tagged[0].dagster_run.run_id
    folders = [home().released / name for name in sharing]
    return replace(
        cohort,
        last_run=run,
        ends=month_of_last_round(cohort, time.time()),
        published=any(any(folder.glob(f"*/{LABEL_FILE}")) for folder in folders),
    )


def month_of_last_round(cohort: CohortBudget, now: float) -> str:
    """Month in which a schedule comes to the last round that is left, e.g. "2027-03".

    Args:
        cohort: Its schedule and rounds.
        now: Seconds since the epoch from which ticks are counted.

    Returns:
        The month; empty where no schedule comes to it, in this calendar or at all.
    """
    if not cohort.schedule or not cohort.rounds_left:
        return ""
    ticks = schedule_execution_time_iterator(now, cohort.schedule, cohort.timezone)
    try:
        last = next(islice(ticks, cohort.rounds_left - 1, None), None)
    except (ValueError, OverflowError):  # Years end at 9999.
        return ""
    return "" if last is None else f"{last:%Y-%m}"


def report_budgets(
    ledger: Ledger, instance: dg.DagsterInstance, audited: Mapping[str, int] | None = None
) -> Budgets:
    """Shows the budgets as they are now, as asset, check and page; launches no run.

    The asset is materialised again only where something changed since it last was.

    **Privacy** Reads ledger, declarations and event log: post-processing.
    """
    budgets = budgets_now(ledger, instance, audited)
    write_page(budgets)
    metadata = _metadata(budgets)
    last = instance.get_latest_materialization_event(BUDGETS)
    shown = None if last is None else last.asset_materialization
    table = None if shown is None else shown.metadata.get("dpsynth/budgets")
    if table != metadata["dpsynth/budgets"]:
        instance.report_runless_asset_event(dg.AssetMaterialization(BUDGETS, metadata=metadata))
    _show_check(budgets.problems(), instance)
    return budgets


def report_budgets_or_problem(
    open_ledger: Callable[[], Ledger],
    instance: dg.DagsterInstance,
    audited: Mapping[str, int] | None = None,
) -> str:
    """As `report_budgets`, where a failure must not undo what its caller already did.

    Args:
        open_ledger: Opens the ledger.
        instance: Learns the budgets.
        audited: As for `budgets_now`.

    Returns:
        Why the budgets could not be shown, which their check then says, too; else nothing.
    """
    try:
        report_budgets(open_ledger(), instance, audited)
    except Exception as error:  # noqa: BLE001 - what the caller showed stays
        problem = f"Cannot read the budgets ({type(error).__name__}: {error})"
        _show_check([problem], instance)
        return f"{problem}: dpsynth budgets says why."
    return ""


def _show_check(problems: list[str], instance: dg.DagsterInstance) -> None:
    report_check(
        instance,
        dg.AssetCheckEvaluation(
            asset_key=BUDGETS,
            check_name=BUDGETS_HOLD,
            passed=not problems,
            metadata=compared(_EXPECTED, problems),
        ),
    )


def _metadata(budgets: Budgets) -> dict[str, Any]:
    return {
        **{f"budget of {cohort}": line for cohort, line in budget_lines(budgets).items()},
        "dpsynth/budgets": dg.MetadataValue.md(budget_table(budgets)),
        "dpsynth/problems": len(budgets.problems()),
        "dpsynth/page": dg.MetadataValue.url(page_address("reports", PAGE)),
        "dpsynth/ledger_head": short_digest(budgets.ledger_head),
    }


def write_page(budgets: Budgets) -> None:
    """Writes the page beside the cohorts' audit pages, for its owner."""
    write_whole(home().reports / PAGE, budget_page(budgets))


def budget_definitions() -> dg.Definitions:
    """The asset that shows all budgets, with its check."""

    @dg.asset(
        key=BUDGETS,
        group_name=BUDGETS_GROUP,
        tags={PRIVACY: INTERNAL},
        metadata=code_references("dpsynth_assets.report.budgets.read_budgets"),
        kinds={"html"},
        check_specs=check_specs(BUDGETS, {BUDGETS_HOLD: _HOLDS}),
        code_version=version_of("privacy budgets", 1),
        description=(
            "The budget of every cohort: ε (epsilon) spent and left, rounds left and the month "
            "in which they run out, guarantee, last run, disagreements that its audit found. "
            "Brought up to date after each run that ends with an audit trail, and hourly. Costs "
            f"nothing; reads only ledger and event log. {LEVELS}"
        ),
    )
    @public_section("The privacy budgets")
    def privacy_budgets(
        context: dg.AssetExecutionContext, ledger: PrivacyLedger
    ) -> dg.MaterializeResult:
        budgets = budgets_now(ledger.open(), context.instance)
        write_page(budgets)
        held = check_result(_EXPECTED, budgets.problems(), check_name=BUDGETS_HOLD)
        return dg.MaterializeResult(metadata=_metadata(budgets), check_results=[held])

    return dg.Definitions(assets=[privacy_budgets])
