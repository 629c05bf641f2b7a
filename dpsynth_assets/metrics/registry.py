"""Every metric by name. A new metric is one module and one line here.

A package of another project adds its own by an entry point of the group `dpsynth.metrics`, whose
name is the metric's and whose value is a `Metric`: nothing here changes.
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Literal

from dpsynth_assets.files.from_outside import with_those_of_others
from dpsynth_assets.metrics.downstream import (
    ACCURACY,
    BALANCED_ACCURACY,
    NEXT_WORD_ACCURACY,
    NEXT_WORD_ACCURACY_LARGER,
    NEXT_WORD_PERPLEXITY,
)
from dpsynth_assets.metrics.embedding_distances import ENERGY_DISTANCE, FRECHET_DISTANCE
from dpsynth_assets.metrics.fine_tuned import ENCODER_ACCURACY, ENCODER_ON_CORPUS
from dpsynth_assets.metrics.mauve import MAUVE, MAUVE_ROWS
from dpsynth_assets.metrics.metric import Metric
from dpsynth_assets.metrics.read_rows import IN_CONTEXT_ACCURACY, QUALITY, QUALITY_CONTROL
from dpsynth_assets.metrics.surviving_terms import SURVIVING_TERMS
from dpsynth_assets.metrics.text import (
    CANARIES_FOUND,
    DISTINCT,
    DISTINCT_OPENINGS,
    LABEL_DISTANCE,
    LENGTH_DISTANCE,
    MEAN_WORDS,
    NEAR_DUPLICATE_SHARE,
    NEAR_DUPLICATES,
    PARSE_RATE,
    PERPLEXITY,
    VALIDATION_RATE,
    VERBATIM_SHARE,
)

GROUP = "dpsynth.metrics"
"""Group of the entry points by which other packages add metrics."""

_OWN = (
    MAUVE,
    MAUVE_ROWS,
    ENERGY_DISTANCE,
    FRECHET_DISTANCE,
    ACCURACY,
    BALANCED_ACCURACY,
    ENCODER_ACCURACY,
    ENCODER_ON_CORPUS,
    IN_CONTEXT_ACCURACY,
    NEXT_WORD_ACCURACY,
    NEXT_WORD_ACCURACY_LARGER,
    MEAN_WORDS,
    LENGTH_DISTANCE,
    *DISTINCT,
    DISTINCT_OPENINGS,
    LABEL_DISTANCE,
    VERBATIM_SHARE,
    NEAR_DUPLICATE_SHARE,
    CANARIES_FOUND,
    *SURVIVING_TERMS,
    PARSE_RATE,
    VALIDATION_RATE,
    NEXT_WORD_PERPLEXITY,
    NEAR_DUPLICATES,
    PERPLEXITY,
    QUALITY,
    QUALITY_CONTROL,
)


@cache
def registered() -> Mapping[str, Metric]:
    """Metrics of this package, then those of others, in the order in which tables show them.

    Raises:
        ImportError: A package's entry point is no metric, or has the name of another one.
    """
    own = {metric.name: metric for metric in _OWN}
    return with_those_of_others(own, GROUP, "Metric", lambda found: isinstance(found, Metric))


def modules_outside() -> list[str]:
    """Modules of the metrics of other packages: scores that are kept depend on their code too."""
    return [point.module for point in entry_points(group=GROUP)]


def compared() -> dict[str, Metric]:
    """Metrics that corpora are compared by."""
    return {name: metric for name, metric in registered().items() if metric.compared}


def leading() -> Metric:
    """The first metric that corpora are compared by: it orders a leaderboard and is drawn there."""
    return next(iter(compared().values()))


def pictured() -> dict[str, Metric]:
    """Metrics of a report with a picture and a tile of their own."""
    return {metric.name: metric for metric in reported() if metric.picture}


def reported(table: Literal["scores", "text", "terms"] | None = None) -> list[Metric]:
    """Metrics of an internal report, or of one of its tables."""
    return [
        m for m in registered().values() if m.tables.report and table in (None, m.tables.report)
    ]


def benchmarked(table: Literal["leaderboard"] | None = None) -> list[Metric]:
    """Metrics of a benchmark's cells, or of its leaderboard."""
    return [
        m
        for m in registered().values()
        if m.tables.benchmark and table in (None, m.tables.benchmark)
    ]
