"""Every metric by name. A new metric is one module and one line here.

A package of another project adds its own by an entry point of the group `dpsynth.metrics`, whose
name is the metric's and whose value is a `Metric`: nothing here changes.
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Literal

from dpsynth_assets.files.from_outside import with_those_of_others
from dpsynth_assets.metrics import (
    downstream,
    embedding_distances,
    read_rows,
    surviving_terms,
    text,
)
from dpsynth_assets.metrics.metric import Metric

GROUP = "dpsynth.metrics"
"""Group of the entry points by which other packages add metrics."""

_OWN = (
    embedding_distances.MAUVE,
    embedding_distances.ENERGY_DISTANCE,
    embedding_distances.FRECHET_DISTANCE,
    downstream.ACCURACY,
    downstream.ENCODER_ACCURACY,
    downstream.ENCODER_ON_CORPUS,
    read_rows.IN_CONTEXT_ACCURACY,
    downstream.NEXT_WORD_ACCURACY,
    downstream.NEXT_WORD_ACCURACY_LARGER,
    text.MEAN_WORDS,
    text.LENGTH_DISTANCE,
    *text.DISTINCT,
    text.DISTINCT_OPENINGS,
    text.LABEL_DISTANCE,
    text.VERBATIM_SHARE,
    text.NEAR_DUPLICATE_SHARE,
    text.CANARIES_FOUND,
    *surviving_terms.SURVIVING_TERMS,
    text.PARSE_RATE,
    text.VALIDATION_RATE,
    downstream.NEXT_WORD_PERPLEXITY,
    text.NEAR_DUPLICATES,
    text.PERPLEXITY,
    read_rows.QUALITY,
    read_rows.QUALITY_CONTROL,
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
