"""Estimates a method's score at an ε and number of records from leaderboard results.

Noise on votes, sums and histograms shrinks as ε times records grows, so cells are compared by that
product: a cell with half of it is as far away as one with twice of it. Which method is best differs
between texts, so datasets whose domain is worded like the cohort's count more.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dpsynth_assets.privacy.directed_rounding import declared

WIDTH = 0.7
"""Width of the weights in ln(ε times records): cells twice as far off count half as much."""

LIKENESS = 4.0
"""A dataset of the same domain counts e^4 times as much as one whose domain shares no word."""

_PASSED_OVER = frozenset(
    ["a", "about", "and", "at", "by", "for", "from", "in", "of", "on", "or", "the", "to", "with"]
)

SHRINKAGE = 2.0
"""Unlike datasets on which a method is taken to be like all others, beside those it ran on.

What a method gained over others on one unlike dataset may be that dataset's, and what it gained far
from the ε and the number of records that are asked for may be theirs.
"""

LEAST_FACTOR = 0.5
"""With less than this much of the nearest cell's ε times records, its share is a bound alone."""

METRICS = ("mauve", "energy_distance", "accuracy")
"""Scores whose shares of the gap are averaged, where a cell has them.

Two compare rows with held-out records; the third is that of a classifier trained on the rows.
"""

FILES = tuple(Path(__file__).with_name(name) for name in ("leaderboard.json", "strangers.json"))
"""Corpora with settings for the comparison, and files as `dpsynth init` leaves them."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One line of the leaderboard, as far as advice reads it.

    Attributes:
        dataset: Name of the public corpus.
        line: Name of the line.
        epsilon: Budget ε.
        records: Source records.
        share: Share of the gap between floor and ceiling that it closes, mean over `METRICS`.
        margin: Half the 95 % interval of that share; 0 where it was not estimated.
        domain: What the dataset's texts are, in public words.
    """

    dataset: str
    line: str
    epsilon: float
    records: int
    share: float
    domain: str = ""
    margin: float = 0.0

    @property
    def texts(self) -> str:
        """What its texts are: datasets of one domain are one, scored on other numbers of rows."""
        return self.domain or self.dataset

    @property
    def place(self) -> float:
        """ln(ε times records)."""
        return math.log(self.epsilon * self.records)


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What a method's cells let one expect.

    Attributes:
        share: Expected share of the gap: what methods reach on datasets like the cohort's, and what
            this one gained over them where it ran.
        low, high: Least and greatest of the datasets' own means.
        nearest: The cell nearest in ε times records.
        factor: How many times as much ε times records is asked for as that cell has; below 1: less.
    """

    share: float
    low: float
    high: float
    nearest: Measured
    factor: float

    def share_in_words(self) -> str:
        """The share, and how far datasets differ; a bound where all cells had more to go on."""
        told = _percent(self.share)
        if self.factor < LEAST_FACTOR:
            return f"at most {told} (no measurement has so few records at this ε)"
        between = f" (on public data: {_percent(self.low)} to {_percent(self.high)})"
        return told + ("" if self.low == self.high else between)

    def distance_in_words(self) -> str:
        """The nearest cell, and how far off it is."""
        near, times = self.nearest, self.factor
        same = "your ε × number of records is about the same"
        asked = f"your ε × number of records is {times:.2g} times as large"
        return (
            f"nearest benchmark cell: {near.dataset}, ε = {declared(near.epsilon)}, "
            f"{near.records:,} records; {same if 0.95 < times < 1.05 else asked}"
        )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


@cache
def measured_lines() -> tuple[Measured, ...]:
    """Reads what was measured and ships with the package."""
    contents = [json.loads(file.read_text(encoding="utf-8")) for file in FILES]
    return tuple(each for known in contents for each in lines_of(known["lines"], known["domains"]))


def lines_of(lines: Iterable[Mapping[str, Any]], domains: Mapping[str, str]) -> Iterable[Measured]:
    """Lines with a worst-case guarantee whose share of a gap is known."""
    for line in lines:
        closed = [line["gap_closed"].get(metric) for metric in METRICS]
        shares = [share for share in closed if share is not None]
        if line["promise"] != "worst case" or not shares:
            continue
        yield Measured(
            dataset=line["dataset"],
            line=line["line"],
            epsilon=line["asked_epsilon"],
            records=line["records"],
            share=float(np.mean([share["value"] for share in shares])),
            margin=float(np.mean([share["high"] - share["low"] for share in shares])) / 2,
            domain=domains.get(line["dataset"], ""),
        )


def expected(
    line: str,
    epsilon: float,
    records: int | None,
    cells: Sequence[Measured],
    domain: str = "",
) -> Expectation | None:
    """Expects a share of the gap from a method's cells, weighted by their nearness.

    Args:
        line: Name of the method's line.
        epsilon: Budget ε.
        records: Declared records; None: not declared, then that of the smallest cell, to be safe.
        cells: Lines of the leaderboard.
        domain: What the cohort's texts are, in public words; empty: not declared.

    Returns:
        None where the leaderboard has no cell of this method.
    """
    own = [cell for cell in cells if cell.line == line]
    if not own:
        return None
    asked = math.log(epsilon * (records or min(cell.records for cell in own)))
    means, gains, gain_weights, levels, level_weights = [], [0.0], [SHRINKAGE], [], []
    for texts in dict.fromkeys(cell.texts for cell in cells):
        there = [cell for cell in cells if cell.texts == texts]
        weight = math.exp(LIKENESS * likeness(domain, there[0].domain))
        levels.append(_mean_near(asked, there))
        level_weights.append(weight)
        if of_line := [cell for cell in there if cell.line == line]:
            nearness = _nearness(asked, of_line)
            means.append(_mean_near(asked, of_line))
            # A cell is compared with others of its own place: with more to go on all are better.
            gained = [cell.share - _mean_near(cell.place, there) for cell in of_line]
            gains.append(float(np.average(gained, weights=nearness)))
            gain_weights.append(weight * float(nearness.max()))
    level = np.average(levels, weights=level_weights)
    nearest = min(own, key=lambda cell: (-likeness(domain, cell.domain), abs(cell.place - asked)))
    return Expectation(
        share=float(level + np.average(gains, weights=gain_weights)),
        low=min(means),
        high=max(means),
        nearest=nearest,
        factor=math.exp(asked - nearest.place),
    )


def likeness(first: str, second: str) -> float:
    """Share of the shorter domain's words that the other has too, in [0, 1]; 0 for no words."""
    words, others = _words(first), _words(second)
    fewer = min(len(words), len(others))
    return len(words & others) / fewer if fewer else 0.0


def _words(domain: str) -> frozenset[str]:
    """Words of a domain in the singular, without those that mean nothing alone."""
    found = re.findall(r"[a-z]+", domain.lower())
    return frozenset(word.removesuffix("s") for word in found if word not in _PASSED_OVER)


def _mean_near(asked: float, cells: Sequence[Measured]) -> float:
    """Mean share of cells by their nearness to ln(ε times records)."""
    nearness = _nearness(asked, cells)
    return float(np.average([cell.share for cell in cells], weights=nearness))


def _nearness(asked: float, cells: Sequence[Measured]) -> np.ndarray:
    """1 for a cell at ln(ε times records), falling to 1e-9 far from it."""
    squares = np.square((np.asarray([cell.place for cell in cells]) - asked) / WIDTH) / 2
    return np.asarray(np.exp(np.maximum(-squares, math.log(1e-9))))
