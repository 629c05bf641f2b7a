"""Share of the records' words and word pairs in a corpus, by number of records that contain them.

Style and labels can be right where nothing that the records say is left. A term is a word or two
words in a row, as `attacks/overlap.py` reads them, that no public document has: names and numbers
are among them. Of the terms that a sample of the source records has, counted in all of them, a band
tells the share that some row has. The row of real data tells it of as many held-out records.

**How many records it takes.** Let k records hold a term, and let the corpus have it with
probability q in the world without them. Between the two worlds lie k steps, each one record added,
removed, emptied or replaced, whichever the declared relation is. Under (ε, δ)-DP a step takes a
probability p to at most

    g(p) = min(e^ε p + δ, 1 - e^-ε (1 - δ - p)):

the first for the event, the second for its opposite with the worlds exchanged. g does not fall in
p, so after k steps it is at most g applied k times to q. Below the least k at which that exceeds
q + `MORE`, no mechanism of this guarantee could bring the term much more often than chance;
`least_holders` finds it for q = `CHANCE`. Records of one unit make fewer steps, and the bound holds
all the more. Methods need far more records than that.

**Privacy** Source records are read without noise: scores are internal, for the steward. Counts are
in no table; a band of fewer than `LEAST_TERMS` terms has no share.

**Source** Dong, Roth and Su 2022, "Gaussian differential privacy", group privacy: where one record
allows the trade-off function f, k allow 1 - (1 - f)^k, in the sense of composition. Here f is that
of (ε, δ), and g = 1 - f.
"""

import math
from collections.abc import Sequence

import numpy as np

from dpsynth_assets.attacks.overlap import in_public, span_holders, word_blocks
from dpsynth_assets.metrics.metric import Metric, Sides, Tables

BANDS = ((2, 4), (5, 9), (10, 19), (20, 49), (50, 99), (100, None))
"""Numbers of records, least and most, of a band."""

LEAST_TERMS = 10
"""Terms of a band that has a share."""

TERM_WORDS = (1, 2)

CHANCE, MORE = 0.001, 0.1
"""A term that one corpus in a thousand would have by chance, and by how much more often."""

_MOST_HOLDERS = 100_000
_MOST_EPSILON = 700.0
"""Above it e^ε is no float64."""

HOLDERS = "least_holders"
"""Key of `least_holders` in a row of the report."""

TOLD = (
    "Terms are words and word pairs of source records that no public document has: the share that "
    "some row has, by number of records that hold them. If fewer records hold a term than the last "
    f"column says and one corpus in {1 / CHANCE:,.0f} would have it by chance, it is in at most "
    f"{CHANCE + MORE:.3f} of corpora, by ε and δ alone. Methods need far more records."
)
"""Said above the table."""


def least_holders(epsilon: float, delta: float, chance: float = CHANCE) -> int | None:
    """Least number of records at which a term may come `MORE` often than by chance.

    Args:
        epsilon: ε of the corpus, for one record.
        delta: δ.
        chance: Probability q of the term without them.

    Returns:
        A number of at least 1; None where it is above `_MOST_HOLDERS`.
    """
    factor, reached = math.exp(min(epsilon, _MOST_EPSILON)), chance
    for records in range(1, _MOST_HOLDERS + 1):
        reached = min(factor * reached + delta, 1.0 - (1.0 - delta - reached) / factor)
        if reached > chance + MORE:
            return records
    return None


def _terms(texts: Sequence[str], words: int) -> np.ndarray:
    """Hashes of all terms of some texts: uint64 (T,), sorted and distinct."""
    found = [block.spans(words)[0] for block in word_blocks(texts)]
    return np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.uint64)


def _shares(sides: Sides) -> dict[int, float]:
    """Share of terms that the corpus has, by the least number of records of their band."""
    private = sides.reference
    asked = []
    for words in TERM_WORDS:
        terms = _terms(private.source.texts, words)
        asked.append((terms[~in_public(terms, words, sides.public_texts)], words))
    numbers = np.concatenate(span_holders(private.searched, *asked))
    found = np.concatenate([np.isin(own, _terms(sides.corpus.texts, n)) for own, n in asked])
    bands = {
        least: found[(numbers >= least) & (numbers <= (math.inf if most is None else most))]
        for least, most in BANDS
    }
    return {least: float(own.mean()) for least, own in bands.items() if len(own) >= LEAST_TERMS}


def _metric(least: int, most: int | None) -> Metric:
    title = f"terms of {least} {'or more' if most is None else f'to {most}'} records"
    return Metric(
        title.replace(" ", "_"),
        title,
        lambda sides: sides.once(_shares).get(least),
        percent=True,
        needs=("reference",),
        of_real="held-out",
        tables=Tables("terms", None),
    )


SURVIVING_TERMS = [_metric(least, most) for least, most in BANDS]
"""Share of the terms of each band."""
