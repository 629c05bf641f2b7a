"""The sentences of a privacy label that depend on what was released; the words stand in YAML."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from dpsynth_assets.privacy.directed_rounding import rounded_down, rounded_up
from dpsynth_assets.privacy.events import (
    ComposedEvent,
    Event,
    MixtureGaussianEvent,
    is_post_processing,
)
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import LedgerEntry
from dpsynth_assets.privacy.units import NeighboringRelation

RECALL = "detector_recall"
"""Middle of the names of results that say what detectors of secrets miss."""

NOT_RUN = "not run"
"""Kind of an audit that concerns a release and of which no result with its settings is known."""

_NOISE = {"scale", "noise_std", "noise_multiplier"}
"""Numbers of an event that are told rounded down; losses, rates and shifts are rounded up."""
_LOSSES = {"eta", "epsilon", "sampling_probability"}


@cache
def texts() -> dict[str, Any]:
    """The words of `label_texts.yaml`, by section."""
    words = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(words))


def mechanism_sentence(event: Event) -> str:
    """Says in words what an accounting event did, with its public numbers."""
    sentences = texts()["mechanisms"]
    if is_post_processing(event):
        return str(sentences["post_processing"])
    if isinstance(event, ComposedEvent):
        return "; ".join(mechanism_sentence(part) for part in event.events)
    told = {each.name: _told(each.name, getattr(event, each.name)) for each in fields(event)}
    if isinstance(event, MixtureGaussianEvent):
        told["largest_shift"] = rounded_up(event.shifts[-1], ".4g")
        told["releases"] = "releases" if event.steps > 1 else "release"
    return str(sentences[type(event).__name__].format(**told))


def _told(name: str, value: Any) -> str:
    if name in _NOISE:
        return rounded_down(value, ".4g")
    return rounded_up(value, ".4g") if name in _LOSSES else str(value)


def not_protected(kinds: Collection[str], unit: str, relation: NeighboringRelation) -> list[str]:
    """Plain sentences on what guarantees of these kinds leave open.

    Only neighbours that lack a unit hide that it is there; the others have its ids or its place.
    """
    hidden = "presence" if relation is NeighboringRelation.ADD_REMOVE else "content"
    open_to = texts()["not_protected"]
    names = [
        *(["trends"] if set(kinds) == {GuaranteeType.DP} else []),
        *("labels", "public", "machine"),
        *(["ex_post"] if GuaranteeType.EX_POST in kinds else []),
        *(["secret", "leak"] if GuaranteeType.SECRET in kinds else []),
    ]
    return [open_to[name].format(hidden=hidden, unit=unit) for name in names]


def not_summed(kinds: Collection[str]) -> list[str]:
    """Lists what was deliberately left out of ε."""
    return [sentence for kind, sentence in texts()["not_summed"].items() if kind in kinds]


def losses_of_ledger(entries: Sequence[LedgerEntry]) -> list[str]:
    """States, for each loss that a person accepted, that what was lost is counted nowhere."""
    return [
        f"the ledger lost entries, and a person went on without them on {entry.recorded_at[:10]} "
        f"({entry.parameters.get('because', '')}): what they charged is counted nowhere"
        for entry in entries
        if entry.kind == "recovery" and entry.parameters.get("action") == "accept"
    ]


def is_recall(result: Mapping[str, Any]) -> bool:
    """Says whether a result among the audits is the recall of a detector of secrets."""
    return f"/{RECALL}/" in str(result.get("name", ""))


def is_not_run(result: Mapping[str, Any]) -> bool:
    """Says whether an item among the audits says that none was run."""
    return result.get("kind") == NOT_RUN
