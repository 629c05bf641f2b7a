"""The commented dataset file that `dg scaffold defs` and `dpsynth init` write."""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from dpsynth_assets.datasets.dataset_sections import UTF_8
from dpsynth_assets.datasets.prompting import looks_like_code
from dpsynth_assets.privacy.directed_rounding import declared

_DOCUMENTS, _FOR_TOPICS = 500, 1500
"""Public documents that are written; topics are fitted to more of them."""

_COMMENT = 94
"""Characters of a comment's line."""


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
        beside: The next best, which are next to it as comments.
        why: Why it and no other, in a sentence or two.
    """

    chosen: ProposedCohort = field(default_factory=ProposedCohort)
    beside: tuple[ProposedCohort, ...] = ()
    why: str = "A method that writes any number of rows from any number of records."


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Facts known of a dataset when its file is written. The file is public, and so are they.

    Attributes:
        path: Where the records lie; None: a made-up path.
        separator: What separates the fields of a CSV file; None: what its name says.
        encoding: Encoding of a CSV file.
        text: Column of the text.
        id: Column that identifies a record.
        unit: Column of the persons who are protected; None: one record is.
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
    document = filled("dataset.yaml.template", name=name, known=known, base=base_name(name))
    if not known.domain:
        return document
    documents = _FOR_TOPICS if "topic_histogram" in known.method.chosen.sections else _DOCUMENTS
    own = {"name": base_name(name), "domain": known.domain, "labels": _label_words(known)}
    return document + filled("base.yaml.template", documents=documents, **own)


def filled(template: str, **values: Any) -> str:
    """Fills a template beside this module; it stands in the words of YAML, not of HTML."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(  # noqa: S701 - no markup is written
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "padded": str.ljust,
        "scalar": scalar,
        "json": json.dumps,
        "words": partial(json.dumps, ensure_ascii=False),
        "number": _float,
        "declared": declared,
        "quoted": repr,
        "wrapped": lambda text: textwrap.wrap(text, _COMMENT),
    }
    made.globals |= {"label_line": label_line}
    return made.get_template(template).render(values)


def _label_words(known: Choices) -> list[str]:
    """Kinds of text for the public base: values that the steward has named as public, in words."""
    columns = [[known.label_words.get(each, each) for each in v] for v in known.labels.values()]
    kinds = [", ".join(words) for words in product(*columns)] if columns else []
    return [] if any(map(looks_like_code, kinds)) else kinds


def scalar(value: str) -> str:
    """Writes text as a YAML scalar that is read back as that text, within a list too."""
    plain = re.fullmatch(r"[A-Za-z_/][\w./-]*", value, re.ASCII)
    words = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
    if plain and value.lower() not in words:
        return value
    return json.dumps(value, ensure_ascii=not value.isprintable())


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


def base_name(dataset: str) -> str:
    """The name of a dataset's own public base."""
    return f"{dataset}_public"
