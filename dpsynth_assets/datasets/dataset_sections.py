"""Sections of a private dataset's declaration: columns, unit, facts, budget, methods, schedule.

An expression of a schedule is read as Dagster reads it, which carries a copy of croniter; the
package itself is asked here, because a dataset file is checked without Dagster.
"""

from datetime import datetime
from typing import Any, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from dpsynth_assets.datasets.fields import (
    OWN_COLUMNS,
    Declaration,
    LabelWord,
    Name,
    PublicWord,
    as_seen,
    refuse,
)
from dpsynth_assets.privacy.directed_rounding import declared
from dpsynth_assets.privacy.units import PrivacyUnit

LABEL_SEPARATOR = " | "
"""Joins the values of several label columns into one composite label."""

LARGEST_DELTA = 1e-3
"""δ at or above this promises nothing worth the name, whatever the number of records."""


class ColumnsSpec(Declaration):
    """The columns of the source that are read. Every other column is ignored."""

    text: str = Field(default="text", min_length=1, description="Column of the text.")
    object: list[str] = Field(
        default_factory=list,
        description="Columns that make up the text instead: one compact JSON object a record, in "
        "this order, numbers and lists kept. Empty: the text is a column.",
    )
    labels: list[str] = Field(
        default_factory=list,
        description="Label columns, in the order in which prompts name them; empty: no labels.",
    )
    id: str | None = Field(
        default=None,
        description="Column that identifies a record, needed beside cohorts; none: identified by "
        "its content.",
    )
    max_text_characters: int | None = Field(
        default=None,
        ge=1,
        description="Longest text used, in characters (>= 1), a public constant; longer records "
        "are set aside. None: a million.",
    )

    @model_validator(mode="after")
    def _columns_are_told_apart(self) -> Self:
        single = [*self.labels, *([self.id] if self.id else [])]
        # A label may also be a field of the object; a text that is a label is a mistake.
        for names in (self.object, single) if self.object else ([self.text, *single],):
            if repeated := sorted({name for name in names if names.count(name) > 1}):
                refuse("", "distinct columns", f"{repeated[0]!r} twice", "Name each column once.")
        for index, name in enumerate(self.labels):
            if name == "text" or name.startswith(OWN_COLUMNS):
                refuse(
                    f"labels.{index}",
                    f"another name than text, and than those that begin with {OWN_COLUMNS}",
                    repr(name),
                    "Published rows have columns of these names: rename it in the source.",
                )
        if self.object and "text" in self.model_fields_set:
            refuse("object", "columns.text or columns.object", "both", "Drop one of them.")
        return self


class PrivacyUnitSpec(Declaration):
    """Whose presence is hidden."""

    column: str | None = Field(
        default=None, description="Column that names the unit, e.g. customer_id; none: one record."
    )
    max_records: int = Field(
        default=1,
        ge=1,
        description="Records used of one unit, at most (>= 1), enforced before any mechanism; "
        "must be written where a column is.",
    )

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.column is None and self.max_records != 1:
            refuse(
                "max_records",
                "1 where the unit is one record",
                str(self.max_records),
                "Name the unit's column, or drop max_records.",
            )
        if self.column is not None and "max_records" not in self.model_fields_set:
            refuse(
                "max_records",
                f"a bound on the records of one {self.column!r}",
                "none",
                "Write max_records: 1 for one record a unit, or the bound you accept paying for.",
            )
        return self

    def to_unit(self) -> PrivacyUnit:
        """Returns the unit as mechanisms know it."""
        return PrivacyUnit(column=self.column, max_records=self.max_records)


class PublicFactsSpec(Declaration):
    """Facts about the private data that may be known to anybody. What is absent is private."""

    labels: dict[str, list[LabelWord] | dict[LabelWord, PublicWord]] = Field(
        default_factory=dict,
        description="Label column -> allowed values, or value -> how a prompt writes it. "
        "The set of labels must be public; a record with another label is set aside.",
    )
    records: int | None = Field(
        default=None, ge=1, description="Number of records (>= 1), if it is public."
    )
    words: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Words of a typical record (>= 1), if it is public: lengths in settings that "
        "`dpsynth advise` and `init` propose follow from it.",
    )
    slots: bool = Field(
        default=False,
        description="Whether the label, the public cluster and the place of every record are "
        "public; then only what a record says is protected. Needs neighboring_relation: zero-out.",
    )

    @model_validator(mode="after")
    def _usable_labels(self) -> Self:
        for column, values in self.labels.items():
            field = f"labels.{column}"
            if not values:
                refuse(field, "at least one value", "none", "List the allowed values.")
            if len(set(values)) != len(values):
                refuse(field, "distinct values", "a repeated value", "List each value once.")
            if len(set(as_seen(values))) != len(values):
                refuse(
                    field,
                    "values that look different",
                    "two that differ in invisible characters",
                    "Write each value as the source has it, once.",
                )
            if any(LABEL_SEPARATOR in value for value in values):
                refuse(
                    field, f"values without {LABEL_SEPARATOR!r}", "one with it", "Rename the value."
                )
            texts = self.texts(column)
            another = any(words != value and words in texts for value, words in texts.items())
            if another or len(set(as_seen(texts.values()))) != len(texts):
                refuse(
                    field,
                    "words of its own for every value",
                    "words that are another value" if another else "the same words twice",
                    "Prompts tell labels apart by them: write what sets each one apart.",
                )
        return self

    def texts(self, column: str) -> dict[str, str]:
        """Maps each value of `column` to how a prompt writes it, in declared order."""
        values = self.labels[column]
        return dict(values) if isinstance(values, dict) else {value: value for value in values}


class BudgetSpec(Declaration):
    """All that may ever be spent on this dataset, and how fast."""

    epsilon: float = Field(gt=0, allow_inf_nan=False, description="Total ε of the cohort (> 0).")
    delta: float = Field(
        gt=0,
        lt=1,
        description="Total δ of the cohort: a public constant below 1e-3 and, where the number of "
        "records n is public, at most 1 / (10 n).",
    )
    rounds: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="How often everything may be released within ε (>= 1): each round gets an "
        "equal part of the budget. A schedule needs as many rounds as it is to run.",
    )
    accountant: Literal["zcdp", "tight"] = Field(
        default="zcdp",
        description="zcdp: methods may be added later. tight: a plan fixed beforehand, smaller ε.",
    )
    accepts_ex_post: bool = Field(
        default=False,
        description="Whether releases with only a data-dependent (ex-post) bound are accepted. "
        "They are not (ε, δ)-DP.",
    )

    @model_validator(mode="after")
    def _small_delta(self) -> Self:
        if self.delta >= LARGEST_DELTA:
            refuse(
                "delta",
                f"0 < delta < {LARGEST_DELTA}",
                declared(self.delta),
                "Choose a public power of ten, at most 1 / (10 x number of records).",
            )
        return self


class HistogramSpec(Declaration):
    """The noisy histogram of clusters that clustered methods share."""

    budget_share: float = Field(
        default=0.02,
        gt=0,
        le=1,
        description="Share of the cohort's budget, in (0, 1], spent once. Shares compose: together "
        "they cost what a share of 1 allows.",
    )
    noise: Literal["laplace", "gaussian"] = Field(
        default="laplace", description="Noise of the counts (integer-valued)."
    )
    clusters_per_label: int = Field(
        default=4, ge=1, description="Clusters kept for each label (>= 1), the largest by count."
    )


class TopicHistogramSpec(Declaration):
    """The noisy histogram of public topics that conditional generation follows."""

    noise_std: float = Field(
        default=10.0,
        ge=1,
        allow_inf_nan=False,
        description="Standard deviation of the integer Gaussian noise on each count, in records "
        "(>= 1). Its cost is a small part of the budget; the methods share what it leaves.",
    )


class MethodSpec(Declaration):
    """One corpus to be made."""

    method: Name = Field(description="Registered method, see `dpsynth datasets methods`.")
    name: Name | None = Field(
        default=None, description="Folder of the corpus and its assets; none: the method's name."
    )
    budget_share: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of the cohort's budget, in (0, 1]; none: an equal part of what the "
        "others leave. A method that spends nothing (ex-post, or built on another release) takes "
        "none.",
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="Settings of the method, checked by the method."
    )

    @property
    def key(self) -> str:
        """Folder of the corpus: `name`, or the method's own name."""
        return self.name or self.method


class EvaluationSpec(Declaration):
    """The scoring of corpora. Scores stay internal: they are computed from private text."""

    rows: int = Field(
        default=1000,
        ge=10,
        description="Most rows scored of a corpus (>= 10); all corpora are scored on as many as "
        "the smallest has.",
    )
    reference_rows: int = Field(
        default=400, ge=10, description="Rows of the public-only and non-private references."
    )
    canaries: str | None = Field(
        default=None,
        description="Private text or Parquet file with one planted canary a line; none: no test.",
    )
    references: bool = Field(
        default=True, description="Whether real held-out text and public text are scored beside."
    )
    next_word: bool = Field(
        default=False,
        description="Whether a small language model is trained on every corpus and scored by the "
        "next words of held-out text it gets right.",
    )
    next_word_settings: dict[str, Any] = Field(
        default_factory=dict, description="Shape and training of that model."
    )


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
    def _comes_at_some_time(self) -> Self:
        for expression in self.expressions:
            if (problem := cron_problem(expression)) is not None:
                refuse(
                    "cron",
                    "five cron fields: minute, hour, day of month, month, day of week; or a word, "
                    "e.g. @daily",
                    problem,
                    'Fix it, e.g. "0 3 1 * *" for 03:00 on the first of each month.',
                )
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
