"""The sentences of a privacy label that depend on what was released; the words stand in YAML."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from dpsynth_assets.privacy.directed_rounding import rounded_down, rounded_up
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    ComposedEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    MixtureGaussianEvent,
    PoissonGaussianEvent,
    flatten,
    is_post_processing,
)
from dpsynth_assets.privacy.guarantees import (
    EMBEDDINGS,
    GRADIENTS,
    MEASURED_SLACK,
    RESTS_ON,
    SELF_TEST,
    STATES,
    GuaranteeType,
    NeighboringRelation,
)
from dpsynth_assets.privacy.ledger import LedgerEntry

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
        f"the ledger lost entries, and a person accepted the loss on {entry.recorded_at[:10]} "
        f"({entry.parameters.get('because', '')}): their charges are counted nowhere"
        for entry in entries
        if entry.kind == "recovery" and entry.parameters.get("action") == "accept"
    ]


def is_recall(result: Mapping[str, Any]) -> bool:
    """Says whether a result among the audits is the recall of a detector of secrets."""
    return f"/{RECALL}/" in str(result.get("name", ""))


def is_not_run(result: Mapping[str, Any]) -> bool:
    """Says whether an item among the audits says that none was run."""
    return result.get("kind") == NOT_RUN


# Assumptions of the proofs behind a label, one sentence of `label_texts.yaml` each.
#
# Some depend on how a release was made: how private texts were embedded, which records shared a
# pass when gradients were clipped or states were read, and what a self-test of logits found.

_CONCERNS: Mapping[str, Callable[[Event], bool]] = {
    "whole_numbers": lambda e: isinstance(e, DiscreteLaplaceEvent | DiscreteGaussianEvent),
    "logits": lambda e: isinstance(e, BoundedRangeEvent),
    "probabilities": lambda e: isinstance(e, BoundedRangeEvent),
    # One step is a sampled mean, on an exact lattice.
    "sampling": lambda e: isinstance(e, PoissonGaussianEvent) and e.steps > 1,
    "secrets": lambda e: isinstance(e, MixtureGaussianEvent),
}
"""Whether a charged event rests on an assumption. What follows from a charge's parameters instead
(gradients, states, embeddings) has a function of its own below."""


def assumptions(charges: Sequence[LedgerEntry]) -> list[str]:
    """Lists what the proofs behind these charges assume, one sentence each, once."""
    made = [(entry.event, entry.parameters) for entry in charges if entry.event is not None]
    atoms = [atom for event, _ in made for atom in flatten(event)]
    exact_logits = {
        told.get("decoder") == "exact"
        for event, told in made
        if any(isinstance(atom, BoundedRangeEvent) for atom in flatten(event))
    }
    exact_sums = {
        bool(told.get("exact_sums", False))
        for event, told in made
        if "learning_rate" in told and not is_post_processing(event)
    }
    names = ["unpredictable"]
    logits = ["logits_exact" if exact else "logits_slack" for exact in sorted(exact_logits)]
    for name, concerns in _CONCERNS.items():
        if any(map(concerns, atoms)):
            names += logits if name == "logits" else [name]
    names += ["sums_float64" if exact else "sums_float32" for exact in sorted(exact_sums)]
    stated = [texts()["assumptions"][name] for name in names]
    return [*stated, *_of_paid(charges, _of_passes), *_of_paid(charges, _of_embeddings)]


def _of_paid(
    charges: Sequence[LedgerEntry], stated: Callable[[LedgerEntry], Iterator[str]]
) -> list[str]:
    """What each charge states, without those that cost nothing; ex-post ones are among them."""
    paid = (e for e in charges if e.event is None or not is_post_processing(e.event))
    return list(dict.fromkeys(sentence for entry in paid for sentence in stated(entry)))


def _of_passes(entry: LedgerEntry) -> Iterator[str]:
    stated = texts()["assumptions"]
    facts = entry.parameters.get(RESTS_ON, {})
    if GRADIENTS in facts:
        told = dict(facts[GRADIENTS])
        if told["passes"] == "shared":
            # An assumption of a smaller move is the stronger one: what is kept back covers it.
            told["gradient_slack"] = rounded_down(float(str(told["gradient_slack"])), ".3g")
        yield stated[f"gradients_{told['passes']}"].format(**told)
    if STATES in facts:
        yield stated["states_alone"]
    for name, sentence in ((SELF_TEST, "logits_tested"), (MEASURED_SLACK, "logits_measured")):
        if name in facts:
            told = {**facts[name], "by": rounded_up(facts[name].get("by", 0.0), ".3g")}
            yield stated[sentence].format(**told)
            if "rows" in told:
                yield stated["logits_passes"].format(**told)


def _of_embeddings(entry: LedgerEntry) -> Iterator[str]:
    made_by = entry.parameters.get(RESTS_ON, {}).get(EMBEDDINGS)
    if made_by is not None:
        yield embedded(made_by)
        yield texts()["assumptions"]["nearest"]


def embedded(made_by: Mapping[str, Any]) -> str:
    """Says, by the arithmetic of the embedder, why one record does not move another's embedding."""
    sentence = texts()["assumptions"]["embedded"][str(made_by["arithmetic"])]
    return str(sentence.format(**made_by))
