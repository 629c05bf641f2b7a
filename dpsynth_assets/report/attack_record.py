"""Findings of attacks, by the settings they ran with: printed on labels, or stopping them.

A result speaks for a release only if both were made with the same settings: method and its code,
parameters and prompts, event, declared terms, language model. So each result carries a digest of
these, a release's digest is computed from its charge in the ledger, and a label names every attack
that concerns a release, with the result of that digest or the words that there is none.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_assets.attacks.catalogue import CLAIMS
from dpsynth_assets.files.identity import version_of
from dpsynth_assets.methods.base import REJECTION, Method
from dpsynth_assets.methods.dataset_plan import PlannedMethod
from dpsynth_assets.methods.registry import REGISTRY
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import rounded_down, rounded_up
from dpsynth_assets.privacy.events import Event, event_to_json
from dpsynth_assets.privacy.guarantees import RESTS_ON
from dpsynth_assets.privacy.ledger import BudgetTerms, LedgerEntry
from dpsynth_assets.report.label import charges_behind
from dpsynth_assets.report.label_texts import NOT_RUN

if TYPE_CHECKING:
    from dpsynth_assets.attacks.audits import AuditResult

CODE_VERSION = "2"
"""Raised when what an attack does changes: results of the older code are then not printed."""


def attacks_of(method: type[Method[Any]]) -> tuple[str, ...]:
    """Names of the results of the attacks that concern a method."""
    return tuple(name for attack in method.attacks for name in attack.results)


def attacks_file() -> Path:
    """Folder of the results: beside the mechanism audits, whose names are the registry's."""
    return home().audits.with_name("attacks.json")


def model_identity(manifest: Mapping[str, Any]) -> str:
    """Names a public language model as charges do: by its content-addressed folder."""
    return str(manifest["path"]).rsplit("/", maxsplit=1)[-1]


def settings_of_method(planned: PlannedMethod, terms: BudgetTerms, language_model: str) -> str:
    """Digest of what a method would be charged for with this model."""
    method, plan = planned.method, planned.plan
    return _digest(
        method.name, method.code_version, plan.event, plan.parameters, terms, language_model
    )


def settings_of_charge(entry: LedgerEntry) -> str:
    """Digest of what a release was made with, from its charge."""
    parameters = entry.parameters
    inputs = parameters.pop("inputs", None) or {}
    model = str(inputs.get("language_model", ""))
    return _digest(entry.mechanism, entry.code_version, entry.event, parameters, entry.terms, model)


def _digest(
    mechanism: str,
    code_version: str,
    event: Event | None,
    parameters: Mapping[str, Any],
    terms: BudgetTerms | None,
    language_model: str,
) -> str:
    declared = None if terms is None else (str(terms.relation), asdict(terms.unit), terms.delta)
    priced = None if event is None else event_to_json(event)
    # Facts about how it was made, which no plan holds, and what no charge depends on.
    stated = ("inputs", RESTS_ON, REJECTION)
    plain = {name: value for name, value in parameters.items() if name not in stated}
    return version_of(
        CODE_VERSION, mechanism, code_version, priced, plain, declared, language_model
    )


def save_attacks(results: "Sequence[AuditResult]") -> None:
    """Records results by name and settings; a refuted claim stays refuted under its settings.

    A later run that finds nothing proves nothing. Other settings, or a raised code version, are
    other settings.
    """
    from dpsynth_assets.attacks.audits import latest_results, save_results

    path = attacks_file()
    refuted = {(each.name, each.settings) for each in latest_results(path) if not each.passed}
    save_results(path, [each for each in results if (each.name, each.settings) not in refuted])


def attacks_on(entry: LedgerEntry) -> list[dict[str, Any]]:
    """Every attack that concerns a release, as a label prints it.

    Returns:
        A mapping an attack: its result under the settings of the release, or, with `passed` None
        and the kind `NOT_RUN`, that none is on record. Empty where no attack concerns the method.
    """
    from dpsynth_assets.attacks.audits import latest_results

    method = REGISTRY.get(entry.mechanism)
    names = attacks_of(method) if method is not None else ()
    if not names:
        return []
    settings, target = settings_of_charge(entry), entry.asset.rpartition("/")[0]
    found = {
        each.name: each for each in latest_results(attacks_file()) if each.settings == settings
    }
    return [_printed(f"{target}/{name}", found, settings) for name in names]


def attacks_on_release(entries: Sequence[LedgerEntry], reservation: str) -> list[dict[str, Any]]:
    """What `attacks_on` says of a release and of all it builds on, whose claims it inherits.

    Raises:
        PrivacyError: The ledger holds no such charge.
    """
    charged = charges_behind(entries, reservation)
    return [attack for entry in charged for attack in attacks_on(entry)]


def attacks_on_cohort(cohort: str, entries: Sequence[LedgerEntry]) -> list[dict[str, Any]]:
    """What `attacks_on` says of the last release of each of a cohort's assets."""
    committed = {entry.reservation for entry in entries if entry.kind == "commit"}
    last = {
        entry.asset: entry
        for entry in entries
        if entry.kind == "reserve" and entry.cohort == cohort and entry.reservation in committed
    }
    return [attack for entry in last.values() for attack in attacks_on(entry)]


def refusal(attacks: Sequence[Mapping[str, Any]]) -> str | None:
    """Says in one line why a release may not be published; None if no claim was refuted."""
    refuted = [attack for attack in attacks if attack["passed"] is False]
    if not refuted:
        return None
    found = "; ".join(
        f"{attack['name']} ({attack['finished_at']}): {rounded_down(attack['observed'], '.4g')} "
        "where "
        f"{rounded_up(attack['claimed'], '.4g')} is claimed ({attack['measure']})"
        for attack in refuted
    )
    return (
        f"Expected every attack on these very settings to leave the claim standing, got {found}. "
        "Nothing was published; do not use this release, and change the method's settings or mend "
        "its code and raise its version."
    )


def _printed(name: str, found: "Mapping[str, AuditResult]", settings: str) -> dict[str, Any]:
    claim, measure = CLAIMS[name.rpartition("/")[2].split(" ")[0]]
    meaning = {"claim": claim, "measure": measure}
    if name in found:
        return json.loads(json.dumps(found[name].printed())) | meaning
    return {"name": name, "kind": NOT_RUN, "passed": None, "settings": settings, **meaning}
