"""The schedule on which corpora are made again, as a dataset file declares it.

Its five cron fields are checked without Dagster: a typing error is found with the file.
"""

import re
from typing import Self
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from dpsynth_assets.datasets.fields import Declaration, Name, refuse

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_FIELDS: tuple[tuple[str, int, int, list[str]], ...] = (
    ("minute", 0, 59, []),
    ("hour", 0, 23, []),
    ("day of month", 1, 31, []),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _DAYS),
)
_ITEM = re.compile(r"(?:\*|(\w+)(?:-(\w+))?)(?:/(\d+))?")
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def cron_problem(cron: str) -> str | None:
    """Says what is wrong with a cron expression, e.g. "hour 25"; None where it holds.

    Known are numbers, names of months and days, `*`, lists, ranges and steps. An expression that
    never comes, such as 30 February, is wrong too.
    """
    parts = cron.lower().split()
    if len(parts) != len(_FIELDS):
        return f"{len(parts)} fields"
    values: list[set[int]] = []
    for (name, low, high, words), part in zip(_FIELDS, parts, strict=True):
        found = _values(part, low, high, words)
        if not found:
            return f"{name} {part}"
        values.append(found)
    _, _, days, months, _ = values
    if parts[4] == "*" and not any(day <= _LONGEST[month - 1] for day in days for month in months):
        return f"day {parts[2]} of month {parts[3]}, which no year has"
    return None


def _values(part: str, low: int, high: int, words: list[str]) -> set[int]:
    """The values a field stands for; none where some item of its list is wrong."""
    values: set[int] = set()
    for item in part.split(","):
        found = _item_values(item, low, high, words)
        if not found:
            return set()
        values |= found
    return values


def _item_values(item: str, low: int, high: int, words: list[str]) -> set[int]:
    match = _ITEM.fullmatch(item)
    if match is None:
        return set()
    first, last, step = match.groups()
    start = low if first is None else _number(first, low, words)
    if last is not None:
        end = _number(last, low, words)
    else:
        end = start if first is not None and step is None else high
    if start is None or end is None or not low <= start <= end <= high or step == "0":
        return set()
    return set(range(start, end + 1, int(step or 1)))


def _number(word: str, low: int, words: list[str]) -> int | None:
    if word.isdigit():
        return int(word)
    return words.index(word) + low if word in words else None


class ScheduleSpec(Declaration):
    """The schedule on which corpora are made again. Starts switched off."""

    cron: str = Field(description='Five cron fields, e.g. "0 3 1 * *".')
    methods: list[Name] = Field(
        default_factory=list, description="Corpora made, by name; empty: all."
    )
    rows: int | None = Field(
        default=None,
        ge=1,
        description="Rows asked of each corpus made (>= 1), where a method writes them from what "
        "it released and rows cost nothing; none: as its settings say.",
    )
    timezone: str = Field(
        default="UTC", description="IANA time zone of the cron fields, e.g. Europe/Berlin."
    )

    @model_validator(mode="after")
    def _comes(self) -> Self:
        if (problem := cron_problem(self.cron)) is not None:
            refuse(
                "cron",
                "five cron fields: minute, hour, day of month, month, day of week",
                problem,
                'Mend it, e.g. "0 3 1 * *" for 03:00 on the first of each month.',
            )
        return self

    @model_validator(mode="after")
    def _zone_exists(self) -> Self:
        try:
            ZoneInfo(self.timezone)
        except (KeyError, ValueError, OSError):  # An unknown name, a path, a folder of zones.
            refuse(
                "timezone",
                "a time zone of the IANA database",
                repr(self.timezone),
                "Name one, e.g. UTC or Europe/Berlin.",
            )
        return self
