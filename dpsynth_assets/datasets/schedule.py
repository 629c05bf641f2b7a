"""The schedule on which corpora are made again, as a dataset file declares it.

An expression is read as Dagster reads it, which carries a copy of croniter; the package itself is
asked here, because a dataset file is checked without Dagster.
"""

from datetime import datetime
from typing import Self
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from dpsynth_assets.datasets.fields import Declaration, Name, refuse

_FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_FEBRUARY, _NEVER_IN_FEBRUARY = 2, {30, 31}
_SOME_DAY = datetime(2026, 1, 1)  # noqa: DTZ001 - whether a day comes depends on no time zone


def cron_problem(cron: str) -> str | None:
    """Says what is wrong with a cron expression, e.g. "hour 25"; None where it holds.

    Known are five fields of numbers, names of months and days, `*`, lists, ranges, steps, `L` (the
    last day of a month, or `L5`: its last Friday) and `5#1` (its first Friday), and the words
    `@hourly`, `@daily`, `@weekly`, `@monthly` and `@yearly`. An expression that never comes, such
    as 30 February, is wrong too, and so is one that stands for another time at each reading.
    """
    from croniter import CroniterBadDateError, CroniterError, croniter

    parts = cron.lower().split()
    if len(parts) != len(_FIELDS) and not cron.startswith("@"):
        return f"{len(parts)} fields"
    if any(part[0] in "hr" for part in parts):
        return f"{cron}, which stands for times drawn at random"
    try:
        days, month = croniter.expand(cron)[0][2:4]
        croniter(cron, _SOME_DAY).get_next(datetime)
    except CroniterBadDateError:
        return f"{cron}, which no year has"
    except CroniterError:
        return _wrong_field(parts) or f"{cron}, which is no expression"
    if month == [_FEBRUARY] and len(days) == 1 and days[0] in _NEVER_IN_FEBRUARY:
        return f"{cron}, which no year has"
    return None


def _wrong_field(parts: list[str]) -> str | None:
    """The first field that is wrong by itself, with its name."""
    from croniter import CroniterError, croniter

    for number, part in enumerate(parts[: len(_FIELDS)]):
        alone = ["*"] * len(_FIELDS)
        alone[number] = part
        try:
            croniter.expand(" ".join(alone))
        except CroniterError:
            return f"{_FIELDS[number]} {part}" if len(parts) == len(_FIELDS) else None
    return None


class ScheduleSpec(Declaration):
    """The schedule on which corpora are made again. Starts switched off."""

    cron: str | list[str] = Field(
        min_length=1,
        description='Cron expression, e.g. "0 3 1 * *", `@daily`, `0 3 L * *` (the last day of a '
        "month), `0 3 * * 5#1` (its first Friday); or a list of them.",
    )
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

    @property
    def expressions(self) -> tuple[str, ...]:
        """The cron expressions: any of them makes a tick."""
        return (self.cron,) if isinstance(self.cron, str) else tuple(self.cron)

    @model_validator(mode="after")
    def _comes(self) -> Self:
        for expression in self.expressions:
            if (problem := cron_problem(expression)) is not None:
                refuse(
                    "cron",
                    "five cron fields: minute, hour, day of month, month, day of week; or a word, "
                    "e.g. @daily",
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
