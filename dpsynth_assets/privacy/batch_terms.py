"""Declared facts about batches of records that are decoded together, on which every η depends.

Rows of a batch share forward passes, of which none holds more rows than a public number, and one
record moves few. Kernels round a row's numbers by its place in a pass and by the number of rows
there. So a record that comes or goes may move, by rounding, the logits of the rows that share a
pass with it before or after. `logit_slack` bounds how far; `pass_rows` keeps to the bound on how
many, for any private data (`BatchTerms.rows_per_pass`).

Letters: s expected batch size, c clip bound, τ temperature, P rows of one forward pass.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpsynth_assets.privacy.errors import check_at_least, check_positive
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.renyi import float_up

ROWS_PER_EXPECTED_ROW = 4.0
"""Room of a forward pass for each row that is expected in it; more rows are cut into more passes.

Only `logit_slack` uses it. Hashed batches have Poisson sizes: where s records are expected,
P(|Z| > 4s) < 1e-9 for s >= 8, so that passes are hardly ever cut where batches follow counts.
"""

_UP = 1.0 + 2.0**-48
"""Covers the roundings of a few float64 products."""


def changed_contexts(relation: NeighboringRelation, max_records_per_unit: int) -> int:
    """Bounds how many logit vectors enter or leave when one privacy unit changes.

    A record toggles the logit vector of one prompt: a prompt of several records counts only while
    it has all of them. Else it would turn into another one, which moves twice as much (B-000.1 of
    the errata).

    Args:
        relation: Declared neighbouring relation.
        max_records_per_unit: Records one unit may contribute (group privacy).

    Raises:
        ValueError: If `max_records_per_unit` is below 1.
    """
    check_at_least(1, max_records_per_unit=max_records_per_unit)
    return NeighboringRelation(relation).records_changed * max_records_per_unit


@dataclass(frozen=True, kw_only=True)
class BatchTerms:
    """Public facts of the batches from which tokens are drawn.

    Attributes:
        expected_batch_size: s >= 1, fixed and public; never the private number of rows.
        relation: Declared neighbouring relation.
        max_records_per_unit: Records one privacy unit may contribute.
        logit_slack: Largest move (sup norm) of any row's logits when other rows of its forward
            pass change; 0 for batch-invariant inference.
        batches_per_pass: Batches that are decoded in one forward pass.
        load: Records of a full batch, as a multiple of s; >= 1. Passes have room for this many.

    Raises:
        ValueError: If a field is outside its domain.
    """

    expected_batch_size: int
    relation: NeighboringRelation
    max_records_per_unit: int = 1
    logit_slack: float = 0.0
    batches_per_pass: int = 1
    load: float = 1.0

    def __post_init__(self) -> None:
        """Refuses facts outside their domain."""
        check_at_least(1, expected_batch_size=self.expected_batch_size)
        check_at_least(1, batches_per_pass=self.batches_per_pass, load=self.load)
        check_at_least(0, logit_slack=self.logit_slack)
        _ = self.changes

    @property
    def changes(self) -> int:
        """Logit vectors that may enter or leave when one privacy unit changes."""
        return changed_contexts(self.relation, self.max_records_per_unit)

    @property
    def rows_per_pass(self) -> int:
        """P, the most rows of one forward pass: what `slack_of_pass` charges, rounded down."""
        return math.floor(self._rows(self.expected_batch_size, self.batches_per_pass))

    @property
    def slack_of_pass(self) -> float:
        """Sum of the moves of all P rows of a forward pass, rounded up."""
        return self._slack(self.expected_batch_size, self.batches_per_pass)

    @property
    def slack_of_batch(self) -> float:
        """Sum of the moves of one batch's part of the P rows, rounded up."""
        return self._slack(self.expected_batch_size, 1)

    def eta(self, clip_bound: float, temperature: float) -> float:
        """Computes η of one token drawn from softmax(Σ clip_c(z) / (s τ)), rounded up.

        Args:
            clip_bound: c > 0; clipped logits are in [−c, c].
            temperature: τ > 0.

        Raises:
            ValueError: If an argument is outside its domain.

        **Privacy** A logit vector that comes or goes moves the scores by a vector in
        [−c/s, c/s]^V; the normaliser moves all log-probabilities alike, so the range is 2c/(sτ).
        Changes add up, within a batch and over batches. Slack: a row's clipped logits move in
        range by at most 2·logit_slack. A record shares forward passes with at most P rows,
        regardless of what the batches hold (`pass_rows` keeps to it), so at most P rows move. They
        may be of several batches. Where these draw together, the ranges of their draws add up to S
        = 2·logit_slack·P/(sτ). Where they draw at different steps (tokens that are not drawn
        privately come between), a step's range is a + s_t where the record's own batch draws, a
        = 2c/(sτ), and s_t elsewhere, with s_t <= S and Σ s_t <= rS: Σ (range)² <= r (a + S)², so
        zCDP charges no less. Exact composition is not proved for that, and plans refuse it.

        **Source** Amin et al. 2024, Lemma 3 and Lemma 4; factor 2 for replace-one from errata
        B-000.
        """
        check_positive("clip_bound", clip_bound)
        check_positive("temperature", temperature)
        one_vector = Fraction(clip_bound) / self.expected_batch_size
        numerical = Fraction(self._slack(1, self.batches_per_pass))
        exact = 2 * self.changes * (one_vector + numerical) / Fraction(temperature)
        return float_up(exact)

    def _rows(self, expected_rows: int, batches: int) -> float:
        """Computes ROWS_PER_EXPECTED_ROW · load · expected rows of each of the batches."""
        return ROWS_PER_EXPECTED_ROW * self.load * expected_rows * batches

    def _slack(self, expected_rows: int, batches: int) -> float:
        """Adds up how far logits of that many rows may move by one record, rounded up."""
        return self.logit_slack * self._rows(expected_rows, batches) * _UP


_PERSON = b"dpsynth-passes"
_KEY_BYTES = 32


def row_key(*parts: str | int) -> bytes:
    """Computes 32 bytes that name a row: a hash of what identifies it, independent of other rows.

    Args:
        parts: Such as the id of the record whose context it is.
    """
    digest = hashlib.blake2b(person=_PERSON, digest_size=_KEY_BYTES)
    for part in parts:
        text = str(part).encode()
        digest.update(len(text).to_bytes(8, "big") + text)
    return digest.digest()


def pass_rows(keys: Sequence[bytes], most_rows: int) -> list[np.ndarray]:
    """Cuts rows into passes of at most `most_rows` = P rows by the leading bits of their keys.

    All rows are one pass if they are P or fewer. More are cut in two by the first bit of their
    keys, each group that is still larger by the next bit, and so on.

    Args:
        keys: R distinct keys of `row_key`.
        most_rows: P >= 1, public.

    Returns:
        For each pass, in the order of the keys' bits, its (n,) int64 row indices, ascending; no
        pass is empty unless there are no rows at all, which is one pass.

    Raises:
        ValueError: If P < 1, or more than P rows have the same key.

    **Privacy** *A row that comes or goes changes the pass of at most P other rows.* Take the rows
    without it, and the part into whose bits it falls. That part has at most P rows, or is cut. If
    it is still a pass with the row added, only its rows share a pass with a new one. If it has P
    rows, the row makes it P + 1 and it is cut: these P rows have new passes, all of them inside the
    part. Where the row's bits lead into an empty part, it is a pass of its own. Parts elsewhere do
    not look at it. No assumption about the data, the hash or the number of rows is made, and
    nothing is refused or left out. The order of rows within a pass may follow the private data.

    **Source** Ours; a digital search tree with buckets (Fagin et al. 1979), which has no history.
    """
    check_at_least(1, most_rows=most_rows)
    joined = np.frombuffer(b"".join(keys), dtype=np.uint8)
    bits = np.unpackbits(joined.reshape(len(keys), _KEY_BYTES), axis=1)
    waiting, passes = [(np.arange(len(keys)), 0)], []
    while waiting:
        rows, depth = waiting.pop()
        if len(rows) <= most_rows:
            passes.append(rows)
        elif depth == 8 * _KEY_BYTES:
            raise ValueError(
                "Expected rows of distinct keys, got more of one key than a pass holds."
            )
        else:
            ones = bits[rows, depth] == 1
            waiting += [(part, depth + 1) for part in (rows[ones], rows[~ones]) if len(part)]
    return passes
