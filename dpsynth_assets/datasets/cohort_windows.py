"""Disjoint cohorts of one source: one for each file, or one for each window of time.

Which cohort a record belongs to is a function of the record alone: the file it is in, or the date
it carries. Which cohorts there are is public: the calendar, or names of files that follow a public
pattern. Nothing looks at records to decide whether a cohort exists, so an empty window is one like
any other. Then the cohorts compose in parallel (docs/privacy.md): the largest stands for all.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Literal

from pydantic import Field

from dpsynth_assets.datasets.fields import Declaration, Refusal, unfit

Period = Literal["day", "week", "month", "quarter", "year"]

KEY_CHARACTERS = 24
"""Longest key of a cohort, with the underscore before it: 64 characters hold name and key."""

_PLACEHOLDERS = {"year": r"\d{4}", "month": r"\d{2}", "day": r"\d{2}", "number": r"\d{1,8}"}
_BRACES = re.compile(r"\{(\w*)\}")
_OWN = {
    "file": ("pattern", "settle_minutes"),
    "window": ("column", "period", "first", "delay_days"),
}


@dataclass(frozen=True, kw_only=True)
class Window:
    """The records of one cohort by their date: `start` <= date in `column` < `end`."""

    column: str
    start: date
    end: date


class CohortsSpec(Declaration):
    """Partition of one source into disjoint cohorts, each with the whole budget of the file."""

    by: Literal["file", "window"]
    """file: every file of the source is a cohort. window: every period of a date column is."""
    pattern: str | None = None
    """by file: public pattern of the files' names, e.g. mail-{year}-{month}.jsonl; {year}, {month},
    {day} and {number} stand for digits and name the cohort."""
    settle_minutes: int = Field(10, ge=0)
    """by file: minutes (>= 0) for which a new file must have stayed unchanged."""
    column: str | None = Field(None, min_length=1)
    """by window: column whose text begins with a date YYYY-MM-DD that never changes; a record
    without one is in no cohort."""
    period: Period | None = None
    """by window: length of a window; weeks begin on Monday."""
    first: date | None = None
    """by window: first day of the first window, YYYY-MM-DD."""
    delay_days: int = Field(1, ge=0)
    """by window: days (>= 0) after a window's end until its records are expected to be there."""

    def refusals(self) -> Iterator[Refusal]:
        """Fields of the other kind, windows off the calendar, patterns that name no cohort."""
        yield from unfit(self, "by", _OWN)
        if self.period and self.first and (begin := _start(self.first, self.period)) != self.first:
            remedy = "Windows follow the calendar, so that the list of windows is public."
            yield Refusal("first", f"the first day of a {self.period}, e.g. {begin}", remedy)
        names = _BRACES.findall(self.pattern or "")
        known = ", ".join(f"{{{name}}}" for name in _PLACEHOLDERS)
        if unknown := [name for name in names if name not in _PLACEHOLDERS]:
            expected = f"placeholders among {known}"
            yield Refusal("pattern", expected, "Fix it.", f"{{{unknown[0]}}}")
        told_apart = names and len(set(names)) == len(names)
        if self.pattern is not None and (not told_apart or "/" in self.pattern):
            yield Refusal(
                "pattern",
                f"a file name with one or more of the placeholders {known}, each once",
                "Without one, all files would be one cohort; write folders in source.path.",
            )

    @property
    def rule(self) -> str:
        """The rule in words. The ledger keeps it: one dataset is partitioned by one rule."""
        if self.by == "file":
            return f"file named {self.pattern}"
        return f"{self.period} of {self.column}"

    def file_key(self, name: str) -> str | None:
        """Key of the cohort of a file, e.g. "2026_01"; None where the pattern has no such name."""
        parts = _BRACES.split(self.pattern or "")
        regex = "".join(
            f"({_PLACEHOLDERS[part]})" if index % 2 else re.escape(part)
            for index, part in enumerate(parts)
        )
        match = re.fullmatch(regex, name, re.ASCII)
        return "_".join(match.groups()) if match else None

    def file_name(self, key: str) -> str:
        """Name of the file of a cohort: what `file_key` was asked for."""
        values = iter(key.split("_"))
        return _BRACES.sub(lambda _: next(values), self.pattern or "")

    def window(self, key: str) -> Window:
        """The window that a key names."""
        start = _start_of_key(key, self.period or "month")
        end = _after(start, self.period or "month")
        return Window(column=self.column or "", start=start, end=end)

    def has_key(self, key: str) -> bool:
        """Says whether a key is one that this rule may ever give to a cohort."""
        if self.by == "file":
            values = iter(key.split("_"))
            name = _BRACES.sub(lambda _: next(values, ""), self.pattern or "")
            return next(values, None) is None and self.file_key(name) == key
        try:
            start = self.window(key).start
        except ValueError:
            return False
        period = self.period or "month"
        return _key(start, period) == key and start >= (self.first or start)

    def is_ahead(self, key: str, today: date) -> bool:
        """Says whether a key names a window that has not ended; a file is there or is not."""
        return self.by == "window" and self.has_key(key) and self.window(key).end > today

    def why_not(self, key: str) -> str:
        """Says in one line why a key names no complete cohort, and what to do."""
        if not self.has_key(key):
            kind = "file" if self.by == "file" else "window"
            return (
                f"expected the key of a {kind} of the rule '{self.rule}', got {key!a}, which is "
                "not one. Choose one that `dpsynth datasets cohorts` lists."
            )
        if self.by == "file":
            return (
                f"expected a file {self.file_name(key)} that has stayed unchanged for "
                f"{self.settle_minutes} minutes, got none. Wait until it has."
            )
        end = self.window(key).end
        return (
            f"expected a window that is complete, got one that ends before {end} and is complete "
            f"on {end + timedelta(days=self.delay_days)} (delay_days is {self.delay_days}, days "
            "are UTC). Wait until then: it is registered automatically."
        )

    def complete_windows(self, today: date) -> list[str]:
        """Keys of all windows from the first on that have ended, in order.

        Args:
            today: The day in UTC; a window counts `delay_days` after its last day.
        """
        keys, period = [], self.period or "month"
        start = self.first or today
        while (end := _after(start, period)) + timedelta(days=self.delay_days) <= today:
            keys.append(_key(start, period))
            start = end
        return keys


def _start(day: date, period: Period) -> date:
    """First day of the period that holds `day`."""
    if period == "week":
        return day - timedelta(days=day.weekday())
    if period == "day":
        return day
    months = {"month": day.month, "quarter": day.month - (day.month - 1) % 3, "year": 1}
    return day.replace(month=months[period], day=1)


def _after(start: date, period: Period) -> date:
    """First day of the next period."""
    longest = {"day": 1, "week": 7, "month": 31, "quarter": 92, "year": 366}[period]
    return _start(start + timedelta(days=longest), period)


_KEYS = {"day": "%Y_%m_%d", "week": "%G_w%V", "month": "%Y_%m", "year": "%Y"}
"""Form of the key of a window; a quarter has none of `strftime`."""


def _key(start: date, period: Period) -> str:
    if period == "quarter":
        return f"{start:%Y}_q{(start.month + 2) // 3}"
    return start.strftime(_KEYS[period])


def _start_of_key(key: str, period: Period) -> date:
    if period == "quarter":
        year, quarter = key.split("_q")
        return date(int(year), 3 * int(quarter) - 2, 1)
    if period == "week":  # On its Monday.
        return datetime.strptime(f"{key}_1", f"{_KEYS[period]}_%u").date()  # noqa: DTZ007
    return datetime.strptime(key, _KEYS[period]).date()  # noqa: DTZ007
