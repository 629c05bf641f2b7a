"""Audit of the public-token test: one transcript of AboveThreshold, named before any run.

A record makes every early distance small and the last one large: "near" seven times, then "far",
is the answer that betrays it most. Batches are independent trials of one real test.
"""

from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.attacks.audits.audit import Audit, AuditKind, Bug, Finding
from dpsynth_assets.attacks.audits.statistics import audit_event_counts, pure_curve
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest
from dpsynth_assets.privacy.token_meter import PrivateTokenMeter
from dpsynth_assets.privacy.units import NeighboringRelation

if TYPE_CHECKING:
    import torch

TRIALS = 20_000
NEAR_ANSWERS = 7
NOISE_SCALE, THRESHOLD = 1.0, 0.5
EXTREME = 50.0


class EqualBatches(PublicTokenTest):
    """The test, asked about batches of equal rows: their one distance is computed once.

    Noise, thresholds and payment, which are on trial, are the test's own for every batch.
    """

    def private_distances(
        self,
        private_logits: "torch.Tensor",
        public_logits: "torch.Tensor",
        batch_of_row: "torch.Tensor",
        active: np.ndarray,
        columns: "torch.Tensor | None" = None,
    ) -> "torch.Tensor":
        """Computes the first batch's distance; see `PublicTokenTest.private_distances`."""
        own, first = batch_of_row == int(active[0]), active[:1]
        distance = super().private_distances(
            private_logits[own], public_logits[:1], batch_of_row[own], first, columns
        )
        return distance.expand(len(active))


def _test(noise_scale: float) -> PublicTokenTest:
    """With s = 1 a batch holds the record or nobody: distances 0 and 2, or 1 and 1."""
    batch = BatchTerms(expected_batch_size=1, relation=NeighboringRelation.ADD_REMOVE)
    return EqualBatches(batch=batch, noise_scale=noise_scale, threshold=THRESHOLD)


def _count(test: PublicTokenTest, *, present: bool) -> int:
    """Runs TRIALS batches through the test; counts those that answered near, …, near, far."""
    import torch

    public = torch.tensor([EXTREME, -EXTREME])
    opened = test.open(PrivateTokenMeter(1, TRIALS))
    asking = np.arange(TRIALS)
    far = np.zeros(0, dtype=bool)
    for answer in range(NEAR_ANSWERS + 1):
        asking = asking[~far] if answer else asking
        record = public if answer < NEAR_ANSWERS else -public
        rows = record.repeat(len(asking) if present else 0, 1)
        batch_of_row = torch.from_numpy(asking[: len(rows)])
        far = opened.needs_private_token(rows, public.repeat(len(asking), 1), batch_of_row, asking)
    return int(far.sum())


def _transcript(noise_scale: float) -> Finding:
    drawing = _test(noise_scale)
    hits, alarms = _count(drawing, present=True), _count(drawing, present=False)
    curve = pure_curve(_test(NOISE_SCALE).epsilon)
    return Finding.of(audit_event_counts(hits, alarms, TRIALS, curve))


AUDITS = (
    Audit(
        name="public-token-test",
        mechanism="AboveThreshold over the distance to public tokens",
        events=("pure",),
        claim="However often it answers near, one instance tells no more than its pure ε.",
        measure="true-positive rate",
        kind=AuditKind.STATISTICAL,
        observe=lambda: _transcript(NOISE_SCALE),
        planted={Bug.HALVED_NOISE: lambda: _transcript(NOISE_SCALE / 2)},
    ),
)
