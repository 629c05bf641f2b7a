"""The leaderboard: scores of every line at every ε and number of records, over its seeds.

A line is one corpus a seed. Its mean is resampled on two levels: seeds with replacement, and within
each the rows of the corpus and of the held-out records, where the score has such resamples (MAUVE,
energy distance, accuracies). Held-out rows and seeds are drawn alike for all lines of a table.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from dpsynth_assets.benchmark.running import Place
from dpsynth_assets.datasets.benchmark_spec import REFERENCES
from dpsynth_assets.metrics.comparison import (
    Compared,
    GapShare,
    better_by,
    interval_rule,
    shares,
    smallest_decided,
)
from dpsynth_assets.metrics.metric import RESAMPLES, Estimate
from dpsynth_assets.metrics.registry import benchmarked, compared, leading

FLOOR, CEILING = "public_only", "one_real_example"
Line = Mapping[str, Estimate]
"""Scores of a line by name, each its mean over seeds."""

Key = tuple[str, str, float | None, int]
"""A line's dataset, name, budget ε and number of records."""

COSTS = (
    "rows",
    "seconds",
    "processor_seconds",
    "peak_memory_mib",
    "tokens_read",
    "tokens_written",
)
Promise = Literal["worst case", "ex post", "secrets", "reference", "refused"]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One line of a table: a method at one ε on a number of records.

    Attributes:
        dataset: Name of the dataset.
        line: Name of the line.
        asked_epsilon: Budget ε; None for a reference.
        records: Most source records.
        seeds: Runs behind it.
        promise: What kind of guarantee its corpora have; corpora of different kinds stand in
            different tables.
        epsilon: The largest ε that a label states; None where none does.
        scores: Mean of each score with resamples of seeds and rows.
        gap_closed: Share of the gap between floor and ceiling by score; None where undecided.
        costs: Means of what a run took.
        refusal: Why the plan is refused, if it is.
    """

    dataset: str
    line: str
    asked_epsilon: float | None
    records: int
    seeds: int
    promise: Promise
    epsilon: float | None = None
    scores: Line = field(default_factory=dict, repr=False)
    gap_closed: Mapping[str, GapShare | None] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    refusal: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values; a score is its mean and ±, a share its value and interval."""
        return vars(self) | {
            "scores": {
                name: {"value": round(found.value, 6), "std": round(found.std, 6)}
                for name, found in self.scores.items()
            },
            "gap_closed": {
                name: share and {end: round(part, 4) for end, part in vars(share).items()}
                for name, share in self.gap_closed.items()
            },
            "costs": {name: round(cost, 1) for name, cost in self.costs.items()},
        }


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """All lines of a benchmark.

    Attributes:
        name: Of the benchmark.
        standings: Its lines, best first by the leading metric, within a dataset, size and ε.
        verdicts: Dataset -> `better`: at each ε with the most records, references included, what
            `better_by` finds; and `notes`: what limits these verdicts.
        missing: Number of missing cells.
        facts: What holds for all: δ, rows scored, the code that ran.
        domains: What the texts of each dataset are, in public words.
    """

    name: str
    standings: tuple[Standing, ...]
    verdicts: Mapping[str, Mapping[str, Any]]
    missing: int
    facts: Mapping[str, Any]
    domains: Mapping[str, str] = field(default_factory=dict)

    @property
    def datasets(self) -> list[str]:
        """Names of the datasets that have a line."""
        return list(dict.fromkeys(each.dataset for each in self.standings))

    def of(self, dataset: str) -> list[Standing]:
        """Lines of one dataset."""
        return [each for each in self.standings if each.dataset == dataset]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "benchmark": self.name,
            "facts": dict(self.facts),
            "domains": dict(self.domains),
            "missing_cells": self.missing,
            "lines": [each.to_json() for each in self.standings],
            "verdicts": dict(self.verdicts),
        }


def leaderboard(
    name: str,
    cells: Iterable[tuple[Place, Mapping[str, Any]]],
    *,
    missing: int = 0,
    facts: Mapping[str, Any] | None = None,
    domains: Mapping[str, str] | None = None,
) -> Leaderboard:
    """Puts cells together.

    Args:
        name: Of the benchmark.
        cells: Finished cells with their places.
        missing: Number of missing cells.
        facts: What holds for all cells.
        domains: What the texts of each dataset are.
    """
    grouped: dict[Key, list[Mapping[str, Any]]] = {}
    for place, found in cells:
        key = (place.dataset, place.line, place.epsilon, place.records)
        grouped.setdefault(key, []).append(found)
    scores = [metric.name for metric in benchmarked("leaderboard")]
    lines = {key: line_of(results, scores) for key, results in grouped.items()}
    standings = [
        _standing(key, results, lines[key], _ends(lines, key[0]))
        for key, results in grouped.items()
    ]
    standings.sort(key=_order)
    return Leaderboard(
        name=name,
        standings=tuple(standings),
        verdicts={
            dataset: _verdicts(dataset, lines, grouped)
            for dataset in dict.fromkeys(each.dataset for each in standings)
        },
        missing=missing,
        facts=facts or {},
        domains=domains or {},
    )


def _standing(
    key: Key,
    results: Sequence[Mapping[str, Any]],
    line: Line,
    ends: tuple[Line | None, Line | None],
) -> Standing:
    dataset, name, asked, records = key
    stated = [r["epsilon"] for r in results if r.get("epsilon") is not None]
    return Standing(
        dataset=dataset,
        line=name,
        asked_epsilon=asked,
        records=records,
        seeds=len(results),
        promise=promise_of(name, results),
        epsilon=max(stated, default=None),
        scores=line,
        gap_closed=shares(line, *ends) if asked is not None else {},
        costs={c: float(np.mean(found)) for c in COSTS if (found := _numbers(results, c))},
        refusal=next((r["refusal"] for r in results if "refusal" in r), ""),
    )


def promise_of(line: str, results: Sequence[Mapping[str, Any]]) -> Promise:
    """Kind of guarantee of a line's corpora."""
    if line in REFERENCES:
        return "reference"
    if all("refusal" in result for result in results):
        return "refused"
    if any(result.get("posterior") is not None for result in results):
        return "secrets"
    if any(result.get("ex_post_epsilon") is not None for result in results):
        return "ex post"
    return "worst case"


def _numbers(results: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [float(r[name]) for r in results if r.get(name) is not None]


def _ends(lines: Mapping[Key, Line], dataset: str) -> tuple[Line | None, Line | None]:
    """Floor and ceiling of a dataset."""
    found = {name: line for (own, name, _, _), line in lines.items() if own == dataset}
    return found.get(FLOOR), found.get(CEILING)


def _verdicts(
    dataset: str,
    lines: Mapping[Key, Line],
    grouped: Mapping[Key, Sequence[Any]],
) -> dict[str, Any]:
    own = {key: line for key, line in lines.items() if key[0] == dataset and line}
    largest = max((key[3] for key in own), default=0)
    ends = {key[1]: line for key, line in own.items() if key[2] is None}
    whole = [key for key in own if key[2] is not None and key[3] == largest]
    tables = {
        f"{largest} records" + ("" if budget is None else f", ε = {budget:g}"): (
            ends | {key[1]: own[key] for key in whole if key[2] == budget}
        )
        for budget in dict.fromkeys(key[2] for key in whole) or [None]
    }
    roles = [role if role in ends else None for role in (FLOOR, CEILING)]
    seeds = min((len(grouped[key]) for key in own if key[2] is not None), default=1)
    references = Compared(ends, *roles)
    notes = [told for metric in compared().values() for told in references.without_gap(metric)]
    return {
        "better": {title: better_by(table) for title, table in tables.items()},
        "notes": [
            *notes,
            interval_rule("seeds and rows" if seeds > 1 else "rows"),
            *filter(None, [smallest_decided(tables.values())]),
        ],
    }


def _order(each: Standing) -> tuple[Any, ...]:
    """By dataset, size and ε from the largest; references around the methods, best first."""
    last = each.line == FLOOR
    first = each.promise == "reference" and not last
    best = leading()
    sign = 1.0 if best.less_is_better else -1.0
    score = each.scores.get(best.name)
    return (
        each.dataset,
        0 if first else 2 if last else 1,
        -each.records,
        -(each.asked_epsilon or 0.0),
        math.inf if score is None else sign * score.value,
        each.line,
    )


def line_of(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Estimate]:
    """Scores of a line by name; those that every seed has."""
    found = {}
    for name in names:
        if results and all(result.get(name) is not None for result in results):
            found[name] = _mean(results, name)
    return found


def _mean(results: Sequence[Mapping[str, Any]], name: str) -> Estimate:
    values = [float(result[name]) for result in results]
    of_rows = np.stack(
        [
            np.asarray(result.get("draws", {}).get(name) or np.full(RESAMPLES, value))
            for result, value in zip(results, values, strict=True)
        ]
    )
    picks = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    draws = of_rows[picks, np.arange(RESAMPLES)[:, None]].mean(axis=1)
    return Estimate.around(float(np.mean(values)), draws)
