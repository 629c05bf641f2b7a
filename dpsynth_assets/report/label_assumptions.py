"""Assumptions of the proofs behind a label, one sentence of `label_texts.yaml` each.

Some depend on how a release was made: how private texts were embedded, which records shared a pass
when gradients were clipped or states were read, and what a self-test of logits found.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from dpsynth_assets.privacy.directed_rounding import rounded_down
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    MixtureGaussianEvent,
    PoissonGaussianEvent,
    TruncatedPoissonGaussianEvent,
    flatten,
    is_post_processing,
)
from dpsynth_assets.privacy.guarantees import EMBEDDINGS, GRADIENTS, RESTS_ON, SELF_TEST, STATES
from dpsynth_assets.privacy.ledger import LedgerEntry
from dpsynth_assets.report.label_texts import texts

_CONCERNS: Mapping[str, Callable[[Event], bool]] = {
    "whole_numbers": lambda e: isinstance(e, DiscreteLaplaceEvent | DiscreteGaussianEvent),
    "logits": lambda e: isinstance(e, BoundedRangeEvent),
    "probabilities": lambda e: isinstance(e, BoundedRangeEvent),
    # One step is a sampled mean, on an exact lattice.
    "sampling": lambda e: (
        isinstance(e, PoissonGaussianEvent | TruncatedPoissonGaussianEvent) and e.steps > 1
    ),
    "secrets": lambda e: isinstance(e, MixtureGaussianEvent),
}
"""Whether a charged event rests on an assumption. What follows from a charge's parameters instead
(gradients, states, embeddings) has a function of its own below."""


def assumptions(
    atoms: Sequence[Event],
    exact_sums: Collection[bool] = (),
    exact_logits: Collection[bool] = (False,),
) -> list[str]:
    """Lists what the proofs assume of arithmetic and of the machine.

    Args:
        atoms: What was charged.
        exact_sums: Of each training among it, whether gradients were added up exactly.
        exact_logits: Of each corpus of private draws among it, whether logits were exact.
    """
    names = ["unpredictable"]
    for name, concerns in _CONCERNS.items():
        if any(map(concerns, atoms)):
            logits = [
                "logits_exact" if exact else "logits_slack" for exact in sorted({*exact_logits})
            ]
            names += logits if name == "logits" else [name]
    names += ["sums_float64" if exact else "sums_float32" for exact in sorted({*exact_sums})]
    return [texts()["assumptions"][name] for name in names]


def exact_logits_of_draws(charges: Sequence[LedgerEntry]) -> list[bool]:
    """Reads off the charges of private prediction whether logits were computed exactly."""
    return [
        entry.parameters.get("decoder") == "exact"
        for entry in charges
        if entry.event is not None
        and any(isinstance(atom, BoundedRangeEvent) for atom in flatten(entry.event))
    ]


def exact_sums_of_training(charges: Sequence[LedgerEntry]) -> list[bool]:
    """Reads off the charges of each training whether gradients were added up exactly."""
    return [
        bool(entry.parameters.get("exact_sums", False))
        for entry in charges
        if entry.event is not None
        and not is_post_processing(entry.event)
        and "learning_rate" in entry.parameters
    ]


def pass_assumptions(charges: Sequence[LedgerEntry]) -> list[str]:
    """Lists assumptions about records that share passes, one sentence each, once."""
    paid = (e for e in charges if e.event is not None and not is_post_processing(e.event))
    return list(dict.fromkeys(sentence for entry in paid for sentence in _of_passes(entry)))


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
    if SELF_TEST in facts:
        yield stated["logits_tested"].format(**facts[SELF_TEST])


def embedding_assumptions(charges: Sequence[LedgerEntry]) -> list[str]:
    """Lists assumptions of releases that rest on embeddings, one sentence each, once."""
    stated = texts()["assumptions"]
    sentences: list[str] = []
    for entry in charges:
        if entry.event is not None and is_post_processing(entry.event):
            continue
        made_by = entry.parameters.get(RESTS_ON, {}).get(EMBEDDINGS)
        if made_by is not None:
            sentences += [embedded(made_by), stated["nearest"]]
    return list(dict.fromkeys(sentences))


def embedded(made_by: Mapping[str, Any]) -> str:
    """Says, by the arithmetic of the embedder, why one record does not move another's embedding."""
    sentence = texts()["assumptions"]["embedded"][str(made_by["arithmetic"])]
    return str(sentence.format(**made_by))
