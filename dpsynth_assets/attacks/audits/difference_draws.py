"""Audit of token sampling by difference clipping: exact ranges over batches made to be hard.

Wrong aggregations are written out in NumPy, since the real mechanism cannot be set to them.
"""

from collections.abc import Callable

import numpy as np

from dpsynth_assets.attacks.audits.audit import Audit, AuditKind, Bug, Finding
from dpsynth_assets.attacks.audits.token_draws import (
    ADD_REMOVE,
    REPLACE_ONE,
    VOCABULARY,
    largest_range,
)
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism
from dpsynth_assets.privacy.units import NeighboringRelation

CLIP_BOUND, TEMPERATURE, BATCH_SIZE = 1.0, 1.0, 8
PUBLIC_LOGITS = np.random.default_rng(3).normal(0.0, 2.0, VOCABULARY)
"""A public prompt's logits: an invented input, hence a seed."""

MECHANISM = DifferenceTokenMechanism(
    batch=BatchTerms(expected_batch_size=BATCH_SIZE, relation=ADD_REMOVE),
    clip_bound=CLIP_BOUND,
    temperature=TEMPERATURE,
)


def _kernel_scores(rows: np.ndarray) -> np.ndarray:
    """Runs the tensor code of the kernel on one batch, in the logits' usual float32."""
    import torch

    logits = torch.as_tensor(rows, dtype=torch.float32).reshape(-1, VOCABULARY)
    public = torch.as_tensor(PUBLIC_LOGITS, dtype=torch.float32)
    support = torch.arange(VOCABULARY)
    return MECHANISM.private_scores(logits, public, torch.arange(len(logits)), support).numpy()


def _wrong_scores(
    rows: np.ndarray, *, clip_bound: float = CLIP_BOUND, private_denominator: bool = False
) -> np.ndarray:
    """Planted: differences left as they are, or divided by the private number of rows."""

    def log_softmax(logits: np.ndarray) -> np.ndarray:
        return logits - np.logaddexp.reduce(logits, axis=-1)[..., None]

    public = log_softmax(PUBLIC_LOGITS)
    differences = np.clip(log_softmax(rows) - public, -clip_bound, clip_bound)
    denominator = max(1, len(rows)) if private_denominator else BATCH_SIZE
    return (public + differences.sum(axis=0) / denominator) / TEMPERATURE


def _range(
    scores: Callable[[np.ndarray], np.ndarray], relation: NeighboringRelation = ADD_REMOVE
) -> Finding:
    return Finding(claimed=MECHANISM.eta, observed=largest_range(scores, relation))


AUDITS = (
    Audit(
        name="difference-token-range",
        mechanism="token drawn from public logits moved by clipped differences",
        events=("bounded_range",),
        claim="Under add-remove the log-likelihood ratio of a token ranges over at most η.",
        measure="range of the log-likelihood ratio",
        kind=AuditKind.EXACT,
        observe=lambda: _range(_kernel_scores),
        planted={
            Bug.WRONG_RELATION: lambda: _range(_kernel_scores, REPLACE_ONE),
            Bug.PRIVATE_DENOMINATOR: lambda: _range(
                lambda rows: _wrong_scores(rows, private_denominator=True)
            ),
            Bug.UNCLIPPED: lambda: _range(lambda rows: _wrong_scores(rows, clip_bound=np.inf)),
        },
    ),
)
