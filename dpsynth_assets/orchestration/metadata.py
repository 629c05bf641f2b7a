"""Metadata of assets in the UI: spend, plotted over time, papers, code, privacy level."""

import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg

from dpsynth_assets.methods.registry import REGISTRY
from dpsynth_assets.privacy.accounting import epsilon_of_fixed, epsilon_with_inputs
from dpsynth_assets.privacy.directed_rounding import epsilon_up, rounded_down, rounded_up
from dpsynth_assets.privacy.events import Event, event_to_json
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import BudgetTerms, CohortSpend, Ledger, Reservation
from dpsynth_assets.report.pages import budget_in_words

SHOWN_DIGITS = 12

_CITED = re.compile(r"^.*? \d{4}")
"""Beginning of the paper of a method: authors and year, as descriptions name it."""


def as_shown(spec: dg.AssetSpec) -> dg.AssetSpec:
    """An asset as the UI shows it: papers linked."""
    return spec.replace_attributes(description=with_paper_links(spec.description or ""))


def bound_up(value: float) -> float:
    """A bound as a number of metadata, which the UI draws: six significant digits, rounded up."""
    return float(rounded_up(value))


def bound_down(value: float) -> float:
    """What is left, as a number of metadata: six significant digits, rounded down."""
    return float(rounded_down(value))


def short_digest(digest: str) -> dg.MarkdownMetadataValue:
    """A digest as its first digits, a link that leads nowhere and has the whole as its address."""
    return dg.MetadataValue.md(f"[{digest[:SHOWN_DIGITS]}](#{digest})")


def compared(expected: str, problems: Sequence[str]) -> dict[str, Any]:
    """Metadata of a check: what it expects beside what it found, a line a problem.

    Args:
        expected: What holds where nothing is wrong.
        problems: What was found instead; empty if nothing is wrong.
    """
    observed = "\n\n".join(problems) if problems else "as expected"
    return {"expected": expected, "observed": dg.MetadataValue.md(observed)}


def check_specs(
    asset: dg.AssetKey, checks: Mapping[str, str], *, blocking: bool = False
) -> list[dg.AssetCheckSpec]:
    """Checks of one asset, from their names and what each says when it holds."""
    return [
        dg.AssetCheckSpec(name=name, asset=asset, blocking=blocking, description=text)
        for name, text in checks.items()
    ]


def check_result(expected: str, problems: Sequence[str], **more: Any) -> dg.AssetCheckResult:
    """Result of a check, as `compared` shows it; `more` are other fields of it."""
    shown = compared(expected, problems)
    return dg.AssetCheckResult(passed=not problems, metadata=shown, **more)


@cache
def _papers() -> dict[str, str]:
    """Citation -> arXiv number, of the papers of all methods."""
    cited = ((_CITED.match(method.paper), method.arxiv) for method in REGISTRY.values())
    return {found[0]: arxiv for found, arxiv in cited if found is not None and arxiv}


def with_paper_links(description: str) -> str:
    """Turns each citation of a description into a Markdown link to its paper."""
    papers = _papers()
    citation = rf"(?<!\[)\b(?:{'|'.join(map(re.escape, papers))})\b"

    def link(found: re.Match[str]) -> str:
        return f"[{found[0]}](https://arxiv.org/abs/{papers[found[0]]})"

    return re.sub(citation, link, description)


def code_references(*names: str) -> dict[str, Any]:
    """Definition metadata that names the code behind an asset, as files and lines of this machine.

    Args:
        names: Dotted names of classes or functions of this package. Their modules are not
            imported, so that opening the UI stays quick.

    Raises:
        ValueError: If a module has no such class or function.
    """
    return {
        "dagster/code_references": dg.CodeReferencesMetadataValue(
            code_references=[_reference(name) for name in names]
        )
    }


def code_of(value: object) -> str:
    """Dotted name of a class, or of an object's class, for `code_references`."""
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _reference(name: str) -> dg.LocalFileCodeReference:
    module, _, symbol = name.rpartition(".")
    path = _file_of(module)
    starts = (f"class {symbol}", f"def {symbol}(")
    for number, line in enumerate(_lines(path), start=1):
        if line.startswith(starts):
            return dg.LocalFileCodeReference(
                file_path=str(path), line_number=number, label=path.name
            )
    raise ValueError(f"Expected a class or function {symbol!r} in {path}, got none.")


def _file_of(module: str) -> Path:
    """Finds a module's file without importing it; a method may come from another package."""
    inside = Path(__file__).parents[2] / f"{module.replace('.', '/')}.py"
    if inside.exists():
        return inside
    imported = sys.modules.get(module)  # A class from outside was imported by its entry point.
    return Path(str(imported.__file__)) if imported is not None else inside


@cache
def _lines(path: Path) -> tuple[str, ...]:
    return tuple(path.read_text().splitlines())


def spend_metadata(
    ledger: Ledger, reservation: Reservation, terms: BudgetTerms, *, inherited: Sequence[Event] = ()
) -> dict[str, Any]:
    """Privacy spend of one release as asset metadata.

    Args:
        ledger: The ledger that holds the reservation.
        reservation: What was charged or reused.
        terms: The cohort's declared budget.
        inherited: Events of the releases this one builds on, e.g. the histogram behind a corpus.

    Returns:
        Keys under `dpsynth/`. `epsilon` is what a reader of this asset gets, inputs included;
        `epsilon_alone` is this release by itself; a reused release shows `epsilon_charged` 0.
    """
    request = reservation.request
    spend, charge = ledger.spend(request.cohort, terms), ledger.charge(reservation.id)
    cost = _cost(reservation, terms, inherited)
    guarantee, unit = str(request.guarantee), terms.unit.describe()
    metadata: dict[str, Any] = {
        **in_words(guarantee, cost.get("dpsynth/epsilon"), unit, spend),
        "dpsynth/guarantee": guarantee,
        **cost,
        **account_metadata(spend),
        "dpsynth/guaranteed_by": spend.basis,
        **_secret(request.guarantee, spend),
        "dpsynth/delta": spend.delta,
        "dpsynth/accountant": terms.accountant,
        "dpsynth/neighboring_relation": str(terms.relation),
        "dpsynth/privacy_unit": unit,
        "dpsynth/ledger_reservation": reservation.id,
        "dpsynth/charged_by": "" if charge is None else charge.acted_by,
        "dpsynth/reused": reservation.reused,
    }
    if request.event is not None:
        metadata["dpsynth/accounting_event"] = dg.MetadataValue.json(event_to_json(request.event))
    return metadata


def _secret(guarantee: GuaranteeType, spend: CohortSpend) -> dict[str, Any]:
    """(p, r) of everything charged, apart from every ε: there is none."""
    if guarantee is not GuaranteeType.SECRET:
        return {}
    return {
        "dpsynth/dp_guarantee": "none",
        "dpsynth/secret_prior": spend.secret_prior,
        "dpsynth/secret_posterior": spend.secret_posterior,
    }


def account_metadata(spend: CohortSpend) -> dict[str, Any]:
    """What an account spent, what is guaranteed of all of it, and what is left."""
    return {
        "dpsynth/epsilon_cumulative": bound_up(spend.epsilon),
        "dpsynth/epsilon_guaranteed": bound_up(spend.guaranteed_epsilon),
        "dpsynth/epsilon_remaining": bound_down(spend.remaining_epsilon or 0.0),
        "dpsynth/cohort_guarantee": spend.total_guarantee,
    }


def in_words(
    guarantee: str, epsilon: float | None, unit: str, spend: CohortSpend
) -> dict[str, str]:
    """A release in two lines, for a reader to whom the numbers below them mean little.

    Args:
        guarantee: Its kind.
        epsilon: ε of the release with all it builds on; None where it has none.
        unit: Whose presence is hidden.
        spend: Of its account; what was spent and what is guaranteed is shown rounded up, what is
            left rounded down.
    """
    held = f"not (ε, δ)-DP; its guarantee is {guarantee}"
    if epsilon is not None:
        held = f"({epsilon_up(epsilon)}, {rounded_up(spend.delta)})-DP for {unit}, inputs included"
    return {
        "dpsynth/in_words": held,
        "dpsynth/budget": (
            budget_in_words(spend.epsilon, spend.budget_epsilon, spend.remaining_epsilon)
            + f"; guaranteed: ε = {epsilon_up(spend.guaranteed_epsilon)}"
        ),
    }


def _cost(
    reservation: Reservation, terms: BudgetTerms, inherited: Sequence[Event]
) -> dict[str, float]:
    """ε of the release with what it builds on, of it alone, and what this run charged."""
    event = reservation.request.event
    if event is None or reservation.request.guarantee is GuaranteeType.SECRET:
        return {"dpsynth/epsilon_charged": 0.0}
    alone = epsilon_of_fixed([event], terms.delta, terms.accountant)
    return {
        "dpsynth/epsilon": bound_up(
            epsilon_with_inputs([*inherited, event], terms.delta, terms.accountant, terms.epsilon)
        ),
        "dpsynth/epsilon_alone": bound_up(alone),
        "dpsynth/epsilon_charged": 0.0 if reservation.reused else bound_up(alone),
    }
