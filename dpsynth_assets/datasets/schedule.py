"""When corpora are made again, as a dataset file declares it."""

from typing import Self
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from dpsynth_assets.datasets.cron import cron_problem
from dpsynth_assets.datasets.fields import Declaration, Name, refuse


class ScheduleSpec(Declaration):
    """When corpora are made again. Starts switched off."""

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
