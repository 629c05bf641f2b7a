"""Exact audit of drawn median tokens: how much of γ the contexts of one unit account for.

Each drawn token's log-probability is computed again without each context and, where a unit may
have more than one, without sets of as many; and with crafted contexts in their place. γ must bound
every difference; the share of γ that a removal attains says how far the worst case is from the
contexts at hand. No sampling error: a violation is a proof. Sets are sampled where they are too
many (`neighbour_sets`), and a unit's contexts all stand in one batch: where they spread, a batch
loses fewer of them, and the run's bound adds up batches.

Letters: n contexts of a batch, V vocabulary, k most contexts of a unit, N = n + 2(k + 1) values of
a padded column, m removed sets of r contexts each, C columns of a block.

**Source** Amin et al. 2025, appendix D.5.2, which removes contexts. Crafted contexts and sets are
ours: the bound is for them, and the printed γ of even batches fails under replace-one alone
(B-000.4).
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dpsynth_assets.attacks.audits.audit import Finding
from dpsynth_assets.privacy.clipping import clip_logits
from dpsynth_assets.privacy.directed_rounding import rounded_down, rounded_up
from dpsynth_assets.privacy.median import MedianTokenMechanism
from dpsynth_assets.privacy.token_selection import NextLogits, PrivateTokenMeter

BLOCK_ENTRIES = 1 << 21
"""Entries of one (r, m, C) block of neighbours' contexts: 16 MiB."""

CONTEXTS_IN_SETS = 64
"""Contexts that sampled sets of one batch hold together, so that a set of k costs as k of one."""

FEWEST_SETS = 8
SEED = 0  # of the choice of sets, which is public


class TokenGaps(NamedTuple):
    """log P(x) − log P'(x) of one drawn token.

    Attributes:
        removed: (m,) without each set of `neighbour_sets`, single contexts first.
        crafted: (c,) with k crafted contexts added or, where contexts turn into others, with
            crafted ones in the place of each set's; by size of the sets, first those that push the
            token up, then those that push it down.
    """

    removed: np.ndarray
    crafted: np.ndarray


def neighbour_sets(contexts: int, most: int, audited: int | None = None) -> tuple[np.ndarray, ...]:
    """Chooses which contexts leave a batch together: each alone, and k of them at once.

    The same for every token of a batch, so that gaps of a set add up over its draws.

    Args:
        contexts: n >= 1.
        most: k >= 1, most contexts of one unit.
        audited: Single contexts to remove, the first ones; None for all n.

    Returns:
        One (m, r) array of indices for each size: r = 1, and r = min(k, n) where that is more. Of
        the latter all sets if they hold `CONTEXTS_IN_SETS` contexts at most, or are `FEWEST_SETS`;
        else a sample of as many. Sizes in between are left out.
    """
    single = np.arange(contexts)[:audited, None]
    size = min(most, contexts)
    if size == 1:
        return (single,)
    room = max(FEWEST_SETS, CONTEXTS_IN_SETS // size)
    if math.comb(contexts, size) <= room:
        together = np.array(list(itertools.combinations(range(contexts), size)))
    else:
        draw = np.random.default_rng(SEED)
        together = np.array([draw.permutation(contexts)[:size] for _ in range(room)])
    return single, together


def token_gaps(
    logits: np.ndarray,
    token: int,
    mechanism: MedianTokenMechanism,
    contexts: int | None = None,
) -> TokenGaps:
    """Compares a token's log-probability with that under neighbouring batches.

    Args:
        logits: (n, V) of one batch, n >= 1, finite maxima.
        token: The drawn token, in [0, V).
        mechanism: Its clip bound, temperature, relation and unit.
        contexts: Audit this number of first contexts alone; None for all n.
    """
    clipped = clip_logits(logits, mechanism.clip_bound)
    sets = neighbour_sets(len(clipped), mechanism.max_records_per_unit, contexts)
    found = [_gaps_of_sets(clipped, token, mechanism, chosen) for chosen in sets]
    removed, crafted = zip(*found, strict=True)
    return TokenGaps(np.concatenate(removed), np.concatenate(crafted))


def _gaps_of_sets(
    clipped: np.ndarray, token: int, mechanism: MedianTokenMechanism, sets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(m,) gaps without each of (m, r) sets of rows, and (2,) or (2m,) with crafted rows.

    Each column is partitioned once around its middle; which of its middle values become a
    neighbour's median follows from comparing the removed values with them.
    """
    from scipy.special import logsumexp

    most = mechanism.max_records_per_unit
    replaced = mechanism.changes == 2 * most
    sums: list[list[np.ndarray]] = [[], [], [], []]  # log Σ exp of each block's columns.
    scores: list[np.ndarray] = []
    width = max(1, BLOCK_ENTRIES // sets.size)
    for start in range(0, clipped.shape[1], width):
        block = clipped[:, start : start + width]
        middle = _Middle(block, mechanism.clip_bound, most)
        gone = np.sort(block[sets.T], axis=0)
        medians = _neighbours(middle, gone, None if replaced else most)
        median, removed, low, high = (each / mechanism.temperature for each in medians)
        # Own, removed, token up and others down, token down and others up.
        pairs = ((median, median), (removed, removed), (low, high), (high, low))
        own = np.arange(start, start + block.shape[1]) == token
        for total, (others, drawn) in zip(sums, pairs, strict=True):
            total.append(logsumexp(np.where(own, drawn, others), axis=1))
        if own.any():
            scores = [drawn[:, own][:, 0] for _, drawn in pairs]
    log_p, log_removed, *log_crafted = (
        score - np.logaddexp.reduce(total) for score, total in zip(scores, sums, strict=True)
    )
    return log_p - log_removed, log_p - np.concatenate(log_crafted)


def _neighbours(
    middle: "_Middle", gone: np.ndarray, added: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Medians of a block: (1, C) own, (m, C) removed, and (m or 1, C) with extreme values.

    Args:
        middle: The block's order statistics.
        gone: (r, m, C) values of each removed set, ascending along the first axis.
        added: Crafted rows that join all rows; None: r of them take the places of each set.

    Returns:
        Own median, median without each set, and median with crafted rows of −c and with ones of +c.
    """
    total, size = middle.total, len(gone)
    own = middle.median(total, middle.value)[None]

    def kept(rank: int) -> np.ndarray:
        """Value of a rank once a set is gone: it moves down by the values gone below it."""
        value = np.broadcast_to(middle.value(rank + size), gone.shape[1:])
        for below in reversed(range(size)):
            here = middle.value(rank + below)
            value = np.where(gone[below] > here, here, value)
        return value

    removed = middle.median(total - size, kept)
    if added is None:
        low = middle.median(total, lambda rank: kept(rank - size))
        return own, removed, low, middle.median(total, kept)
    low = middle.median(total + added, lambda rank: middle.value(rank - added))[None]
    return own, removed, low, middle.median(total + added, middle.value)[None]


class _Middle:
    """Order statistics around the middle of each column, with k + 1 values ±c put at either end.

    The padding leaves medians as they are and defines those of tiny batches, as the kernel does.
    """

    def __init__(self, clipped: np.ndarray, bound: float, most: int) -> None:
        edges = np.full((most + 1, clipped.shape[1]), bound)
        padded = np.vstack([-edges, clipped, edges])
        self.total = len(padded)
        self._first = (self.total - 1) // 2 - most
        ranks = list(range(self._first, self.total // 2 + most + 1))
        self._values = np.partition(padded, ranks, axis=0)[ranks]

    def value(self, rank: int) -> np.ndarray:
        """(C,) values of one zero-based rank."""
        return self._values[rank - self._first]

    def median(self, total: int, value: Callable[[int], np.ndarray]) -> np.ndarray:
        """Mean of the two middle ranks of `total` values; the same rank twice where odd."""
        return (value((total - 1) // 2) + value(total // 2)) / 2


@dataclass(frozen=True, kw_only=True)
class BatchGap:
    """One batch's bound and what neighbours attain of it, in natural-log units.

    Attributes:
        batch: Which batch.
        contexts: Contexts it held.
        tokens: Tokens drawn from it.
        claimed: Sum of the reported γ.
        removed: Largest |log P − log P'| of the whole draw over all removed sets of contexts.
        crafted: Sum over tokens of the largest gap that crafted contexts attain.
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
        """Share of the bound that removing contexts attains."""
        return self.removed / self.claimed if self.claimed > 0 else 0.0


@dataclass
class MedianAudit:
    """Adds up the gaps of every draw of a run.

    Attributes:
        mechanism: The audited mechanism.
        contexts: Contexts removed alone in each batch, the first ones; None for all.
    """

    mechanism: MedianTokenMechanism
    contexts: int | None = None
    _drawn: dict[int, list["_Drawn"]] = field(default_factory=dict, repr=False)

    def observe(self, batch: int, logits: np.ndarray, token: int, gamma: float) -> None:
        """Audits one token that the mechanism drew from (n, V) logits and priced at γ.

        A batch without contexts has none to remove and is passed over.
        """
        if len(logits):
            gaps = token_gaps(logits, token, self.mechanism, self.contexts)
            self._drawn.setdefault(batch, []).append(_Drawn(len(logits), gaps, gamma))

    @property
    def batches(self) -> tuple[BatchGap, ...]:
        """Findings by batch."""
        return tuple(_batch_gap(batch, drawn) for batch, drawn in sorted(self._drawn.items()))

    def finding(self) -> Finding:
        """Says whether any gap exceeds its γ: an excess above 0 is a proof against γ."""
        batches = self.batches
        worst = max((batch.excess for batch in batches), default=0.0)
        note = "; ".join(
            f"batch {b.batch}: γ {rounded_up(b.claimed, '.3g')}, by removing contexts "
            f"{rounded_down(b.removed, '.3g')} ({b.attained:.0%})"
            for b in batches
        )
        return Finding(claimed=0.0, observed=max(0.0, worst), note=note)


class _Drawn(NamedTuple):
    """One audited token: contexts of its batch, its gaps and its γ."""

    contexts: int
    gaps: TokenGaps
    gamma: float


def _batch_gap(batch: int, drawn: Sequence[_Drawn]) -> BatchGap:
    """Adds up the gaps of every draw of a batch."""
    removed = np.array([each.gaps.removed for each in drawn])
    crafted = np.array([np.abs(each.gaps.crafted).max() for each in drawn])
    gammas = np.array([each.gamma for each in drawn])
    largest = np.maximum(crafted, np.abs(removed).max(axis=1))
    return BatchGap(
        batch=batch,
        contexts=drawn[0].contexts,
        tokens=len(drawn),
        claimed=float(gammas.sum()),
        removed=float(np.abs(removed.sum(axis=0)).max()),
        crafted=float(crafted.sum()),
        excess=float((largest - gammas).max()),
    )


@dataclass(frozen=True, kw_only=True)
class WatchedMedian(MedianTokenMechanism):
    """The real mechanism, whose every draw is handed to an audit after it was made.

    Attributes:
        watch: Called with batch, (n, V) logits, token and γ of each draw. For public logits only.
    """

    watch: Callable[[int, np.ndarray, int, float], None] = field(repr=False, compare=False)

    def select(self, logits: NextLogits, meter: PrivateTokenMeter) -> tuple[np.ndarray, np.ndarray]:
        """Draws as the mechanism does, then shows the draws, among the tokens that are allowed."""
        tokens, gamma = super().select(logits, meter)
        every = np.arange(logits.private.shape[1])
        columns = every if logits.allowed is None else np.flatnonzero(logits.allowed)
        for batch, token, bound in zip(logits.active, tokens, gamma, strict=True):
            rows = logits.private[logits.batch_of_row == int(batch)].double().cpu().numpy()
            place = int(np.searchsorted(columns, token))
            self.watch(int(batch), rows[:, columns], place, float(bound))
        return tokens, gamma
