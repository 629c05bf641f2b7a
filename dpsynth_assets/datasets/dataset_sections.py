"""Sections of a dataset's declaration: source, columns, unit, facts, budget, methods, schedule.

An expression of a schedule is read as Dagster reads it, which carries a copy of croniter; the
package itself is asked here, because a dataset file is checked without Dagster.
"""

import codecs
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, PrivateAttr

from dpsynth_assets.datasets.fields import (
    IS_PATH,
    OWN_COLUMNS,
    Declaration,
    LabelWord,
    Name,
    PublicWord,
    Refusal,
    as_seen,
    refuse,
    twice,
)

UTF_8 = "utf-8"
"""The encoding of a file that declares none."""

MAX_SET_ASIDE = 0.05
"""More records than one in twenty are hardly ever set aside on purpose."""

_NO_FILE_ENCODINGS = {"idna", "punycode", "unicode-escape", "raw-unicode-escape"}
_WITH_STATE = ("utf-7", "hz", "iso2022")
"""Encodings in which one record can change how all that follow are read."""


def _canonical_encoding(name: str) -> str:
    """Returns Python's own name of an encoding.

    Raises:
        PydanticCustomError: It is unknown, none of text files, or has a state.
    """
    try:
        found = codecs.lookup(name).name.replace("_", "-")
        "a".encode(found)  # Codecs that are none of text are refused here.
    except (LookupError, ValueError):
        found = ""
    if not found or found in _NO_FILE_ENCODINGS or found.startswith(_WITH_STATE):
        refuse(
            "",
            "the name of a text encoding without escape sequences",
            repr(name)[:80],
            "Write e.g. utf-8, cp1252, latin-1 or utf-16, or convert the file.",
        )
    return UTF_8 if found == "utf-8-sig" else found


def _field_separator(sign: str) -> str:
    """Returns a sign that can separate fields.

    Raises:
        PydanticCustomError: It is not one ASCII character, or could be part of a field.
    """
    if len(sign) != 1 or not sign.isascii() or sign.isalnum() or sign in '"\n\r\0':
        refuse(
            "",
            "one ASCII character that is no letter, digit, quotation mark or line break",
            repr(sign)[:80],
            r'Write e.g. ";", "|" or "\t".',
        )
    return sign


class SourceSpec(Declaration):
    """The source of the records."""

    path: Annotated[str, IS_PATH] = Field(min_length=1)
    """File, glob, folder written by Hugging Face `save_to_disk`, or hf:// address. A relative path
    starts at the project root or, failing that, at the YAML file's folder."""
    format: Literal["auto", "csv", "jsonl", "parquet", "huggingface"] = "auto"
    """File format; auto: by the suffix, or by a folder's content."""
    separator: Annotated[str, AfterValidator(_field_separator)] | None = Field(
        None, exclude_if=lambda separator: separator is None
    )
    """Character between the fields of a CSV file, e.g. ";"; none: a tab in a .tsv file, else a
    comma."""
    encoding: Annotated[str, AfterValidator(_canonical_encoding)] = Field(
        UTF_8, exclude_if=lambda encoding: encoding == UTF_8
    )
    """Encoding of a CSV file, by a name that Python knows, e.g. cp1252, latin-1 or utf-16. Bytes
    that it does not know spoil their record alone."""
    max_set_aside: float = Field(
        MAX_SET_ASIDE, ge=0, le=1, exclude_if=lambda share: share == MAX_SET_ASIDE
    )
    """Largest share of the records, in [0, 1], that rules may set aside; more is refused before
    anything is charged."""
    version: PublicWord = "1"
    """Public name of the data's version. A new version is a new state of the same records: it does
    not refund budget."""

    _is_found: bool = PrivateAttr(default=False)

    @property
    def is_found(self) -> bool:
        """Whether a pattern found the file: it was not named, and a link may lead elsewhere."""
        return self._is_found

    def with_file(self, path: str) -> Self:
        """The same source, of one file that its pattern has found."""
        found = self.model_copy(update={"path": path})
        found._is_found = True
        return found


LABEL_SEPARATOR = " | "
"""Joins the values of several label columns into one composite label."""

LARGEST_DELTA = 1e-3
"""δ at or above this is no useful guarantee for any number of records."""


class ColumnsSpec(Declaration):
    """The columns of the source that are read. Every other column is ignored."""

    text: str = Field("text", min_length=1)
    """Column of the text."""
    object: list[str] = Field(default_factory=list)
    """Columns that make up the text instead: one compact JSON object a record, in this order,
    numbers and lists kept. Empty: the text is a column."""
    labels: list[str] = Field(default_factory=list)
    """Label columns, in the order in which prompts name them; empty: no labels."""
    id: str | None = None
    """Column that identifies a record, needed beside cohorts; none: identified by its content."""
    max_text_characters: int | None = Field(None, ge=1)
    """Longest text used, in characters (>= 1), a public constant; longer records are set aside.
    None: a million."""

    def refusals(self) -> Iterator[Refusal]:
        """Columns that are named twice, or as published rows name theirs."""
        single = [*self.labels, *([self.id] if self.id else [])]
        # A label may also be a field of the object; a text that is a label is a mistake.
        for names in (self.object, single) if self.object else ([self.text, *single],):
            yield from twice("", names, "Name each column once.")
        for index, name in enumerate(self.labels):
            if name == "text" or name.startswith(OWN_COLUMNS):
                yield Refusal(
                    f"labels.{index}",
                    f"a name other than text that does not begin with {OWN_COLUMNS}",
                    "Published rows have columns of these names: rename yours in the source.",
                )
        if self.object and "text" in self.model_fields_set:
            yield Refusal("object", "columns.text or columns.object", "Drop one of them.", "both")


class PrivacyUnitSpec(Declaration):
    """Whose presence is hidden."""

    column: str | None = None
    """Column that names the unit, e.g. customer_id; none: one record."""
    max_records: int = Field(1, ge=1)
    """Records used of one unit, at most (>= 1), enforced before any mechanism; must be written
    where a column is."""

    def refusals(self) -> Iterator[Refusal]:
        """A bound without a unit, or a unit without one."""
        if self.column is None and self.max_records != 1:
            remedy = "Name the unit's column, or drop max_records."
            yield Refusal("max_records", "1, since the unit is one record", remedy)
        if self.column is not None and "max_records" not in self.model_fields_set:
            yield Refusal(
                "max_records",
                f"a bound on the records of one {self.column!r}",
                "Write max_records: 1 for one record per unit; a larger bound costs more.",
                "none",
            )


class PublicFactsSpec(Declaration):
    """Facts about the private data that may be known to anybody. What is absent is private."""

    labels: dict[str, list[LabelWord] | dict[LabelWord, PublicWord]] = Field(default_factory=dict)
    """Label column -> allowed values, or value -> how a prompt writes it. The set of labels must be
    public; a record with another label is set aside."""
    records: int | None = Field(None, ge=1)
    """Number of records (>= 1), if it is public."""
    words: int | None = Field(None, ge=1, le=100_000)
    """Words of a typical record (>= 1), if it is public: lengths in settings that `dpsynth advise`
    and `init` propose follow from it."""
    slots: bool = False
    """Whether the label, the public cluster and the place of every record are public; then only
    what a record says is protected. Needs neighboring_relation: zero-out."""

    def refusals(self) -> Iterator[Refusal]:
        """Labels that look alike, in the source or in a prompt."""
        for column, values in self.labels.items():
            field, texts = f"labels.{column}", self.texts(column)
            if not values:
                yield Refusal(field, "at least one value", "List the allowed values.")
            if any(LABEL_SEPARATOR in value for value in values):
                expected = f"values without {LABEL_SEPARATOR!r}"
                yield Refusal(field, expected, "Rename the value.", "one with it")
            if len(set(as_seen(values))) != len(values):
                yield Refusal(
                    field,
                    "values that look different",
                    "Write each value as the source has it, once.",
                    "two that are alike or differ in invisible characters",
                )
            another = any(words != value and words in texts for value, words in texts.items())
            if another or len(set(as_seen(texts.values()))) != len(texts):
                yield Refusal(
                    field,
                    "different words for every value",
                    "Prompts distinguish labels by these words: describe each label.",
                    "words that are another value" if another else "the same words twice",
                )

    def texts(self, column: str) -> dict[str, str]:
        """Maps each value of `column` to how a prompt writes it, in declared order."""
        values = self.labels[column]
        return dict(values) if isinstance(values, dict) else {value: value for value in values}


class BudgetSpec(Declaration):
    """All that may ever be spent on this dataset, and how fast."""

    epsilon: float = Field(gt=0, allow_inf_nan=False)
    """Total ε of the cohort (> 0)."""
    delta: float = Field(gt=0, lt=LARGEST_DELTA)
    """Total δ of the cohort: a public constant below 1e-3 and, where the number of records n is
    public, at most 1 / (10 n)."""
    rounds: int = Field(1, ge=1, le=10_000)
    """How often everything may be released within ε (>= 1): each round gets an equal part of
    the budget. A schedule needs as many rounds as it is to run."""
    accountant: Literal["zcdp", "tight"] = "zcdp"
    """zcdp: methods may be added later. tight: a plan fixed beforehand, smaller ε."""
    accepts_ex_post: bool = False
    """Whether releases with only a data-dependent (ex-post) bound are accepted. They are not (ε,
    δ)-DP."""


class HistogramSpec(Declaration):
    """The noisy histogram of clusters that clustered methods share."""

    budget_share: float = Field(0.02, gt=0, le=1)
    """Share of the cohort's budget, in (0, 1], spent once. Shares compose: together they cost what
    1 allows, regardless of what each costs alone."""
    noise: Literal["laplace", "gaussian"] = "laplace"
    """Noise of the counts (integer-valued)."""
    clusters_per_label: int = Field(4, ge=1)
    """Clusters kept for each label (>= 1), the largest by count."""


class TopicHistogramSpec(Declaration):
    """The noisy histogram of public topics that conditional generation follows."""

    noise_std: float = Field(10.0, ge=1, allow_inf_nan=False)
    """Standard deviation of the integer Gaussian noise on each count, in records (>= 1). Its cost
    is a small part of the budget; the methods share what it leaves."""


class MethodSpec(Declaration):
    """One corpus to be made."""

    method: Name
    """Registered method, see `dpsynth datasets methods`."""
    name: Name | None = None
    """Folder of the corpus and its assets; none: the method's name."""
    budget_share: float | None = Field(None, gt=0, le=1)
    """Share of the cohort's budget, in (0, 1]; none: an equal part of what the others leave. A
    method that spends nothing (ex-post, or built on another release) takes none."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the method, checked by the method."""

    @property
    def key(self) -> str:
        """Folder of the corpus: `name`, or the method's own name."""
        return self.name or self.method


_FIELDS = 5
_SOME_DAY = datetime(2026, 1, 1)  # noqa: DTZ001 - whether a day comes depends on no time zone


def cron_problem(cron: str) -> str | None:
    """Says what is wrong with a cron expression; None where it holds.

    Known are five fields of numbers, names of months and days, `*`, lists, ranges, steps, `L` (the
    last day of a month, or `L5`: its last Friday) and `5#1` (its first Friday), and the words
    `@hourly`, `@daily`, `@weekly`, `@monthly` and `@yearly`. An expression that never comes, such
    as 30 February, is wrong too, and so is one that stands for another time at each reading.
    """
    from croniter import CroniterBadDateError, CroniterError, croniter

    parts = cron.lower().split()
    if len(parts) != _FIELDS and not cron.startswith("@"):
        return f"{len(parts)} fields"
    if any(part[0] in "hr" for part in parts):
        return f"{cron}, which stands for times drawn at random"
    try:
        days, month = croniter.expand(cron)[0][2:4]
        croniter(cron, _SOME_DAY).get_next(datetime)
    except CroniterBadDateError:
        return f"{cron}, a date that no year has"
    except CroniterError:
        return f"{cron}, which is not a cron expression"
    if month == [2] and days in ([30], [31]):  # With a weekday beside, croniter takes it.
        return f"{cron}, a date that no year has"
    return None


class ScheduleSpec(Declaration):
    """The schedule on which corpora are made again. Starts switched off."""

    cron: str | list[str] = Field(min_length=1)
    """Cron expression, e.g. "0 3 1 * *", `@daily`, `0 3 L * *` (the last day of a month), `0 3 * *
    5#1` (its first Friday); or a list of them."""
    methods: list[Name] = Field(default_factory=list)
    """Corpora made, by name; empty: all."""
    rows: int | None = Field(None, ge=1)
    """Rows asked of each corpus made (>= 1), where a method writes them from what it released and
    rows cost nothing; none: as its settings say."""
    timezone: str = "UTC"
    """IANA time zone of the cron fields, e.g. Europe/Berlin."""

    @property
    def expressions(self) -> tuple[str, ...]:
        """The cron expressions: any of them makes a tick."""
        return (self.cron,) if isinstance(self.cron, str) else tuple(self.cron)

    def refusals(self) -> Iterator[Refusal]:
        """Times that never come, and zones that are not known."""
        for expression in self.expressions:
            if (problem := cron_problem(expression)) is not None:
                yield Refusal(
                    "cron",
                    "five cron fields: minute, hour, day of month, month, day of week; or a word, "
                    "e.g. @daily",
                    'Fix it, e.g. "0 3 1 * *" for 03:00 on the first of each month.',
                    problem,
                )
        try:
            ZoneInfo(self.timezone)
        except (KeyError, ValueError, OSError):  # An unknown name, a path, a folder of zones.
            remedy = "Name one, e.g. UTC or Europe/Berlin."
            yield Refusal("timezone", "a time zone of the IANA database", remedy)
