"""Exact audit of drawn median tokens: how much of γ one context really accounts for.

Each drawn token's log-probability is computed again without each context, and with a crafted one
in its place. γ must bound every difference; the share of γ that a removal attains says how far
the worst case is from the contexts at hand. No sampling error: a violation is a proof.

**Source** Amin et al. 2025, appendix D.5.2, which removes contexts. Crafted contexts are ours: the
bound is for them, and the printed γ of even batches fails under replace-one alone (B-000.4).
Letters: n contexts of a batch, V vocabulary, N = n + 2p values of a padded column, m audited
contexts, C columns of a block.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpsynth_assets.attacks.audits.audit import Finding
from dpsynth_assets.privacy.clipping import clip_logits
from dpsynth_assets.privacy.median import MedianTokenMechanism
from dpsynth_assets.privacy.token_meter import PrivateTokenMeter
from dpsynth_assets.privacy.units import NeighboringRelation

if TYPE_CHECKING:
    import torch

BLOCK_ENTRIES = 1 << 21
"""Entries of one (m, C) block of neighbours' medians: 16 MiB."""


class TokenGaps(NamedTuple):
    """log P(x) − log P'(x) of one drawn token.

    Attributes:
        removed: (m,) without each audited context.
        crafted: (c,) with a crafted context added or, under replace-one, in the place of each
            audited one; first those that push the token up, then those that push it down.
    """

    removed: np.ndarray
    crafted: np.ndarray


def token_gaps(
    logits: np.ndarray,
    token: int,
    mechanism: MedianTokenMechanism,
    contexts: int | None = None,
) -> TokenGaps:
    """Compares a token's log-probability with that under neighbouring batches.

    Each column is partitioned once around its middle; which of its middle values become a
    neighbour's median follows from comparing the removed value with them.

    Args:
        logits: (n, V) of one batch, n >= 1, finite maxima.
        token: The drawn token, in [0, V).
        mechanism: Its clip bound, temperature and relation.
        contexts: Audit the first so many contexts only; None for all n.
    """
    clipped = clip_logits(logits, mechanism.clip_bound)
    audited = clipped[:contexts]
    replaced = mechanism.relation is NeighboringRelation.REPLACE_ONE
    totals: list[_LogSum] = []
    for start in range(0, clipped.shape[1], _columns(len(audited))):
        block = slice(start, start + _columns(len(audited)))
        own = token - start if start <= token < start + len(clipped[0, block]) else None
        medians = _neighbours(clipped[:, block], audited[:, block], mechanism.clip_bound, replaced)
        scores = [median / mechanism.temperature for median in medians]
        totals = totals or [_LogSum(len(part)) for part in scores]
        _add(totals, scores, own)
    log_p, log_removed, *log_crafted = (total.log_probability for total in totals)
    return TokenGaps(log_p - log_removed, log_p - np.concatenate(log_crafted))


def _columns(rows: int) -> int:
    return max(1, BLOCK_ENTRIES // max(1, rows))


def _neighbours(
    clipped: np.ndarray, audited: np.ndarray, bound: float, replaced: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Medians of a block: (1, C) own, (m, C) removed, and (m or 1, C) with an extreme value.

    Returns:
        Own median, median without each audited row, and median with −c and with +c in every
        column: in the place of each audited row where `replaced`, else added to all rows.
    """
    middle = _Middle(clipped, bound)
    total = middle.total
    own = middle.median(total, middle.value)[None]

    def kept(rank: int) -> np.ndarray:
        """Value of a rank once the audited row is gone: ranks above it move down by one."""
        return np.where(audited > middle.value(rank), middle.value(rank), middle.value(rank + 1))

    removed = middle.median(total - 1, kept)
    if replaced:
        low = middle.median(total, lambda rank: kept(rank - 1))
        return own, removed, low, middle.median(total, kept)
    low = middle.median(total + 1, lambda rank: middle.value(rank - 1))[None]
    return own, removed, low, middle.median(total + 1, middle.value)[None]


class _Middle:
    """Order statistics around the middle of each column, with two values ±c put at either end.

    The padding leaves medians as they are and defines those of tiny batches, as the kernel does.
    """

    def __init__(self, clipped: np.ndarray, bound: float) -> None:
        edges = np.full((2, clipped.shape[1]), bound)
        padded = np.vstack([-edges, clipped, edges])
        self.total = len(padded)
        self._first = (self.total - 1) // 2 - 1
        ranks = range(self._first, min(self.total, self._first + 4))
        self._values = np.partition(padded, list(ranks), axis=0)[list(ranks)]

    def value(self, rank: int) -> np.ndarray:
        """(C,) values of one zero-based rank."""
        return self._values[rank - self._first]

    def median(self, total: int, value: Callable[[int], np.ndarray]) -> np.ndarray:
        """Mean of the two middle ranks of `total` values; the same rank twice where odd."""
        return (value((total - 1) // 2) + value(total // 2)) / 2


class _LogSum:
    """log Σ exp over columns that arrive in blocks, and the score of the drawn token."""

    def __init__(self, rows: int) -> None:
        self._sum = np.full(rows, -np.inf)
        self._score = np.zeros(rows)

    def add(self, scores: np.ndarray, drawn: np.ndarray | None, own: int | None) -> None:
        """Adds (m, C) scores; `drawn` replaces column `own`, which holds the drawn token."""
        if own is not None and drawn is not None:
            scores = scores.copy()
            scores[:, own] = self._score = drawn[:, own]
        highest = scores.max(axis=1)
        block = highest + np.log(np.exp(scores - highest[:, None]).sum(axis=1))
        self._sum = np.logaddexp(self._sum, block)

    @property
    def log_probability(self) -> np.ndarray:
        """(m,) log-probabilities of the drawn token."""
        return self._score - self._sum


def _add(totals: list[_LogSum], scores: list[np.ndarray], own: int | None) -> None:
    """Adds a block: own, removed, token up and others down, token down and others up."""
    median, removed, low, high = scores
    pairs = ((median, median), (removed, removed), (low, high), (high, low))
    for total, (others, drawn) in zip(totals, pairs, strict=True):
        total.add(others, drawn, own)


@dataclass(frozen=True, kw_only=True)
class BatchGap:
    """One batch's bound and what neighbours attain of it, in natural-log units.

    Attributes:
        batch: Which batch.
        contexts: Contexts it held.
        tokens: Tokens drawn from it.
        claimed: Sum of the reported γ.
        removed: Largest |log P − log P'| of the whole draw over all removed contexts.
        crafted: Sum over tokens of the largest gap that a crafted context attains.
        excess: Largest rise of any single gap above its γ; never above 0 if γ is right.
    """

    batch: int
    contexts: int
    tokens: int
    claimed: float
    removed: float
    crafted: float
    excess: float

    @property
    def attained(self) -> float:
        """Share of the bound that removing a context attains."""
        return self.removed / self.claimed if self.claimed > 0 else 0.0


@dataclass
class MedianAudit:
    """Adds up the gaps of every draw of a run.

    Attributes:
        mechanism: The audited mechanism.
        contexts: Contexts audited in each batch, the first ones; None for all.
    """

    mechanism: MedianTokenMechanism
    contexts: int | None = None
    _sums: dict[int, "_Sums"] = field(default_factory=dict, repr=False)

    def observe(self, batch: int, logits: np.ndarray, token: int, gamma: float) -> None:
        """Audits one token that the mechanism drew from (n, V) logits and priced at γ.

        A batch without contexts has none to remove and is passed over.
        """
        if not len(logits):
            return
        gaps = token_gaps(logits, token, self.mechanism, self.contexts)
        sums = self._sums.setdefault(batch, _Sums(len(logits), np.zeros(len(gaps.removed))))
        sums.add(gaps, gamma)

    @property
    def batches(self) -> tuple[BatchGap, ...]:
        """What was found, by batch."""
        return tuple(sums.of(batch) for batch, sums in sorted(self._sums.items()))

    def finding(self) -> Finding:
        """Says whether any gap exceeds its γ: an excess above 0 is a proof against γ."""
        batches = self.batches
        worst = max((batch.excess for batch in batches), default=0.0)
        note = "; ".join(
            f"batch {b.batch}: γ {b.claimed:.3g}, by removal {b.removed:.3g} ({b.attained:.0%})"
            for b in batches
        )
        return Finding(claimed=0.0, observed=max(0.0, worst), note=note)


@dataclass
class _Sums:
    contexts: int
    removed: np.ndarray
    tokens: int = 0
    claimed: float = 0.0
    crafted: float = 0.0
    excess: float = -np.inf

    def add(self, gaps: TokenGaps, gamma: float) -> None:
        crafted = float(np.abs(gaps.crafted).max())
        self.removed += gaps.removed
        self.tokens += 1
        self.claimed += gamma
        self.crafted += crafted
        largest = max(crafted, float(np.abs(gaps.removed).max()))
        self.excess = max(self.excess, largest - gamma)

    def of(self, batch: int) -> BatchGap:
        return BatchGap(
            batch=batch,
            contexts=self.contexts,
            tokens=self.tokens,
            claimed=self.claimed,
            removed=float(np.abs(self.removed).max()),
            crafted=self.crafted,
            excess=self.excess,
        )


@dataclass(frozen=True, kw_only=True)
class WatchedMedian(MedianTokenMechanism):
    """The real mechanism, whose every draw is handed to an audit after it was made.

    Attributes:
        watch: Told batch, (n, V) logits, token and γ of each draw. For public logits only.
    """

    watch: Callable[[int, np.ndarray, int, float], None] = field(repr=False, compare=False)

    def select(
        self,
        private_logits: "torch.Tensor",
        batch_of_row: "torch.Tensor",
        active: np.ndarray,
        meter: PrivateTokenMeter,
        allowed: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws as the mechanism does, then shows the draws; refuses a mask of tokens."""
        if allowed is not None:
            raise ValueError("Expected no mask of allowed tokens in an audit, got one.")
        tokens, gamma = super().select(private_logits, batch_of_row, active, meter)
        for batch, token, bound in zip(active, tokens, gamma, strict=True):
            rows = private_logits[batch_of_row == int(batch)].double().cpu().numpy()
            self.watch(int(batch), rows, int(token), float(bound))
        return tokens, gamma
