"""Comparisons of corpora by resampled rows, and sentences on them: better, worse, or undecided.

Two corpora differ where the interval of their paired difference leaves out zero, and a share of the
gap between floor and ceiling is given only where these two differ. Everything else is undecided,
and says so. Intervals are of one comparison each; they are not widened for the number of pairs.

**Privacy** As private as the scores that are compared.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from dpsynth_assets.metrics.metric import COVERAGE, Estimate, Metric, interval
from dpsynth_assets.metrics.registry import compared, registered

_MOST_NAMED = 4
"""Undecided pairs that a sentence names; of more it says that they are all others."""

POWER = 0.8
"""Probability with which a difference is to be decided."""

Verdict = Literal["better", "worse", "undecided"]
Estimates = Mapping[str, Estimate]
"""Scores of one corpus by metric; a metric that could not be computed is missing."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One corpus beside another.

    Attributes:
        first: Name of the corpus that the verdict is about.
        second: Name of the corpus it is compared with.
        difference: Score of the first less that of the second.
        low, high: Interval of the difference.
        verdict: Of the first, in view of the direction of the metric.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    verdict: Verdict


@dataclass(frozen=True)
class GapShare:
    """Share of the way from floor to ceiling with its interval: 0 at the floor, 1 at the ceiling.

    It is not clipped: what lies below the floor has a share below 0.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """In percent, with its interval."""
        value, low, high = (f"{100 * each:.0f}" for each in (self.value, self.low, self.high))
        return f"{value} % ({low} to {high})"


def compare(metric: str, first: tuple[str, Estimate], second: tuple[str, Estimate]) -> Comparison:
    """Compares two corpora, by name and score, from paired resamples."""
    (name, score), (other, beside) = first, second
    low, high = interval(score.draws - beside.draws)
    verdict: Verdict = "undecided"
    if low > 0 or high < 0:
        verdict = "better" if (low > 0) != registered()[metric].less_is_better else "worse"
    return Comparison(
        first=name,
        second=other,
        difference=score.value - beside.value,
        low=low,
        high=high,
        verdict=verdict,
    )


def compare_all(metric: str, corpora: Mapping[str, Estimates]) -> list[Comparison]:
    """Compares every pair of corpora that have the score, the better one of a pair first."""
    scored = [(name, scores[metric]) for name, scores in corpora.items() if metric in scores]
    sign = 1.0 if registered()[metric].less_is_better else -1.0
    scored.sort(key=lambda pair: sign * pair[1].value)
    return [compare(metric, first, second) for first, second in combinations(scored, 2)]


def gap_closed(
    metric: str, score: Estimate | None, floor: Estimate | None, ceiling: Estimate | None
) -> GapShare | None:
    """Computes the share of the gap between floor and ceiling that a corpus closes.

    Returns:
        None where a score is missing, or the ceiling is not better than the floor beyond chance.
    """
    if score is None or floor is None or ceiling is None:
        return None
    if compare(metric, ("ceiling", ceiling), ("floor", floor)).verdict != "better":
        return None
    value = (score.value - floor.value) / (ceiling.value - floor.value)
    width = ceiling.draws - floor.draws
    # A draw in which the gap is closed or turned would give a share of any size and sign.
    wide = np.sign(width) == np.sign(ceiling.value - floor.value)
    low, high = interval(((score.draws - floor.draws)[wide]) / width[wide])
    return GapShare(value, low, high)


def shares(
    scores: Estimates, floor: Estimates | None, ceiling: Estimates | None
) -> dict[str, GapShare | None]:
    """Share of each metric's gap that a corpus closes; None where it cannot be decided."""
    low, high = floor or {}, ceiling or {}
    return {m: gap_closed(m, scores.get(m), low.get(m), high.get(m)) for m in compared()}


def gap_fields(scores: Estimates, floor: Estimates, ceiling: Estimates) -> dict[str, Any]:
    """Fields of a table's row: `gap_closed_<metric>` with `_low` and `_high`; None if undecided."""
    fields: dict[str, Any] = {}
    for name, share in shares(scores, floor, ceiling).items():
        key = compared()[name].gap
        for end, field in (("value", key), ("low", f"{key}_low"), ("high", f"{key}_high")):
            fields[field] = None if share is None else getattr(share, end)
    return fields


def better_by(corpora: Mapping[str, Estimates]) -> dict[str, dict[str, list[str]]]:
    """Corpus -> another that it is better than -> titles of the metrics that decide it.

    Args:
        corpora: Scores by name; those of one table, on one number of rows.

    Returns:
        Every corpus with a score to compare, best first by the first metric that compares it.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for name, metric in compared().items():
        for pair in compare_all(name, corpora):
            better, _ = found.setdefault(pair.first, {}), found.setdefault(pair.second, {})
            if pair.verdict == "better":
                better.setdefault(pair.second, []).append(metric.title)
    return found


def smallest_decided(tables: Iterable[Mapping[str, Estimates]]) -> str:
    """Says how large a difference has to be for a comparison of this size to decide it.

    A true difference of d is decided with probability `POWER` where d is at least z(.975) + z(.80)
    standard errors of a difference; the median over the pairs of all tables stands for these.
    """
    law, told, known = NormalDist(), [], [*tables]
    of_width = (1.0 + law.inv_cdf(POWER) / law.inv_cdf((1.0 + COVERAGE) / 2.0)) / 2.0
    for name, metric in compared().items():
        pairs = [pair for corpora in known for pair in compare_all(name, corpora)]
        wide = np.median([pair.high - pair.low for pair in pairs]) if pairs else 0.0
        if wide > 0:
            told.append(f"{metric.title} {of_width * wide:{metric.form}}")
    if not told:
        return ""
    return (
        f"With this many rows and seeds, a true difference of {', '.join(told)} is decided "
        f"{100 * POWER:.0f} % of the time; half of it needs four times as many."
    )


def interval_rule(resampled: str) -> str:
    """Says what verdicts rest on.

    Args:
        resampled: What was drawn again: "rows" of one run, or "seeds and rows" of several.
    """
    others = "" if "seeds" in resampled else "; another run of a method may give another result"
    return (
        f"Verdicts use {100 * COVERAGE:.0f} % intervals from resampled {resampled}, one for each "
        f"pair, not corrected for the number of pairs{others}."
    )


def _ordering(title: str, pairs: Sequence[Comparison]) -> str:
    better: dict[str, list[str]] = {}
    for pair in pairs:
        if pair.verdict == "better":
            better.setdefault(pair.first, []).append(pair.second)
    parts = [f"{name} is better than {', '.join(others)}" for name, others in better.items()]
    undecided = [f"{p.first} and {p.second}" for p in pairs if p.verdict != "better"]
    if undecided:
        every = "every other pair" if better else "every pair"
        named = ", ".join(undecided) if len(undecided) <= _MOST_NAMED else every
        parts.append(f"undecided: {named}")
    return f"By {title}: {'; '.join(parts)}."


_CEILING = (
    "The ceiling is one public model with real examples in its prompt: a reference, not an upper "
    "bound."
)


@dataclass(frozen=True)
class Compared:
    """Corpora of one table, scored on one number of rows.

    Attributes:
        corpora: Scores by name, of references too.
        floor: Name of the public-only corpus among them, if it is there.
        ceiling: Name of the non-private one.
    """

    corpora: Mapping[str, Estimates]
    floor: str | None = None
    ceiling: str | None = None

    def verdicts(self) -> list[str]:
        """Says in a sentence a metric which corpora differ and what the data cannot decide."""
        sentences = []
        for name, metric in compared().items():
            if pairs := compare_all(name, self.corpora):
                sentences += [_ordering(metric.title, pairs), *self.without_gap(metric)]
        return sentences

    def without_gap(self, metric: Metric) -> Iterator[str]:
        """Says why there is no share of the gap, where both ends have a score and there is none."""
        low, high = self._ends(metric.name)
        if low is None or high is None:
            return
        verdict = compare(metric.name, ("ceiling", high), ("floor", low)).verdict
        if verdict == "better":
            return
        undecided = verdict == "undecided"
        said = "does not differ from" if undecided else "is worse than"
        yield (
            f"{'Undecided: by' if undecided else 'By'} {metric.title}, the ceiling "
            f"({self.ceiling}, {high.value:.3g} ± {high.std:.2g}) {said} the floor ({self.floor}, "
            f"{low.value:.3g} ± {low.std:.2g}); no share of the gap is given."
        )

    def told_of_private(self, private: Sequence[str]) -> list[str]:
        """Says which of these corpora is best, and which lie below the floor or above the ceiling.

        Args:
            private: Names of the private corpora.
        """
        own = {name: self.corpora[name] for name in private if name in self.corpora}
        return [*self._leading(own), *self._below_floor(own), *self._above_ceiling(own)]

    def _ends(self, metric: str) -> list[Estimate | None]:
        """Scores of floor and ceiling."""
        return [self.corpora.get(end or "", {}).get(metric) for end in (self.floor, self.ceiling)]

    def _leading(self, own: Mapping[str, Estimates]) -> Iterator[str]:
        """The best private corpus by the first metric that is there."""
        metrics = compared()
        metric = next((m for m in metrics if any(m in scores for scores in own.values())), None)
        if metric is None:
            return
        scored = {name: scores[metric] for name, scores in own.items() if metric in scores}
        pairs = compare_all(metric, own)
        best = pairs[0].first if pairs else next(iter(scored))
        share = gap_closed(metric, scored[best], *self._ends(metric))
        closed = "" if share is None else f", {share} of the gap from floor to ceiling"
        shown = f"{metrics[metric].title} {scored[best].value:.3g}{closed}"
        if len(scored) == 1:
            yield f"The only private corpus with a score is {best}: {shown}."
            return
        found = [pair for pair in pairs if pair.first == best]
        beaten = ", ".join(pair.second for pair in found if pair.verdict == "better")
        undecided = ", ".join(pair.second for pair in found if pair.verdict != "better")
        parts = [f"it is better than {beaten}"] if beaten else []
        if undecided:
            parts.append(f"its difference from {undecided} is not decided by these rows")
        yield f"Of the private corpora, {best} scores best ({shown}); {'; '.join(parts)}."

    def _below_floor(self, own: Mapping[str, Estimates]) -> Iterator[str]:
        """Private corpora that these rows show to be worse than public text alone."""
        below = [
            f"{pair.first} by {metric.title}"
            for metric, pair in self._beside(own, self.floor)
            if pair.verdict == "worse"
        ]
        if below:
            yield (
                f"Worse than public text alone ({self.floor}): {', '.join(below)}. These scores "
                "show no gain from the private records: try another method, or a larger ε."
            )

    def _above_ceiling(self, own: Mapping[str, Estimates]) -> Iterator[str]:
        """Private corpora that score above the ceiling, and whether these rows decide it."""
        above = [
            f"{pair.first} by {metric.title} "
            f"({'better' if pair.verdict == 'better' else 'a difference within chance'})"
            for metric, pair in self._beside(own, self.ceiling)
            if pair.difference and (pair.difference < 0) == metric.less_is_better
        ]
        if above:
            yield f"Scores above the ceiling ({self.ceiling}): {', '.join(above)}. {_CEILING}"

    def _beside(
        self, own: Mapping[str, Estimates], end: str | None
    ) -> Iterator[tuple[Metric, Comparison]]:
        """Every private corpus beside the floor or the ceiling, by each metric that both have."""
        beside = self.corpora.get(end or "", {})
        for name, metric in compared().items():
            for corpus, scores in own.items():
                if name in beside and name in scores:
                    pair = (corpus, scores[name]), (str(end), beside[name])
                    yield metric, compare(name, *pair)
