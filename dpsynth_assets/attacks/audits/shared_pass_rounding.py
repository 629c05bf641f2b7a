"""Audit of rounding in forward passes: how far a record moves a draw through rows of its pass.

A batch holds many times the records that it was meant for. A record goes, every row that shared a
pass with it moves by the whole slack in the worst direction, and the range of the log-likelihood
ratio is computed exactly.
"""

from collections.abc import Callable, Sequence

import numpy as np

from dpsynth_assets.attacks.audits.audit import Audit, AuditKind, Bug, Finding
from dpsynth_assets.attacks.audits.token_draws import ADD_REMOVE, extreme_row
from dpsynth_assets.privacy.batch_terms import BatchTerms, pass_rows, row_key
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism

ROWS, VOCABULARY, LOGIT_SLACK = 600, 8, 0.05
BATCH = BatchTerms(
    expected_batch_size=8, relation=ADD_REMOVE, logit_slack=LOGIT_SLACK, batches_per_pass=2
)
RECORDS_TRIED = 40

Cut = Callable[[Sequence[bytes], int], list[np.ndarray]]
"""Keys of rows and P to the rows of each pass."""


def _mates(cut: Cut, names: Sequence[int]) -> dict[int, frozenset[int]]:
    """Finds for each named row the rows of its pass."""
    room = BATCH.rows_per_pass
    passes = [
        frozenset(names[row] for row in rows) for rows in cut([row_key(n) for n in names], room)
    ]
    return {name: members for members in passes for name in members}


def _moved_rows(cut: Cut) -> int:
    """Counts the rows whose company changes when a record goes, at most over some records."""
    names = list(range(ROWS))
    before, most = _mates(cut, names), 0
    for gone in names[:RECORDS_TRIED]:
        after = _mates(cut, [name for name in names if name != gone])
        most = max(most, sum(before[name] != mates for name, mates in after.items()))
    return most


def _range(cut: Cut) -> Finding:
    import torch

    mechanism = MeanTokenMechanism(batch=BATCH, clip_bound=1.0, temperature=1.0)

    def scores(rows: np.ndarray) -> np.ndarray:
        logits = torch.as_tensor(rows, dtype=torch.float32)
        owner = torch.zeros(len(logits), dtype=torch.int64)
        return mechanism.private_scores(logits, owner, np.array([0]))[0].numpy()

    others = np.zeros((ROWS - 1, VOCABULARY))
    moved = others.copy()
    moved[: _moved_rows(cut)] = np.where(np.arange(VOCABULARY) == 1, LOGIT_SLACK, -LOGIT_SLACK)
    with_record = np.vstack([moved, extreme_row([1], VOCABULARY)])
    return Finding(
        claimed=mechanism.eta, observed=float(np.ptp(scores(with_record) - scores(others)))
    )


def _in_one_pass(keys: Sequence[bytes], _most_rows: int) -> list[np.ndarray]:
    """Planted: a pass holds whatever rows its batches hold."""
    return [np.arange(len(keys))]


AUDITS = (
    Audit(
        name="rows-of-a-pass",
        mechanism="forward passes of private contexts",
        events=("bounded_range",),
        claim="Rounding lets a record move no more rows than η counts, whatever a batch holds.",
        measure="range of the log-likelihood ratio",
        kind=AuditKind.EXACT,
        observe=lambda: _range(pass_rows),
        planted={Bug.UNBOUNDED_PASS: lambda: _range(_in_one_pass)},
    ),
)
