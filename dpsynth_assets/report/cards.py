"""Texts that leave with the data: dataset cards and privacy statements, in Markdown.

All are functions of a privacy label, so that a card can be rendered again and compared. Their words
stand in `cards.md.j2`.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import yaml

from dpsynth_assets.datasets.fields import OWN_COLUMNS
from dpsynth_assets.files.whole import short_text
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up, rounded_down, rounded_up
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import LedgerEntry
from dpsynth_assets.report.label import CODE, SCHEMA, Label, cohort_label, corpus_label
from dpsynth_assets.report.label_texts import is_not_run, is_recall
from dpsynth_assets.report.pages import leaves, markdown_table

if TYPE_CHECKING:
    import polars as pl

_PLAIN = re.compile(r"[\w .,:()/+-]+")
"""Values that mean nothing in Markdown."""

MEANINGS = {
    "text": "synthetic text",
    "id": "number of the row, unrelated to any private id",
    "method": "generation method",
    "origin": "where the method took the row from",
    "batch": "number of the batch of private contexts that voted on the tokens",
    "cluster": "public cluster of the batch; -1 where batches are not clustered",
    "topic": "public topic whose keywords were asked for; -1 for none",
    "n_tokens": "tokens of the text",
}
"""Column of a published corpus -> what it holds, of all but a dataset's own labels."""
_ADJACENCY = {
    "add-remove": "one dataset lacks every record that holds the secret",
    "replace-one": "the records that hold the secret have other content",
}
_COUNTED = {"acceptance_rate", "candidates", "turned_down", "rules_fit"}
_SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B")
"""Size categories of the Hugging Face hub, each ten times the one before."""


def dataset_card(
    label: Mapping[str, Any], *, columns: Sequence[str], rows: int, more_front: Sequence[str] = ()
) -> str:
    """A dataset card with front matter that Hugging Face `datasets` reads.

    Args:
        label: Privacy label of the corpus (`report.label.corpus_label`).
        columns: Columns of the Parquet files.
        rows: Rows of the Parquet files (released, so public).
        more_front: Further lines of front matter, such as the licence (`report.hub`).
    """
    title = f"{label['subject']['dataset']}: synthetic corpus by {label['method']['title']}"
    power = next((p for p in range(len(_SIZES) - 1) if rows < 10 ** (p + 3)), len(_SIZES) - 1)
    front = [
        f"pretty_name: {json.dumps(title)}",
        f"tags: [synthetic, {tag_of(label)}]",
        "task_categories: [text-generation, text-classification]",
        f"size_categories: [{_SIZES[power]}]",
        "configs:",
        "- config_name: default",
        "  data_files: data/*.parquet",
        *more_front,
    ]
    return str(_texts().dataset_card(label, title, front, columns, rows))


def privacy_statement(label: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """A cohort's statement: what was released, how, under which guarantee, and what was not summed.

    Args:
        label: Privacy label of the cohort (`report.label.cohort_label`).
        facts: `releases` (one mapping a charge) and `ledger_ok`, from the audit stage.
    """
    header = ("day (UTC)", "release", "mechanism", "guarantee", "ε alone", "state")
    table = markdown_table(header, map(_release_row, facts["releases"]))
    return str(_texts().privacy_statement(label, table, facts["ledger_ok"]))


def tag_of(label: Mapping[str, Any]) -> str:
    """Lists tags that a search finds: secret protection is no differential privacy."""
    secret = label["guarantee"]["type"] == "secret"
    return "secret-protection" if secret else "differential-privacy"


@cache
def _texts() -> Any:
    """The macros of the template."""
    from jinja2 import Environment, FileSystemLoader

    texts = Environment(  # noqa: S701 - Markdown; settings are quoted by `_value`
        loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, lstrip_blocks=True
    )
    own = {f"{OWN_COLUMNS}{name}": meaning for name, meaning in MEANINGS.items()}
    texts.globals |= {
        "epsilon_up": epsilon_up,
        "up": rounded_up,
        "down": rounded_down,
        "declared": declared,
        "in_words": _in_words,
        "kept_by": lambda kept: _in_words({k: kept[k] for k in kept if k not in _COUNTED}),
        "is_recall": is_recall,
        "is_not_run": is_not_run,
        "adjacency": _ADJACENCY,
        "own_columns": OWN_COLUMNS,
        "meanings": {**own, "text": MEANINGS["text"]},
    }
    return texts.get_template("cards.md.j2").module


def _in_words(parameters: Mapping[str, Any]) -> str:
    """Writes settings as `name` value, in the order of their names; a group's after a dot."""
    told = sorted(leaves(parameters), key=itemgetter(0))
    return "; ".join(f"`{'.'.join(names)}` {_value(value)}" for names, value in told if value != {})


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, int | float) or (isinstance(value, str) and _PLAIN.fullmatch(value)):
        return str(value)
    written = json.dumps(value, ensure_ascii=False).replace("`", "'")
    return f"`{written}`"  # A prompt may hold marks of Markdown.


def _release_row(release: Mapping[str, Any]) -> tuple[Any, ...]:
    epsilon = "—" if release["epsilon"] is None else epsilon_up(release["epsilon"])
    name = f"{release['asset']} ({release['release']})"
    at, mechanism, guarantee, state = map(release.get, ("at", "mechanism", "guarantee", "state"))
    return at, name, mechanism, guarantee, epsilon, state


# What a card says for the Hugging Face hub beside the guarantee: licence, language, features.

PIPELINE = "text-generation"


@dataclass(frozen=True, kw_only=True)
class HubFacts:
    """What the owner declares of a package.

    Attributes:
        license: Identifier of the licence, as the hub names it; empty: none is stated.
        language: Code of the texts' language, e.g. `en`; empty: none is stated.
        classes: Declared values of each label column, in order.
    """

    license: str = ""
    language: str = ""
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)


def hub_dataset_card(label: Mapping[str, Any], rows: "pl.DataFrame", facts: HubFacts) -> str:
    """The card of an exported corpus: that of the published one, with licence and features."""
    front = {**_declared(facts), "dataset_info": {"features": _features(rows, facts)}}
    return dataset_card(
        label, columns=rows.columns, rows=rows.height, more_front=_yaml_lines(front)
    )


def hub_model_card(label: Mapping[str, Any], prompts: Mapping[str, str], facts: HubFacts) -> str:
    """The card of an exported generator, with the prompt of each label.

    Args:
        label: Privacy label of the generator.
        prompts: Label -> the text that a row of it is written after.
        facts: What the owner declares.
    """
    front = {
        **_declared(facts),
        "library_name": "transformers",
        "pipeline_tag": PIPELINE,
        "tags": ["synthetic", tag_of(label)],
    }
    title = f"{label['subject']['dataset']}: generator by {label['method']['title']}"
    return str(_texts().generator_card(label, title, _yaml_lines(front), prompts))


def _declared(facts: HubFacts) -> dict[str, Any]:
    declared: dict[str, Any] = {"license": facts.license} if facts.license else {}
    return declared | ({"language": [facts.language]} if facts.language else {})


def _features(rows: "pl.DataFrame", facts: HubFacts) -> list[dict[str, Any]]:
    return [
        {"name": name, "dtype": _dtype(str(kind), facts.classes.get(name))}
        for name, kind in rows.schema.items()
    ]


def _dtype(kind: str, classes: Sequence[str] | None) -> Any:
    if not classes:
        return {"Boolean": "bool"}.get(kind, kind.lower())
    return {"class_label": {"names": {str(i): name for i, name in enumerate(classes)}}}


def _yaml_lines(front: Mapping[str, Any]) -> list[str]:
    return yaml.safe_dump(dict(front), sort_keys=False, allow_unicode=True).splitlines()


# What was published, read back and compared with the ledger.
#
# An edited card, or a number of it, is named.

LABEL_FILE = "privacy_label.json"
CARD_FILE = "README.md"
STATEMENT_FILE = "privacy_statement.md"
UNREADABLE_LABEL = f"{LABEL_FILE}: expected a privacy label, got none that can be read."


def released_folder(dataset: str, folder: str) -> Path:
    """Folder of one published corpus."""
    return home().released / dataset / folder


def released_rows_path(dataset: str, folder: str) -> Path:
    """The Parquet file of one published corpus."""
    return released_folder(dataset, folder) / "data" / "train-00000-of-00001.parquet"


def read_released(dataset: str, folder: str) -> pl.DataFrame:
    """Rows of a published corpus."""
    return pl.read_parquet(released_rows_path(dataset, folder))


def released_label(dataset: str, folder: str) -> dict[str, Any]:
    """The privacy label of a published corpus."""
    return dict(json.loads((released_folder(dataset, folder) / LABEL_FILE).read_text()))


def corpus_problems(folder: Path, entries: Sequence[LedgerEntry]) -> list[str]:
    """Lists how a published corpus's label and card differ from the ledger; empty if they agree.

    Args:
        folder: Folder of one published corpus: label, card and `data/*.parquet`.
        entries: All ledger entries, in order.
    """

    def recomputed(seen: list[LedgerEntry], label: Label) -> tuple[Label, str]:
        made = corpus_label(seen, str(label["subject"].get("reservation")), label["audits"])
        rows = pl.read_parquet(folder / "data")
        return made, dataset_card(made, columns=rows.columns, rows=rows.height)

    return _problems(folder / CARD_FILE, entries, recomputed)


def statement_problems(folder: Path, entries: Sequence[LedgerEntry]) -> list[str]:
    """Lists how a cohort's published statement differs from the ledger; empty if they agree."""

    def recomputed(seen: list[LedgerEntry], label: Label) -> tuple[Label, str]:
        made = cohort_label(seen, str(label["subject"].get("cohort")), label["audits"])
        return made, privacy_statement(made, {"releases": releases(seen, made), "ledger_ok": True})

    return _problems(folder / STATEMENT_FILE, entries, recomputed)


def _problems(
    text: Path,
    entries: Sequence[LedgerEntry],
    recomputed: Callable[[list[LedgerEntry], Label], tuple[Label, str]],
) -> list[str]:
    """Compares the label beside a text, and the text, with those that the ledger gives."""
    if (label := read_label(text.parent)) is None:
        return [UNREADABLE_LABEL]
    if problems := _version_problem(label):
        return problems
    try:
        made, expected = recomputed(_as_of(label, entries), label)
    except PrivacyError as refusal:
        return [f"{LABEL_FILE}: {refusal}"]
    problems = [
        f"{LABEL_FILE}: {name} differs from the ledger. Publish again from the ledger."
        for name in differing_sections(label, made)
    ]
    if (text.read_text() if text.exists() else "") != expected:
        told = "differs from what the ledger says. Publish again from the ledger."
        problems.append(f"{text.name}: {told}")
    return problems


def rows_problem(folder: Path, expected: Callable[[str], pl.DataFrame | None]) -> list[str]:
    """Says whether a published corpus holds other rows than the release its label names.

    Args:
        folder: Folder of one published corpus, whose label agrees with the ledger.
        expected: Published rows of a release, by its reservation.
    """
    if (label := read_label(folder)) is None:
        return [UNREADABLE_LABEL]
    try:
        paid = expected(str(label["subject"].get("reservation")))
    except PrivacyError as refusal:
        return [str(refusal)]
    if paid is not None and paid.equals(pl.read_parquet(folder / "data")):
        return []
    return ["data: expected the rows of the release that was paid for, got others. Publish again."]


def releases(entries: Sequence[LedgerEntry], label: dict[str, Any]) -> list[dict[str, Any]]:
    """Every charge of a cohort as the statement lists it, aligned with the label's mechanisms."""
    cohort = label["subject"]["cohort"]
    committed = {entry.reservation for entry in entries if entry.kind == "commit"}
    charges = [e for e in entries if e.kind == "reserve" and e.cohort == cohort]
    return [
        {
            "at": entry.recorded_at[:10],  # Two charges lie as far apart as a private stage took.
            "asset": entry.asset,
            "release": entry.release,
            "mechanism": entry.mechanism,
            "guarantee": entry.guarantee,
            "epsilon": mechanism["epsilon_alone"],
            "run_id": entry.run_id,
            "state": "released" if entry.reservation in committed else "charged only",
        }
        for entry, mechanism in zip(charges, label["mechanisms"], strict=True)
    ]


def read_label(folder: Path) -> dict[str, Any] | None:
    """The label in a folder; None where there is none that can be read."""
    try:
        label: dict[str, Any] = json.loads(short_text(folder / LABEL_FILE))
        _ = label["subject"]["kind"], label["cohort"]["as_of_entry"], label["audits"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return label


def _version_problem(label: dict[str, Any]) -> list[str]:
    """One line where another version wrote the label, whose claims may be corrected since."""
    composition = label.get("composition")
    code = composition.get("code") if isinstance(composition, dict) else None
    written = label.get("schema"), code
    if written == (SCHEMA, CODE):
        return []
    return [
        f"{LABEL_FILE}: composition and card: expected {SCHEMA} by {CODE}, got {written[0]} by "
        f"{code}: written by another version. Publish again, at no cost."
    ]


def _as_of(label: dict[str, Any], entries: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """The ledger as it was when the label was written."""
    last = label["cohort"]["as_of_entry"]
    if not isinstance(last, int) or not 0 < last <= len(entries):
        raise PrivacyError(
            f"expected a ledger of {last} entries or more, got {len(entries)}: this is another "
            "ledger, or its last entries were removed."
        )
    return list(entries[:last])


def differing_sections(
    label: Mapping[str, Any], recomputed: Mapping[str, Any], apart: Collection[str] = ()
) -> list[str]:
    """Names of the sections of a label that another one contradicts.

    Args:
        label: As it was read.
        recomputed: As the ledger gives it.
        apart: Fields of the section `cohort` that are not compared.
    """
    both = [
        {**each, "cohort": {k: v for k, v in each["cohort"].items() if k not in apart}}
        for each in (label, json.loads(json.dumps(recomputed)))
    ]
    return sorted(name for name in {*both[0], *both[1]} if both[0].get(name) != both[1].get(name))
