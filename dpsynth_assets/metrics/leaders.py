"""Sentences on which private corpus scores best, and on corpora above the non-private ceiling.

They say no more than the intervals of paired differences allow: who is better than whom, and what
the rows do not decide.

**Privacy** As private as the scores that are compared.
"""

from collections.abc import Iterator, Mapping, Sequence

from dpsynth_assets.metrics.comparison import Estimates, compare, compare_all, gap_closed
from dpsynth_assets.metrics.registry import compared

_CEILING = (
    "The ceiling is one public model with real examples in its prompt: a reference, and no upper "
    "bound."
)


def leading_sentence(
    private: Sequence[str],
    corpora: Mapping[str, Estimates],
    floor: str | None = None,
    ceiling: str | None = None,
) -> str | None:
    """Says which private corpus scores best by the first metric that is there.

    Args:
        private: Names of the private corpora.
        corpora: Scores by name, of references too.
        floor: Name of the public-only corpus among them, if it is there.
        ceiling: Name of the non-private one.

    Returns:
        None where no private corpus has a score.
    """
    own = {name: corpora[name] for name in private if name in corpora}
    titles = _titles()
    metric = next((m for m in titles if any(m in scores for scores in own.values())), None)
    if metric is None:
        return None
    best = _best(metric, own)
    shown = f"{titles[metric]} {own[best][metric].value:.3g}"
    share = _share(metric, best, corpora, floor, ceiling)
    if len([name for name in own if metric in own[name]]) == 1:
        return f"The private corpus that has a score is {best}: {shown}{share}."
    return (
        f"Of the private corpora, {best} scores best ({shown}{share}); "
        f"{_beside_others(metric, best, own)}."
    )


def ceiling_sentences(
    private: Sequence[str], corpora: Mapping[str, Estimates], ceiling: str | None
) -> Iterator[str]:
    """Names private corpora that score above the ceiling, and whether these rows decide it.

    Args:
        private: Names of the private corpora.
        corpora: Scores by name.
        ceiling: Name of the non-private corpus among them, if it is there.
    """
    above = []
    for metric, title in _titles().items():
        for name in private if ceiling is not None else ():
            pair = {key: corpora.get(key, {}) for key in (name, str(ceiling))}
            if not all(metric in scores for scores in pair.values()) or (
                _best(metric, pair) != name
            ):
                continue
            (found,) = compare_all(metric, pair)
            if found.difference:
                told = "better" if found.verdict == "better" else "a difference within chance"
                above.append(f"{name} by {title} ({told})")
    if above:
        yield f"Scores above the ceiling ({ceiling}): {', '.join(above)}. {_CEILING}"


def floor_sentences(
    private: Sequence[str], corpora: Mapping[str, Estimates], floor: str | None
) -> Iterator[str]:
    """Names private corpora that these rows show to be worse than public text alone.

    Args:
        private: Names of the private corpora.
        corpora: Scores by name.
        floor: Name of the public-only corpus among them, if it is there.
    """
    beside = {} if floor is None else corpora.get(floor, {})
    below = [
        f"{name} by {title}"
        for metric, title in _titles().items()
        for name in private
        if metric in beside
        and metric in (own := corpora.get(name, {}))
        and compare(metric, (name, own[metric]), ("", beside[metric])).verdict == "worse"
    ]
    if below:
        yield (
            f"Worse than public text alone ({floor}): {', '.join(below)}. By these scores nothing "
            "was gained from the private records: try another method, or a larger ε."
        )


def _titles() -> dict[str, str]:
    return {name: metric.title for name, metric in compared().items()}


def _best(metric: str, corpora: Mapping[str, Estimates]) -> str:
    pairs = compare_all(metric, corpora)
    return pairs[0].first if pairs else next(n for n in corpora if metric in corpora[n])


def _share(
    metric: str,
    best: str,
    corpora: Mapping[str, Estimates],
    floor: str | None,
    ceiling: str | None,
) -> str:
    ends = [corpora.get(end or "", {}).get(metric) for end in (floor, ceiling)]
    share = gap_closed(metric, corpora[best][metric], *ends)
    if share is None:
        return ""
    low, high = f"{100 * share.low:.0f}", f"{100 * share.high:.0f}"
    return f", {100 * share.value:.0f} % ({low} to {high}) of the gap from floor to ceiling"


def _beside_others(metric: str, best: str, own: Mapping[str, Estimates]) -> str:
    beaten: list[str] = []
    open_to: list[str] = []
    for name, scores in own.items():
        if name != best and metric in scores:
            found = compare(metric, (best, own[best][metric]), (name, scores[metric]))
            (beaten if found.verdict == "better" else open_to).append(name)
    parts = [f"it is better than {', '.join(beaten)}"] if beaten else []
    if open_to:
        parts.append(f"its difference from {', '.join(open_to)} is not decided by these rows")
    return "; ".join(parts)
