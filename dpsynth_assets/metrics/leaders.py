"""Sentences on which private corpus scores best, and on corpora above the non-private ceiling.

They say no more than the intervals of paired differences allow: who is better than whom, and what
the rows do not decide.

**Privacy** As private as the scores that are compared.
"""

from collections.abc import Iterator, Mapping, Sequence

from dpsynth_assets.metrics.comparison import (
    Comparison,
    Estimates,
    compare,
    compare_all,
    gap_closed,
)
from dpsynth_assets.metrics.metric import Metric
from dpsynth_assets.metrics.registry import compared

_CEILING = (
    "The ceiling is one public model with real examples in its prompt: a reference, and no upper "
    "bound."
)


def told_of_private(
    private: Sequence[str],
    corpora: Mapping[str, Estimates],
    floor: str | None = None,
    ceiling: str | None = None,
) -> list[str]:
    """Says which private corpus is best, and which lie below the floor or above the ceiling.

    Args:
        private: Names of the private corpora.
        corpora: Scores by name, of references too.
        floor: Name of the public-only corpus among them, if it is there.
        ceiling: Name of the non-private one.
    """
    own = {name: corpora[name] for name in private if name in corpora}
    return [
        *_leading(own, corpora, floor, ceiling),
        *_below_floor(own, corpora, floor),
        *_above_ceiling(own, corpora, ceiling),
    ]


def _leading(
    own: Mapping[str, Estimates],
    corpora: Mapping[str, Estimates],
    floor: str | None,
    ceiling: str | None,
) -> Iterator[str]:
    """The best private corpus by the first metric that is there."""
    metrics = compared()
    metric = next((m for m in metrics if any(m in scores for scores in own.values())), None)
    if metric is None:
        return
    scored = {name: scores[metric] for name, scores in own.items() if metric in scores}
    pairs = compare_all(metric, own)
    best = pairs[0].first if pairs else next(iter(scored))
    ends = (corpora.get(end or "", {}).get(metric) for end in (floor, ceiling))
    share = gap_closed(metric, scored[best], *ends)
    closed = ""
    if share is not None:
        low, high = f"{100 * share.low:.0f}", f"{100 * share.high:.0f}"
        closed = f", {100 * share.value:.0f} % ({low} to {high}) of the gap from floor to ceiling"
    shown = f"{metrics[metric].title} {scored[best].value:.3g}{closed}"
    if len(scored) == 1:
        yield f"The private corpus that has a score is {best}: {shown}."
        return
    found = [
        compare(metric, (best, scored[best]), (name, scored[name]))
        for name in scored
        if name != best
    ]
    beaten = ", ".join(pair.second for pair in found if pair.verdict == "better")
    undecided = ", ".join(pair.second for pair in found if pair.verdict != "better")
    parts = [f"it is better than {beaten}"] if beaten else []
    if undecided:
        parts.append(f"its difference from {undecided} is not decided by these rows")
    yield f"Of the private corpora, {best} scores best ({shown}); {'; '.join(parts)}."


def _below_floor(
    own: Mapping[str, Estimates], corpora: Mapping[str, Estimates], floor: str | None
) -> Iterator[str]:
    """Private corpora that these rows show to be worse than public text alone."""
    below = [
        f"{pair.first} by {metric.title}"
        for metric, pair in _beside(own, corpora, floor)
        if pair.verdict == "worse"
    ]
    if below:
        yield (
            f"Worse than public text alone ({floor}): {', '.join(below)}. By these scores nothing "
            "was gained from the private records: try another method, or a larger ε."
        )


def _above_ceiling(
    own: Mapping[str, Estimates], corpora: Mapping[str, Estimates], ceiling: str | None
) -> Iterator[str]:
    """Private corpora that score above the ceiling, and whether these rows decide it."""
    above = [
        f"{pair.first} by {metric.title} "
        f"({'better' if pair.verdict == 'better' else 'a difference within chance'})"
        for metric, pair in _beside(own, corpora, ceiling)
        if pair.difference and (pair.difference < 0) == metric.less_is_better
    ]
    if above:
        yield f"Scores above the ceiling ({ceiling}): {', '.join(above)}. {_CEILING}"


def _beside(
    own: Mapping[str, Estimates], corpora: Mapping[str, Estimates], end: str | None
) -> Iterator[tuple[Metric, Comparison]]:
    """Every private corpus beside the floor or the ceiling, by each metric that both have."""
    beside = {} if end is None else corpora.get(end, {})
    for name, metric in compared().items():
        for corpus, scores in own.items():
            if name in beside and name in scores:
                first, second = (corpus, scores[name]), (str(end), beside[name])
                yield metric, compare(name, first, second)
