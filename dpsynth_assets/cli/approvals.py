"""`dpsynth key` makes the key that signs; `dpsynth approve` approves what others will pay for."""

from typing import Annotated, Any

import typer
from rich.console import Console

from dpsynth_assets.cli.cohorts import CohortName, find_cohort
from dpsynth_assets.cli.terminal import AsJson, answer, say, show_table
from dpsynth_assets.paths import actor, home, signing_key
from dpsynth_assets.privacy.directed_rounding import declared
from dpsynth_assets.privacy.ledger.actors import make_key, read_key


def key(as_json: AsJson = False) -> None:
    """Print the public key of this installation; make a key, for its owner alone, if there is none.

    It signs what this installation writes to the ledger: charges, approvals, recoveries, purges.

    Args:
        as_json: Print JSON.
    """
    home()
    place = signing_key()
    made = make_key(place)
    public = read_key(place).name
    answer({"public_key": public, "file": str(place), "made": made}, as_json, lambda: say(public))


def approve(
    cohort: CohortName,
    as_json: AsJson = False,
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False,
) -> None:
    """Approve a cohort's plan with the key of this installation.

    Shows the releases of the plan and asks. An approval by the key that signs the charge does not
    count for it. After an edit of the dataset file, new approvals are needed.

    Args:
        cohort: Name of a declared private dataset.
        as_json: Print JSON.
        yes: Approve without asking; scripts need it.
    """
    from dpsynth_assets.methods.planning import plan_dataset
    from dpsynth_assets.releases.store import opened_ledger

    spec = find_cohort(cohort, to_spend=True)
    plan, ledger = plan_dataset(spec), opened_ledger(home().ledger_url)
    ledger.approvals(spec.dataset).check_approver(spec.account, plan.budget, actor())
    if not yes:
        _show(plan)
        typer.confirm("Approve this plan?", abort=True, err=True)
    entry = ledger.approve(spec.account, spec.dataset, plan.budget, plan.releases)
    held = ledger.approvals(spec.dataset)
    keys = held.given[str(entry.plan_digest)]
    rules = dict.fromkeys(held.rules(plan.budget))
    counts = [f"{len({*keys}.intersection(rule.keys))} of {rule.needed}" for rule in rules]
    facts = {"plan": entry.plan_digest, "entry": entry.seq, "approved_by": keys, "counts": counts}
    told = (
        f"Entry {entry.seq}: {entry.actor} approves plan {str(entry.plan_digest)[:12]} of "
        f"{spec.account}. It has {' and '.join(counts)} approvals; one by the payer does not count."
    )
    answer(facts, as_json, lambda: say(told))


def _show(plan: Any) -> None:
    """Prints the releases of a plan, and its budget."""
    of, at = declared(plan.budget.epsilon), declared(plan.budget.delta)
    title = f"Plan of {plan.terms.cohort}: ε = {of} at δ = {at}"
    columns = {
        "release": lambda each: each.asset,
        "event": lambda each: "ex-post" if each.event is None else type(each.event).__name__,
    }
    show_table(plan.releases, columns, title=title, to=Console(stderr=True))
