"""Medians of neighbouring batches: a drawn token's log-probability under each of them, exactly.

A neighbour lacks one context, or as many as a unit may have, or has crafted ones in their place.
Letters: n contexts of a batch, V vocabulary, k most contexts of a unit, N = n + 2(k + 1) values of
a padded column, m removed sets of r contexts each, C columns of a block.
"""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpsynth_assets.privacy.clipping import clip_logits
from dpsynth_assets.privacy.median import MedianTokenMechanism

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
        contexts: Audit the first so many contexts alone; None for all n.
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
    most = mechanism.max_records_per_unit
    replaced = mechanism.changes == 2 * most
    totals: list[_LogSum] = []
    width = max(1, BLOCK_ENTRIES // sets.size)
    for start in range(0, clipped.shape[1], width):
        block = clipped[:, start : start + width]
        own = token - start if start <= token < start + block.shape[1] else None
        middle = _Middle(block, mechanism.clip_bound, most)
        gone = np.sort(block[sets.T], axis=0)
        medians = _neighbours(middle, gone, None if replaced else most)
        scores = [median / mechanism.temperature for median in medians]
        totals = totals or [_LogSum(len(part)) for part in scores]
        _add(totals, scores, own)
    log_p, log_removed, *log_crafted = (total.log_probability for total in totals)
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
