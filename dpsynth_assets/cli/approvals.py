"""`dpsynth key` makes a signing key; `dpsynth approve` approves a plan that others will run."""

import json
from operator import itemgetter
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from dpsynth_assets.cli.cohorts import CohortName, find_cohort
from dpsynth_assets.cli.terminal import complain, printable, say, show_table
from dpsynth_assets.files.kept import version_of
from dpsynth_assets.paths import actor, home, signing_key
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up
from dpsynth_assets.privacy.events import event_from_json
from dpsynth_assets.privacy.ledger import BudgetTerms, Ledger, LedgerEntry
from dpsynth_assets.privacy.ledger.accounts import approval_entry
from dpsynth_assets.privacy.ledger.actors import Approvals, make_key, read_key
from dpsynth_assets.privacy.ledger.schema import APPROVAL, asked_for

_NAMES = {"relation": "neighbouring relation", "unit": "privacy unit"}


def key() -> None:
    """Print the public key of this installation; make a key, for its owner alone, if there is none.

    It signs what this installation writes to the ledger: charges, approvals, recoveries, purges.
    """
    home()
    place = signing_key()
    make_key(place)
    say(read_key(place).name)


def approve(
    cohort: CohortName,
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False,
) -> None:
    """Approve a cohort's plan with the key of this installation.

    Shows all that is signed, beside what was approved before, and asks. An approval by the key that
    signs the charge does not count for it. After an edit of the dataset file, new approvals are
    needed.

    Args:
        cohort: Name of a declared private dataset.
        yes: Approve without asking; scripts need it.
    """
    from dpsynth_assets.methods.planning import plan_dataset
    from dpsynth_assets.releases.store import opened_ledger

    spec = find_cohort(cohort, to_spend=True)
    plan, ledger = plan_dataset(spec), opened_ledger(home().ledger_url)
    held = ledger.approvals(spec.dataset)
    held.check_approver(spec.account, plan.budget, actor())
    _show(spec, plan, ledger)
    _warn(held, plan.budget)
    if not yes:
        typer.confirm("Approve this plan?", abort=True, err=True)
    entry = ledger.approve(spec.account, spec.dataset, plan.budget, plan.releases)
    held, approved = ledger.approvals(spec.dataset), str(entry.plan_digest)
    rules = {asked_for(rule): rule for rule in held.rules(plan.budget)}
    counts = [f"{held.count(approved, rule)} of {rule.needed}" for rule in rules.values()]
    say(
        f"Entry {entry.seq}: {entry.actor} approves plan {approved[:12]} of {spec.account}. It has "
        f"{' and '.join(counts)} approvals; one by the payer does not count."
    )


def _show(spec: Any, plan: Any, ledger: Ledger) -> None:
    """Prints all that is signed, beside the plan that was approved before, and the dataset file.

    That plan is the last that this key approved, if any: one that another key approved since could
    hide an edit.
    """
    new = approval_entry(spec.account, spec.dataset, plan.budget, plan.releases)
    given = [each for each in ledger.stream(spec.account) if each.kind == APPROVAL]
    others = [each for each in given if each.plan_digest != new.plan_digest]
    own = [each for each in others if each.actor == actor().name]
    now, then = _signed(new), dict[str, str]()
    columns: dict[str, Any] = {"": itemgetter(0), "this plan": itemgetter(1)}
    if earlier := (own or others)[-1:]:
        then, title = _signed(earlier[0]), f"approved in entry {earlier[0].seq}"
        columns[title] = lambda row: "the same" if row[1] == row[2] else row[2]
    title = f"Plan {new.plan_digest}: one round takes ε = {epsilon_up(plan.total_epsilon)}"
    rows = [(name, now.get(name, "—"), then.get(name, "—")) for name in now | then]
    show_table(rows, columns, title=title, to=Console(stderr=True))
    fields = spec.model_dump(mode="json", exclude_defaults=True)
    say("The dataset file, without defaults:", yaml.safe_dump(fields, sort_keys=False), err=True)


def _signed(entry: LedgerEntry) -> dict[str, str]:
    """Every term, the dataset file's digest, and every release, as a table shows them."""
    from dpsynth_assets.report.label_texts import mechanism_sentence

    terms = BudgetTerms.from_json(entry.terms_json or "")
    bounds = terms.secret.bounds if terms.secret else ()
    held = terms.secret and f", in at most {terms.secret.occurrences} records"
    told = {_NAMES.get(name, name): str(value) for name, value in vars(terms).items()} | {
        "epsilon": f"ε = {declared(terms.epsilon)}",
        "delta": f"δ = {declared(terms.delta)}",
        "privacy unit": terms.unit.describe(),
        "public_facts": "; ".join(terms.public_facts) or "None",
        "secret": "; ".join(f"prior {p}, posterior {r}{held}" for p, r in bounds) or "None",
        "approvals": asked_for(terms.approvals),
        "dataset file": terms.approvals.declaration[:12] if terms.approvals else "not signed",
    }
    for asset, event in json.loads(entry.plan_json or ""):
        sentence = "ex-post" if event is None else mechanism_sentence(event_from_json(event))
        # The sentence rounds its numbers; the digest is of all of them.
        told[asset] = f"{sentence} ({version_of(event)})"
    return {printable(name): printable(value) for name, value in told.items()}


def _warn(held: Approvals, terms: BudgetTerms) -> None:
    """Says that an edit changes who must approve."""
    stands, asked = held.standing, terms.approvals
    if stands is None or asked_for(stands) == asked_for(asked):
        return
    stronger = asked and asked.needed >= stands.needed and {*asked.keys} <= {*stands.keys}
    complain(
        f"This plan {'changes' if stronger else 'LOWERS'} the required approvals: from "
        f"{asked_for(stands)} to {asked_for(asked)}. The new rule holds once the plan is charged."
    )
