"""The prediction table in Markdown, and which of the papers' orderings it shows.

An ordering is a difference of two corpora of one seed, averaged over seeds. It is called shown or
contradicted only where the 95 % interval of Student's t lies on one side of zero. Two dozen such
intervals stand in one table: one of them lies wrong by chance alone.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from prediction_cohorts import CEILING, COHORTS, FLOOR, REAL, Cohort
from scipy import stats

Results = Mapping[tuple[str, float, str], Mapping[int, Mapping[str, Any]]]
"""Results by (cohort, ε, method), then by seed."""

TITLES = {
    REAL: "real data",
    FLOOR: "public only (floor)",
    CEILING: "one real example (ceiling, no privacy)",
    "mean": "mean (baseline, k = 1)",
    "mean_plus_plus": "mean, Baseline++ (k = 2)",
    "mean_clustered": "mean, clustered (k = 2)",
    "median_clustered": "median, clustered (k = 2)",
}
RECORD_TITLES = {"mean": "mean", "svt_0.5": "mean + SVT, θ = 0.5", "svt_1.0": "mean + SVT, θ = 1.0"}
ORDERINGS = (
    ("mean", FLOOR, "private above public only"),
    ("mean_plus_plus", "mean", "Baseline++ above baseline"),
    ("mean_clustered", "mean_plus_plus", "clustered above Baseline++"),
    ("median_clustered", "mean_clustered", "median at or above mean, clustered"),
)
SCORES = {"mauve": "MAUVE", "accuracy": "accuracy", "energy_distance": "energy distance"}
RECORD_SCORES = {"parse_rate": "parses", "validation_rate": "validates", "samples": "samples"}


def report(results: Sequence[Mapping[str, Any]]) -> str:
    """Renders tables and orderings of every cohort that has results, a cell's last line each."""
    grouped: dict[tuple[str, float, str], dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for result in results:
        seed, cohort, epsilon, method = result["cell"]
        grouped[cohort, epsilon, method][seed] = result
    parts = [
        part
        for cohort in COHORTS.values()
        for epsilon in cohort.epsilons
        if any(key[:2] == (cohort.name, epsilon) for key in grouped)
        for part in _section(cohort, epsilon, grouped)
    ]
    return "\n".join(parts) or "No results yet."


def _section(cohort: Cohort, epsilon: float, results: Results) -> Iterator[str]:
    yield f"\n**{cohort.name}, ε = {epsilon:g}**\n"
    rows = _record_rows if cohort.structured else _text_rows
    yield from rows(cohort, epsilon, results)
    if cohort.structured:
        pairs = [
            (name, "mean", f"{RECORD_TITLES[name]} above mean") for name in ("svt_0.5", "svt_1.0")
        ]
        scores = RECORD_SCORES
    else:
        pairs, scores = list(ORDERINGS), SCORES
    yield "\nDifferences in favour of the corpus named first, and in how many seeds:\n"
    yield "| ordering | " + " | ".join(scores.values()) + " |"
    yield "|---" * (len(scores) + 1) + "|"
    for better, worse, title in pairs:
        verdicts = [
            verdict(_paired(cohort.name, epsilon, better, worse, score, results), score)
            for score in scores
        ]
        yield f"| {title} | " + " | ".join(verdicts) + " |"


def _text_rows(cohort: Cohort, epsilon: float, results: Results) -> Iterator[str]:
    yield (
        "| corpus | ε | ex-post | seeds | rows | scored | "
        + " | ".join(SCORES.values())
        + " | CPU s |"
    )
    yield "|---" * (len(SCORES) + 7) + "|"
    for method in cohort.methods:
        cell = list(results.get((cohort.name, epsilon, method), {}).values())
        if cell:
            shown = [spread(_values(cell, score)) for score in SCORES]
            yield _line(
                TITLES[method],
                _epsilon(method, cell),
                _ex_post(cell),
                len(cell),
                *_rows(cell),
                *shown,
                _seconds(cell),
            )


def _record_rows(cohort: Cohort, epsilon: float, results: Results) -> Iterator[str]:
    names = " | ".join(RECORD_SCORES.values())
    yield f"| method | ε | seeds | private tokens a batch | tokens written | {names} | CPU s |"
    yield "|---" * (len(RECORD_SCORES) + 6) + "|"
    for method in cohort.methods:
        cell = list(results.get((cohort.name, epsilon, method), {}).values())
        if cell:
            shown = [
                spread(_values(cell, score), 1 if score == "samples" else 3)
                for score in RECORD_SCORES
            ]
            written = np.mean([run["private_tokens"] + run["public_tokens"] for run in cell])
            yield _line(
                RECORD_TITLES[method],
                _epsilon(method, cell),
                len(cell),
                cell[0]["tokens_per_batch"],
                f"{written:.0f}",
                *shown,
                _seconds(cell),
            )


def _line(*values: object) -> str:
    return "| " + " | ".join(str(value) for value in values) + " |"


def _epsilon(method: str, cell: Sequence[Mapping[str, Any]]) -> str:
    epsilon, histogram = cell[0].get("epsilon"), cell[0].get("histogram_epsilon")
    if method in (REAL, CEILING):
        return "∞"
    if epsilon is None:
        return f"— + {histogram:.2f}"
    return f"{epsilon:.2f}"


def _ex_post(cell: Sequence[Mapping[str, Any]]) -> str:
    costs = [run["ex_post_epsilon"] for run in cell if run.get("ex_post_epsilon") is not None]
    return spread(costs, 2) if costs else ""


def _rows(cell: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    rows = [run["rows"] for run in cell]
    scored = {run["scored_rows"] for run in cell}
    return f"{np.mean(rows):.0f}", "/".join(str(count) for count in sorted(scored))


def _seconds(cell: Sequence[Mapping[str, Any]]) -> str:
    return f"{np.mean([run['processor_seconds'] for run in cell]):.0f}"


def _values(cell: Sequence[Mapping[str, Any]], score: str) -> list[float]:
    return [run[score] for run in cell if run.get(score) is not None]


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean and standard deviation over seeds; the mean alone of one seed."""
    if not values:
        return ""
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def _paired(
    cohort: str, epsilon: float, better: str, worse: str, score: str, results: Results
) -> list[float]:
    """Differences in favour of `better`, one for each seed that has both."""
    first, second = (results.get((cohort, epsilon, name), {}) for name in (better, worse))
    sign = -1 if score == "energy_distance" else 1
    return [
        sign * (first[seed][score] - second[seed][score])
        for seed in sorted(first.keys() & second.keys())
        if first[seed].get(score) is not None and second[seed].get(score) is not None
    ]


def verdict(differences: Sequence[float], score: str) -> str:
    """Says what the differences show: their mean, in how many seeds, and whether beyond chance."""
    count = len(differences)
    if not count:
        return ""
    mean, ahead = float(np.mean(differences)), sum(value > 0 for value in differences)
    digits = 1 if score == "samples" else 3
    said = f"{mean:+.{digits}f}, {ahead} of {count}"
    if count < 2:
        return f"{said}: one seed"
    half = float(stats.t.ppf(0.975, count - 1) * np.std(differences, ddof=1) / count**0.5)
    if mean - half > 0:
        return f"{said}: **shown**"
    return f"{said}: **contradicted**" if mean + half < 0 else f"{said}: open"


__all__ = ["report", "spread", "verdict"]
