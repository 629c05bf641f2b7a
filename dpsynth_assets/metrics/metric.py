"""Defines a metric: its function, its inputs (a corpus and held-out records), and its presentation.

A metric says in one value what it is called, how it is computed, what it needs, and where it is
shown. `registry.py` lists all of them; reports, leaderboards, verdicts and `dpsynth evaluate` read
that list and name no metric themselves.

Letters: N rows of a side, d dimensions, B resamples.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np

from dpsynth_assets.privacy.errors import PrivacyError

if TYPE_CHECKING:
    import polars as pl

    from dpsynth_assets.metrics.evaluation import EvaluationSettings


# Rows that are scored where there are more, and resampled ones: how far a score would move.
#
# Rows are drawn again with replacement on both sides, the corpus and the held-out records. Held-out
# rows are drawn alike for all corpora of a table, so that differences of scores are paired: what a
# draw of easy held-out records adds to one corpus it adds to the others too.
#
# For scores far from those of equal distributions the spread is that of other rows. Where a corpus
# is nearly as good as real text, resamples spread wider than other rows would (energy distance and
# MAUVE: about twice, measured on reviews): verdicts between very good corpora are cautious.
#
# **Privacy** Draws of a score that was computed from private records are as private as the score.
#
# Letters: B resamples, N rows.
#
# **Source** Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapters 6 and 10.

RESAMPLES = 500
COVERAGE = 0.95
"""Of the intervals that comparisons and shares of a gap are decided by."""


@dataclass(frozen=True)
class Estimate:
    """A score and what it would have been on resampled rows.

    Attributes:
        value: The score on the rows at hand.
        draws: float64 (B,) scores on resampled rows, moved so that their mean is `value`: rows
            drawn twice shift some scores, and the shift is the same kind of error for all corpora.
    """

    value: float
    draws: np.ndarray = field(repr=False, compare=False)

    @classmethod
    def around(cls, value: float, draws: np.ndarray) -> "Estimate":
        """Centres draws on the value."""
        centred = np.asarray(draws, dtype=np.float64)
        return cls(float(value), value + centred - centred.mean())

    @property
    def std(self) -> float:
        """Standard deviation over the draws, the ± of a table."""
        return float(self.draws.std(ddof=1)) if len(self.draws) > 1 else 0.0


def resampled_counts(rows: int, resamples: int, seed: int) -> np.ndarray:
    """Draws how often each row stands in each resample.

    Args:
        rows: N, at least 1.
        resamples: B.
        seed: Public; equal seeds give equal counts.

    Returns:
        float32 (B, N); every line sums to N.
    """
    generator = np.random.default_rng(seed)
    return np.stack(
        [
            np.bincount(generator.integers(rows, size=rows), minlength=rows).astype(np.float32)
            for _ in range(resamples)
        ]
    )


def seed_of(name: str, seed: int) -> int:
    """Derives a corpus's own seed from its name: corpora of a table are drawn independently."""
    return zlib.crc32(f"{seed}/{name}".encode())


def interval(draws: np.ndarray) -> tuple[float, float]:
    """The middle `COVERAGE` of draws, as (low, high)."""
    outside = (1.0 - COVERAGE) / 2.0
    low, high = np.quantile(draws, (outside, 1.0 - outside))
    return float(low), float(high)


def stratified_rows(labels: Sequence[str], rows: int, seed: int) -> np.ndarray:
    """Draws rows without replacement, of each label in proportion.

    A file may be sorted by anything, so its first rows are no sample of it.

    Args:
        labels: N labels; equal ones where there are none to distinguish.
        rows: How many are drawn; all if there are not more.
        seed: Public; equal seeds and labels give equal rows.

    Returns:
        int64 (min(rows, N),) places, ascending.
    """
    if len(labels) <= rows:
        return np.arange(len(labels))
    generator = np.random.default_rng(seed)
    codes = np.unique(np.asarray(labels), return_inverse=True)[1]
    counts = np.bincount(codes)
    shuffled = generator.permutation(len(labels))
    by_label = shuffled[np.argsort(codes[shuffled], kind="stable")]
    within = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    # The n-th of a label's rows stands at (n + u) / count: any stretch holds every label's share.
    starts = generator.random(len(counts))
    places = (within + starts[codes[by_label]]) / counts[codes[by_label]]
    return np.sort(by_label[np.argsort(places, kind="stable")[:rows]])


Made = TypeVar("Made")

LEAST_ROWS = 10
"""Rows a side; resamples of fewer say little of what other rows would give."""


@dataclass(frozen=True, kw_only=True)
class ScoredSide:
    """Rows of one side: a corpus, or records. `repr` shows no text.

    Attributes:
        name: Of the corpus: each has resamples of its own. The held-out side has one name for all
            corpora of a table.
        features: (N, d) embeddings.
        texts: N texts.
        labels: N labels, "" where there are none.
        seed: Public seed of the resamples.
        resamples: B.
    """

    name: str = "held out"
    features: np.ndarray = field(repr=False)
    texts: Sequence[str] = field(repr=False, default=())
    labels: Sequence[str] = field(repr=False, default=())
    seed: int = 0
    resamples: int = RESAMPLES

    @classmethod
    def of(cls, rows: "pl.DataFrame", features: np.ndarray, **named: Any) -> "ScoredSide":
        """Rows of a table with columns `text` and `label`."""
        texts, labels = rows["text"].to_list(), rows["label"].to_list()
        return cls(texts=texts, labels=labels, features=features, **named)

    @cached_property
    def counts(self) -> np.ndarray:
        """(B, N), how often each row stands in each resample."""
        rows = len(self.features)
        return resampled_counts(max(1, rows), self.resamples, seed_of(self.name, self.seed))[
            :, :rows
        ]

    def rows(self, chosen: np.ndarray) -> "ScoredSide":
        """Some of the rows by their places."""
        return replace(
            self,
            texts=[self.texts[row] for row in chosen],
            labels=[self.labels[row] for row in chosen],
            features=self.features[chosen],
        )


@dataclass(frozen=True, kw_only=True)
class Sides:
    """A corpus beside held-out records, with what else metrics may need.

    Attributes:
        corpus: Its rows.
        held_out: Real rows that no mechanism read, the same for all corpora of a table.
        settings: Constants of the evaluation.
        labelled: Whether there are labels to distinguish.
        reference: The private records (`PrivateReference`), which copies are looked for in; None:
            not at hand.
        public_texts: Documents whose spans are no leak.
        language_model: The public language model; None: not at hand.
    """

    corpus: ScoredSide
    held_out: ScoredSide
    settings: "EvaluationSettings"
    labelled: bool
    reference: Any = field(repr=False, default=None)
    public_texts: Sequence[str] = field(repr=False, default=())
    language_model: Any = field(repr=False, default=None)
    _made: dict[Any, Any] = field(repr=False, compare=False, default_factory=dict)

    @property
    def has_words(self) -> bool:
        """Whether a row of the corpus has a word to learn."""
        return any(text.strip() for text in self.corpus.texts)

    def once(self, make: "Callable[[Sides], Made]") -> Made:
        """Makes what several metrics read, once."""
        if make not in self._made:
            self._made[make] = make(self)
        made: Made = self._made[make]
        return made


class Tables(NamedTuple):
    """Where a metric is shown.

    Attributes:
        report: Table of the internal report and of `dpsynth evaluate`; `file`: it stands in their
            files alone; None: it is not computed there.
        benchmark: Whether the leaderboard shows it; `file`: cells hold it; None: not computed.
    """

    report: Literal["scores", "text", "terms", "file"] | None = "scores"
    benchmark: Literal["leaderboard", "file"] | None = "leaderboard"


EVERYWHERE = Tables()
OF_TEXT = Tables("text", None)
OF_ROWS = Tables("text", "leaderboard")


@dataclass(frozen=True)
class Metric:
    """One score of a corpus.

    Attributes:
        name: Key in files, and name of an entry point of the group `dpsynth.metrics`.
        title: Name in sentences and tables.
        measure: Computes it: a number, an `Estimate` with resamples, or None where there is none.
        less_is_better: Its direction.
        decimals: Places of its number; None: three significant digits.
        percent: Whether its number is a share, shown in percent.
        needs: Attributes of `Sides` without which it is left out, e.g. `settings.encoder`.
        least_rows: Fewest rows of each side; with fewer it is left out.
        of_real: Real rows that are scored as if they were a corpus, in the row of real data: source
            records beside held-out ones, or held-out ones beside source records; None: neither.
        compared: Whether corpora are compared by it: verdicts and shares of the gap. Its measure
            gives an `Estimate`.
        tables: Where it is shown.
        gap_title: Its name where a share of its gap is shown; empty: the title.
        narrow_title: Its name on the leaderboard, which has many columns; empty: the title.
        picture: Title of its bar chart; a metric with one also has a tile, and a number of its own
            in the web UI. Empty: no picture.
        axis: Its name on the axis of that chart; empty: the title.
        meaning: What its number says, for readers of a report: unit, direction, what is best.
    """

    name: str
    title: str
    measure: Callable[[Sides], Estimate | float | None] = field(repr=False)
    _: KW_ONLY
    less_is_better: bool = False
    decimals: int | None = 3
    percent: bool = False
    needs: tuple[str, ...] = ()
    least_rows: int = 0
    of_real: Literal["source", "held-out"] | None = "source"
    compared: bool = False
    tables: Tables = EVERYWHERE
    gap_title: str = ""
    narrow_title: str = ""
    picture: str = ""
    axis: str = ""
    meaning: str = ""

    @property
    def form(self) -> str:
        """Format of its number."""
        return ".3g" if self.decimals is None else f".{self.decimals}f"

    @property
    def gap(self) -> str:
        """Key of the share of its gap."""
        return f"gap_closed_{self.name}"

    def of(self, sides: Sides) -> Estimate | float | None:
        """Measures it where all that it needs is there."""
        rows = min(len(sides.corpus.features), len(sides.held_out.features))
        needed = [self._needed(need, sides) for need in self.needs]
        if rows < self.least_rows or not all(needed):
            return None
        return self.measure(sides)

    def _needed(self, need: str, sides: Sides) -> bool:
        """Whether an attribute is there, or one of an attribute, e.g. `settings.encoder`."""
        try:
            found = attrgetter(need)(sides)
        except AttributeError:
            inner = (f"settings.{name}" for name in vars(sides.settings))
            known = [each for each in (*vars(sides), "has_words", *inner) if each != "_made"]
            raise PrivacyError(
                f"Metric {self.name}: expected needs among {', '.join(known)}, got {need!r}. "
                "Correct the metric."
            ) from None
        return found is not None and found is not False
