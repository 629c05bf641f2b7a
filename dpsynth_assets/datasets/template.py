"""The commented dataset file that `dg scaffold defs` and `dpsynth init` write."""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

from dpsynth_assets.datasets.prompt_words import looks_like_code
from dpsynth_assets.datasets.source_section import UTF_8

_TO_LIST = (
    "    # TO DECIDE: list the public values of each column in columns.labels in place of `labels`",
    "    # above (`dpsynth init` showed those it found). Until then the file is refused.",
)


_DOCUMENTS, _FOR_TOPICS = 500, 1500
"""Public documents that are written; topics are fitted to more of them."""

_NO_WORDS = (
    "    # words: 50                    # of a typical record, if public: lengths follow from it"
)

_METHODS_LINE = (
    "  methods:                         "
    "# one corpus each; without budget_share: equal parts of the rest"
)
_SECTIONS = {
    "cluster_histogram": "noisy counts by label and public cluster; gives batch counts",
    "topic_histogram": "noisy counts by label and public topic",
}
"""What the histograms are that methods share."""


@dataclass(frozen=True, kw_only=True)
class ProposedCohort:
    """One method, and what it builds on.

    Attributes:
        title: Its name in words.
        methods: Entries of `methods`, in the order in which they run.
        sections: Further fields of the dataset file that they need.
        expected: What to expect of it, in a few words.
    """

    title: str = "epsvec"
    methods: tuple[Mapping[str, Any], ...] = ({"method": "epsvec", "settings": {}},)
    sections: Mapping[str, Any] = field(default_factory=dict)
    expected: str = ""


@dataclass(frozen=True, kw_only=True)
class ProposedMethods:
    """The methods that a new dataset file names, chosen by declared numbers alone.

    Attributes:
        chosen: What is in force.
        beside: The next best, which stand beside it as comments.
        why: Why it and no other, in a sentence or two.
    """

    chosen: ProposedCohort = field(default_factory=ProposedCohort)
    beside: tuple[ProposedCohort, ...] = ()
    why: str = "A method that writes any number of rows, whatever number of records there is."


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Facts known of a dataset when its file is written. The file is public, and so are they.

    Attributes:
        path: Where the records lie; None: a made-up path.
        separator: What separates the fields of a CSV file; None: what its name says.
        encoding: Encoding of a CSV file.
        text: Column of the text.
        id: Column that identifies a record.
        unit: Column of whoever is protected; None: one record is.
        max_records: Records used of one unit.
        labels: Label column -> values that the steward has named as public.
        unconfirmed: Label column that is used -> values found in the records. The file is refused
            until the steward lists public ones: none of those found is written to it.
        epsilon: Budget ε.
        delta: Budget δ.
        label_words: Label value -> how a prompt writes it, where that is not the value itself.
        records: Number of records, if it is public.
        words: Words of a typical record, if public.
        public_data: Name of the public base.
        domain: What the texts are, in public words: the file then declares a base of its own, which
            stands in the place of `public_data`. Empty: it does not.
        method: The methods that are proposed.
    """

    path: str | None = None
    separator: str | None = None
    encoding: str = UTF_8
    text: str = "text"
    id: str | None = None
    unit: str | None = None
    max_records: int = 1
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unconfirmed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    epsilon: float = 4.0
    delta: float = 1e-6
    label_words: Mapping[str, str] = field(default_factory=dict)
    records: int | None = None
    words: int | None = None
    public_data: str = "english"
    domain: str = ""
    method: ProposedMethods = field(default_factory=ProposedMethods)


def dataset_template(name: str, choices: Choices | None = None) -> str:
    """Fills the template of a dataset file.

    Args:
        name: Name of the dataset: a lower-case letter, then letters, digits and underscores.
        choices: What is known of the dataset; None: nothing.

    Returns:
        YAML that validates as it stands, given columns and a path that exist, but for labels whose
        public values are to be listed. Nothing in it depends on values of records.
    """
    known = choices or Choices()
    labels = ", ".join(map(scalar, [*known.labels, *known.unconfirmed]))
    document = _dataset_document(name, known, labels)
    if not known.domain:
        return document
    documents = _FOR_TOPICS if "topic_histogram" in known.method.chosen.sections else _DOCUMENTS
    return document + base_template(name, known.domain, _label_words(known), documents)


def _dataset_document(name: str, known: Choices, labels: str) -> str:
    """Fills the document that declares the dataset itself."""
    return _text("dataset").format(
        name=name,
        padded_name=_padded(name, 26),
        path=_padded(scalar(known.path or f"data/{name}.parquet"), 24),
        dialect=_dialect(known),
        text=scalar(known.text),
        labels=_padded(f"[{labels}]", 22),
        id=_padded(f"id: {scalar(known.id)}" if known.id else "# id: review_id", 30),
        unit=_unit(known),
        public_labels=_padded("" if known.labels else "{}", 22),
        values=_values(known),
        epsilon=f"{known.epsilon!r}",
        delta=_padded(_float(known.delta), 23),
        records=_padded(
            f"    records: {known.records}" if known.records else "    # records: 5000", 34
        )
        + " # only if the number of records is public",
        public_data=_padded(base_name(name) if known.domain else known.public_data, 19),
        words=f"    words: {known.words}" if known.words else _NO_WORDS,
        sections="".join(_section(*each) for each in known.method.chosen.sections.items()),
        methods_line=_METHODS_LINE,
        why="".join(f"    # {line}\n" for line in textwrap.wrap(known.method.why, 94)),
        methods="\n".join(_entries(known.method.chosen)),
        beside="".join(_commented_cohort(each) for each in known.method.beside),
    )


def _text(name: str) -> str:
    """A template beside this module."""
    return Path(__file__).with_name(f"{name}.yaml.template").read_text(encoding="utf-8")


def _dialect(known: Choices) -> str:
    """The lines on how a CSV file is written: in force where they are no defaults."""
    separator, encoding = '# separator: ";"', "# encoding: cp1252"
    if known.separator is not None:
        separator = f"separator: {json.dumps(known.separator)}"
    if known.encoding != UTF_8:
        encoding = f"encoding: {known.encoding}"
    return (
        f"    {_padded(separator, 30)} # of a CSV file; default: a comma, in .tsv a tab\n"
        f"    {_padded(encoding, 30)} # of a CSV file; default: utf-8\n"
    )


def _label_words(known: Choices) -> list[str]:
    """Kinds of text for the public base: values that the steward has named as public, in words."""
    columns = [[known.label_words.get(each, each) for each in v] for v in known.labels.values()]
    kinds = [", ".join(words) for words in product(*columns)] if columns else []
    return [] if any(map(looks_like_code, kinds)) else kinds


def _section(name: str, fields: Mapping[str, Any]) -> str:
    head = _padded(f"  {name}:{'' if fields else ' {}'}", 35)
    lines = "".join(f"    {field}: {json.dumps(value)}\n" for field, value in fields.items())
    return f"{head}# {_SECTIONS[name]}\n{lines}\n"


def _entries(cohort: ProposedCohort) -> list[str]:
    """Lines of a list of methods, a setting each."""
    lines = []
    for entry in cohort.methods:
        lines.append(f"    - method: {entry['method']}")
        if "budget_share" in entry:
            lines.append(f"      budget_share: {entry['budget_share']}")
        settings = entry["settings"]
        lines.append("      settings:" if settings else "      settings: {}")
        lines += [f"        {name}: {json.dumps(value)}" for name, value in settings.items()]
    return lines


def _commented_cohort(cohort: ProposedCohort) -> str:
    """Another method in the place of the one above, with the sections it needs."""
    needs = f" (needs {', '.join(cohort.sections)})" if cohort.sections else ""
    told = textwrap.wrap(f"Or {cohort.expected}{needs}:", 94)
    lines = [*told, *(line[4:] for line in _entries(cohort))]
    return "".join(f"    # {line}\n" for line in lines) + "\n"


def scalar(value: str) -> str:
    """Writes text as a YAML scalar that is read back as that text, within a list too."""
    plain = re.fullmatch(r"[A-Za-z_/][\w./-]*", value, re.ASCII)
    words = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
    if plain and value.lower() not in words:
        return value
    return json.dumps(value, ensure_ascii=not value.isprintable())


def _unit(known: Choices) -> str:
    """The unit's block: in force where a column is chosen, else a comment to be decided on."""
    column = known.unit or "customer_id"
    mark = "" if known.unit else "# "
    records = known.max_records if known.unit else 5
    bound = _padded(f"{mark}  max_records: {records}", 32)
    return (
        f"  {mark}privacy_unit:\n"
        f"  {mark}  column: {scalar(column)}\n"
        f"  {bound} # records used of one person; a larger bound costs more noise"
    )


def _values(known: Choices) -> str:
    """Label values: those that were named as public; of others only that they are to be listed."""
    lines = [f"      {label_line(*each, known.label_words)}" for each in known.labels.items()]
    return "".join(f"{line}\n" for line in (*lines, *(_TO_LIST if known.unconfirmed else ())))


def label_line(name: str, values: Sequence[str], words: Mapping[str, str] | None = None) -> str:
    """Writes a label column and its public values as a dataset file has them.

    Args:
        name: The column.
        values: Its public values.
        words: How a prompt writes a value that it does not write as it is.
    """
    if not words or not set(values) & words.keys():
        return f"{scalar(name)}: [{', '.join(map(scalar, values))}]"
    pairs = (f"{scalar(value)}: {scalar(words.get(value, value))}" for value in values)
    return f"{scalar(name)}: {{{', '.join(pairs)}}}"


def _float(value: float) -> str:
    """Writes 1e-06 as 1.0e-6: YAML 1.1 reads a number without a point as text."""
    digits, exponent = f"{Decimal(repr(value)):e}".split("e")
    return f"{float(digits)}e{int(exponent)}"


def _padded(text: str, width: int) -> str:
    """Fills up to where comments begin."""
    return text.ljust(width)


_NO_LABELS = """\
    # labels: [one-star review, five-star review]  # kinds of text, in public words"""


def base_name(dataset: str) -> str:
    """The name of a dataset's own public base."""
    return f"{dataset}_public"


def base_template(dataset: str, domain: str, labels: Sequence[str], documents: int) -> str:
    """Fills the template of a dataset's own public base, a second YAML document.

    Args:
        dataset: Name of the dataset.
        domain: What the texts are, in public words.
        labels: Kinds of text in public words; none: a comment shows where they stand.
        documents: How many public documents are written.
    """
    listed = ", ".join(json.dumps(label, ensure_ascii=False) for label in labels)
    return _text("base").format(
        name=base_name(dataset),
        documents=documents,
        domain=json.dumps(domain, ensure_ascii=False),
        labels=f"    labels: [{listed}]" if labels else _NO_LABELS,
    )
