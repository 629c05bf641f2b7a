"""Lines of a table with ± from resampled seeds and rows, and what they decide.

A line is one corpus a seed. Its mean is resampled on two levels: seeds with replacement, and within
each the rows of the corpus and of the held-out records, where the score has such resamples (MAUVE,
energy distance, accuracies). Held-out rows and seeds are drawn alike for all lines of a table.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpsynth_assets.metrics.comparison import GapShare, gap_closed, interval_rule, verdicts
from dpsynth_assets.metrics.registry import compared
from dpsynth_assets.metrics.resampling import RESAMPLES, Estimate

FLOOR, CEILING = "public_only", "one_real_example"
Line = Mapping[str, Estimate]


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


def shares(line: Line, floor: Line | None, ceiling: Line | None) -> dict[str, GapShare | None]:
    """Share of each metric's gap that a line closes; None where it cannot be decided."""
    low, high = floor or {}, ceiling or {}
    return {m: gap_closed(m, line.get(m), low.get(m), high.get(m)) for m in compared()}


def sentences(
    lines: Mapping[tuple[str, float | None], Line], roles: Mapping[str, str], seeds: int
) -> list[str]:
    """What is decided at each ε, references included; the rule of the verdicts last."""
    budgets = list(dict.fromkeys(epsilon for _, epsilon in lines if epsilon is not None))
    told = []
    asked: list[float | None] = [*budgets]
    for budget in asked or [None]:
        beside = {t: line for (t, epsilon), line in lines.items() if epsilon in (budget, None)}
        ends = [roles.get(role) if roles.get(role) in beside else None for role in (FLOOR, CEILING)]
        at = "" if budget is None else f"ε = {budget:g}. "
        told += [f"{at}{sentence}" for sentence in verdicts(beside, *ends)]
    return [*told, interval_rule("seeds and rows" if seeds > 1 else "rows")] if told else []
