"""What was published, read back and compared with the ledger.

An edited card, or a number of it, is named.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from dpsynth_assets.paths import home
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import LedgerEntry
from dpsynth_assets.report.cards import dataset_card, privacy_statement
from dpsynth_assets.report.label import CODE, SCHEMA, Label, cohort_label, corpus_label

LABEL_FILE = "privacy_label.json"
CARD_FILE = "README.md"
STATEMENT_FILE = "privacy_statement.md"


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
    label, problems = _read_label(text.parent)
    if label is None or (problems := _version_problem(label)):
        return problems
    try:
        made, expected = recomputed(_as_of(label, entries), label)
    except PrivacyError as refusal:
        return [f"{LABEL_FILE}: {refusal}"]
    problems = _differences(label, made)
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
    label, problems = _read_label(folder)
    if label is None:
        return problems
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


def _read_label(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    path = folder / LABEL_FILE
    try:
        label = json.loads(path.read_text())
        _ = label["subject"]["kind"], label["cohort"]["as_of_entry"], label["audits"]
    except (OSError, ValueError, KeyError, TypeError):
        return None, [f"{LABEL_FILE}: expected a privacy label, got none that can be read."]
    return label, []


def _version_problem(label: dict[str, Any]) -> list[str]:
    """One line where another version wrote the label, whose claims may be corrected since."""
    composition = label.get("composition")
    code = composition.get("code") if isinstance(composition, dict) else None
    written = label.get("schema"), code
    if written == (SCHEMA, CODE):
        return []
    return [
        f"{LABEL_FILE}: composition and card: expected {SCHEMA} by {CODE}, got {written[0]} by "
        f"{code}: written by another version. Publish again, which charges nothing."
    ]


def _as_of(label: dict[str, Any], entries: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """The ledger as it was when the label was written."""
    last = label["cohort"]["as_of_entry"]
    if not isinstance(last, int) or not 0 < last <= len(entries):
        raise PrivacyError(
            f"expected a ledger of {last} entries or more, got {len(entries)}: the ledger is "
            "another one, or its tail was removed."
        )
    return list(entries[:last])


def _differences(label: dict[str, Any], recomputed: dict[str, Any]) -> list[str]:
    """Names the sections of the label that the ledger contradicts."""
    normal = json.loads(json.dumps(recomputed))
    names = sorted({*label, *normal})
    return [
        f"{LABEL_FILE}: {name} differs from the ledger. Publish again from the ledger."
        for name in names
        if label.get(name) != normal.get(name)
    ]
