"""What a corpus repeats of the source records, as metrics; `attacks/overlap.py` says how.

**Privacy** Source records are read without noise: scores are internal, for the steward.
"""

from dpsynth_assets.attacks.canaries import find_canaries
from dpsynth_assets.attacks.overlap import near_duplicate_share, verbatim_share
from dpsynth_assets.metrics.metric import OF_TEXT, Metric, Need, Sides


def _verbatim(sides: Sides) -> float | None:
    private, settings = sides.reference, sides.settings
    if private is None:
        return None
    return verbatim_share(
        sides.corpus.texts,
        private.source_texts if private.source is None else private.source.span_holders,
        sides.public_texts,
        words=settings.span_words,
        most_units=settings.span_most_units,
    )


def _near_duplicates(sides: Sides) -> float | None:
    private = sides.reference
    if private is None:
        return None
    return near_duplicate_share(
        sides.corpus.features,
        private.source_features if private.source is None else private.source.close_records,
        cosine=sides.settings.near_duplicate_cosine,
    )


def _canaries(sides: Sides) -> int | None:
    private = sides.reference
    return None if private is None else find_canaries(sides.corpus.texts, private.canaries)


VERBATIM_SHARE = Metric(
    "verbatim_share",
    "verbatim rows",
    _verbatim,
    less_is_better=True,
    percent=True,
    needs=frozenset({Need.SOURCE}),
    of_real="held-out",
    tables=OF_TEXT,
)
"""Share of rows with a span particular to few source records."""

NEAR_DUPLICATE_SHARE = Metric(
    "near_duplicate_share",
    "near duplicates",
    _near_duplicates,
    less_is_better=True,
    percent=True,
    needs=frozenset({Need.SOURCE}),
    of_real="held-out",
    tables=OF_TEXT,
)
"""Share of rows nearly the same as a source record."""

CANARIES_FOUND = Metric(
    "canaries_found",
    "canaries found",
    _canaries,
    less_is_better=True,
    needs=frozenset({Need.CANARIES}),
    of_real=None,
    tables=OF_TEXT,
)
"""Distinct planted canaries in the corpus."""
