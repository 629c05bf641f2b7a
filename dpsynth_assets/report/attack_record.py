"""Findings of attacks, by the settings they ran with: printed on labels, stopping them, or kept.

A result speaks for a release only if both were made with the same settings: method and its code,
parameters and prompts, event, declared terms, language model. So each result carries a digest of
these, a release's digest is computed from its charge in the ledger, and a label names every attack
that concerns a release, with the result of that digest or the words that there is none.

An attack takes longer than most steps, and reads made-up or public records alone. What it found is
kept beside the results that labels print, under a digest of all that it depends on: settings, code,
libraries and machine. Findings that refute a claim are not kept: such an attack runs each time.

**Privacy** No private record is behind what is kept; attacks on private records must not be kept
it here.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dpsynth_assets.attacks.catalogue import CLAIMS
from dpsynth_assets.files.kept import JSON, found, version_of
from dpsynth_assets.files.whole import write_whole
from dpsynth_assets.methods.attack_runs import attacks_on as attacks_declared
from dpsynth_assets.methods.base import REJECTION, Method
from dpsynth_assets.methods.dataset_plan import PlannedMethod
from dpsynth_assets.methods.registry import REGISTRY
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import rounded_down, rounded_up
from dpsynth_assets.privacy.events import Event, event_to_json
from dpsynth_assets.privacy.guarantees import RESTS_ON
from dpsynth_assets.privacy.ledger import BudgetTerms, ChargeGraph, LedgerEntry
from dpsynth_assets.report.label_texts import NOT_RUN

if TYPE_CHECKING:
    from dpsynth_assets.attacks.audits.audit import AuditResult
    from dpsynth_assets.attacks.median_audit import BatchGap

CODE_VERSION = "2"
"""Raised when what an attack does changes: results of the older code are then not printed."""


def attacks_of(method: type[Method[Any]]) -> tuple[str, ...]:
    """Names of the results of the attacks that concern a method."""
    return tuple(name for attack in attacks_declared(method) for name in attack.results)


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
    model = str(entry.inputs.get("language_model", ""))
    return _digest(
        entry.mechanism, entry.code_version, entry.event, entry.parameters, entry.terms, model
    )


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
    charged = ChargeGraph(entries).charges_behind(reservation)
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
        f"Expected no attack on these settings to refute the claim, got {found}. Nothing was "
        "published; do not use this release, and change the method's settings or fix its code and "
        "raise its version."
    )


def _printed(name: str, found: "Mapping[str, AuditResult]", settings: str) -> dict[str, Any]:
    claim, measure = CLAIMS[name.rpartition("/")[2].split(" ")[0]]
    meaning = {"claim": claim, "measure": measure}
    if name in found:
        return json.loads(json.dumps(found[name].printed())) | meaning
    return {"name": name, "kind": NOT_RUN, "passed": None, "settings": settings, **meaning}


FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class MedianAudits:
    """Audits of the medians of a dataset's methods.

    Attributes:
        gaps: By folder of the method, what neighbours attain in each batch.
        results: What labels print of them.
    """

    gaps: "Mapping[str, tuple[BatchGap, ...]]"
    results: "tuple[AuditResult, ...]"


Finding = TypeVar("Finding")


def kept_attacks_folder() -> Path:
    """Folder of what is kept; to remove it makes every attack run again."""
    return home().audits.with_name("attacks_kept")


def kept_findings(
    asset: str,
    settings: str,
    kind: Any,
    run: Callable[[], Finding],
    results: Callable[[Finding], "Sequence[AuditResult]"],
) -> Finding:
    """Gives what an attack found under equal settings, or runs it and keeps that.

    Args:
        asset: Key of the attack's asset.
        settings: Digest of all that it depends on, code, libraries and machine aside.
        kind: Type of the findings.
        run: Runs it.
        results: What labels print of the findings; where one refutes a claim, none is kept.
    """
    from pydantic import TypeAdapter

    from dpsynth_assets.attacks.audits.audit import AuditResult
    from dpsynth_assets.attacks.circumstances import circumstances
    from dpsynth_assets.attacks.median_audit import BatchGap
    from dpsynth_assets.attacks.reconstruction import Overlap

    path = kept_attacks_folder() / f"{asset.replace('/', '.')}.json"
    digest = version_of(FORMAT, settings, circumstances())
    findings = TypeAdapter(kind)
    named = {each.__name__: each for each in (AuditResult, BatchGap, Overlap)}
    findings.rebuild(force=True, _types_namespace=named)

    def read(place: Path) -> Finding | None:
        kept = JSON.read(place)
        return findings.validate_python(kept["value"]) if kept["digest"] == digest else None

    if (known := found(path, read)) is not None:
        return known
    made = run()
    if all(each.passed for each in results(made)):
        value = findings.dump_python(made)
        write_whole(path, JSON.write({"digest": digest, "value": value}))
    else:
        path.unlink(missing_ok=True)
    return made
