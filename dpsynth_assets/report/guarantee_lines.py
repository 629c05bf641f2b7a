"""The lines of a card or a statement that say what is guaranteed, rendered from its label."""

from collections.abc import Mapping, Sequence
from typing import Any

from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up, rounded_down, rounded_up

_DP_PART = "epsilon_of_its_dp_releases_alone"
"""ε of a label whose subject as a whole has none."""


def guarantee_lines(label: Mapping[str, Any]) -> list[str]:
    """The guarantee of a privacy label, with its unit, neighbours and source of randomness."""
    guarantee = label["guarantee"]
    lines = [f"- Guarantee: {guarantee['definition']}."]
    if "epsilon" in guarantee:
        lines += _epsilon_lines(label)
    if _DP_PART in guarantee:
        lines += _dp_part_lines(guarantee)
    if "posterior" in guarantee:
        lines += _secret_lines(guarantee, label.get("detectors", ()))
    return [
        *lines,
        *_curve_lines(guarantee.get("spent", guarantee), of_dp_part=_DP_PART in guarantee),
        f"- Privacy unit: {label['privacy_unit']}.",
        f"- Neighbouring relation: {label['neighboring_relation']}: "
        f"{label['neighboring_relation_definition']}.",
        f"- Random numbers: {label['random_numbers']}.",
    ]


def _epsilon_lines(label: Mapping[str, Any]) -> list[str]:
    """ε and δ with what they rest on; for a cohort, what was spent beside what is guaranteed."""
    guarantee = label["guarantee"]
    whole = label["subject"]["kind"] == "cohort"
    covered = "everything charged to the cohort" if whole else "this release and those it builds on"
    lines = [
        f"- ε = {epsilon_up(guarantee['epsilon'])} at δ = {rounded_up(guarantee['delta'])} "
        f"for {covered} ({guarantee['accountant']} accounting)."
    ]
    if "basis" in guarantee:
        lines.append(f"- Basis of this ε: {guarantee['basis']}.")
    if "delta_is_doubled" in guarantee:
        lines.append(f"- This δ is {guarantee['delta_is_doubled']}.")
    if "spent" in guarantee:
        spent = guarantee["spent"]
        lines.append(
            f"- Spent so far: ε = {epsilon_up(spent['epsilon'])} of "
            f"{declared(guarantee['budget_epsilon'])}, {spent['is']}."
        )
    return lines


def _dp_part_lines(guarantee: Mapping[str, Any]) -> list[str]:
    """What holds for the DP releases of a cohort that as a whole has no (ε, δ)."""
    lines = [
        f"- Its (ε, δ)-DP releases seen alone, without the others: ε = "
        f"{epsilon_up(guarantee[_DP_PART])} at δ = {rounded_up(guarantee['delta'])} "
        f"({guarantee['accountant']} accounting). This is no guarantee of the whole cohort: it "
        "says nothing about who also sees a release of another kind."
    ]
    if "spent" in guarantee:
        spent = guarantee["spent"]
        lines.append(
            f"- Spent on them so far: ε = {epsilon_up(spent['epsilon'])} of "
            f"{declared(guarantee['budget_epsilon'])}, {spent['is']}."
        )
    return lines


def _curve_lines(curve: Mapping[str, Any], *, of_dp_part: bool) -> list[str]:
    """(ε, δ) at other points, and μ; of some releases of a cohort only, where it is said so."""
    lines = []
    of_whom = " of its DP releases alone" if of_dp_part else ""
    if "privacy_profile" in curve:
        points = ", ".join(
            f"({declared(point['epsilon'])}, {rounded_up(point['delta'], '.1e')})"
            for point in curve["privacy_profile"]
            if point["delta"] < 1
        )
        which = "What was spent" if "is" in curve else "The same"
        lines.append(f"- {which}{of_whom}, as (ε, δ) along the privacy profile: {points}.")
    if "gaussian_dp_mu" in curve:
        mu = rounded_up(curve["gaussian_dp_mu"], ".4g")
        lines.append(f"- As Gaussian DP{of_whom}: μ = {mu}.")
    return lines


_ADJACENCY = {
    "add-remove": "one dataset lacks every record that holds the secret",
    "replace-one": "the records that hold the secret have other content",
}


def _secret_lines(
    guarantee: Mapping[str, Any], detectors: Sequence[Mapping[str, Any]]
) -> list[str]:
    """(p, r) apart from every ε, and beside it what the detectors miss."""
    adjacency = [name for name in [guarantee["secret_adjacency"]] if name in _ADJACENCY]
    kinds = guarantee["kinds"] or [{"kind": "all", "promised": None, **guarantee}]
    return [
        f"- DP guarantee: {guarantee['dp_guarantee']}. The (p, r) below is no ε, and no ε follows "
        "from it.",
        *(_bound_line(kind, guarantee["occurrences"]) for kind in kinds),
        *([f"- Neighbours of a secret: {_ADJACENCY[name]}." for name in adjacency]),
        *(_recall_line(result) for result in detectors),
    ]


def _bound_line(kind: Mapping[str, Any], occurrences: int) -> str:
    """The promise first: what was reached so far is read off the ledger, and later charges add."""
    promised, reached = kind["promised"], rounded_up(kind["posterior"], ".3g")
    bound = f"{reached} after what was charged here so far"
    if promised is not None and kind["posterior"] <= promised:
        bound = f"{declared(promised)} after all that may ever be charged ({bound})"
    return (
        f"- Secrets of kind {kind['kind']}: one that is named with probability "
        f"{declared(kind['prior'])} before is named with at most {bound}, if at most "
        f"{kind.get('max_records', occurrences)} records hold it."
    )


def _recall_line(result: Mapping[str, Any]) -> str:
    kind, detector = result["kind"], result["detector"]
    if result["recall"] is None:
        return f"- Detector of {kind} ({detector}): recall not measured. {result['note']}"
    return (
        f"- Detector of {kind} ({detector}): found {result['found']} of {result['planted']} "
        f"planted secrets, recall {rounded_down(result['recall'], '.3f')}, at least "
        f"{rounded_down(result['recall_at_least'], '.3f')} "
        f"with 95% confidence on text like the public one. {result['note']}"
    )
