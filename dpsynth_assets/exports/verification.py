"""Checks a package without the ledger: files, label, card and proof must agree.

Rows and weights are compared twice: with what left (the entry of the export), and with what was
released under the charge that the label names. Then the package is written again, byte for byte.

What the proof cannot show: that the head is one the owner stands by (compare it with a head that
was published), and that no other entry of the cohort was left out of the ledger.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from dpsynth_assets.exports.package import (
    MECHANISM,
    PROMPTS_FILE,
    PROOF_FILE,
    RELEASE,
    LedgerProof,
    write_again,
)
from dpsynth_assets.files.whole import LONGEST_TEXT, digest_of, file_digests, file_names
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import ChargeGraph, LedgerEntry
from dpsynth_assets.privacy.ledger.proof import TreeHead
from dpsynth_assets.privacy.ledger.schema import COMMIT
from dpsynth_assets.records.file_formats import declared_rows
from dpsynth_assets.records.refusals import refuse_many_rows, refuse_unpacked_bytes
from dpsynth_assets.records.sources import bytes_of_text
from dpsynth_assets.releases.published_rows import candidate_behind
from dpsynth_assets.releases.store import FILES, ROWS, files_digest, rows_digest
from dpsynth_assets.report.cards import (
    CARD_FILE,
    LABEL_FILE,
    UNREADABLE_LABEL,
    HubFacts,
    differing_sections,
    read_label,
)
from dpsynth_assets.report.label import CODE, CORPUS, GENERATOR, LIBRARY, SCHEMA, corpus_label

_TEXTS = {PROOF_FILE, LABEL_FILE, CARD_FILE, PROMPTS_FILE}
"""What a package has next to rows or weights."""

_OF_THE_WHOLE_LEDGER = ("as_of_entry", "ledger_head")
"""What a label says of entries that a proof does not show; the digest of the label seals it."""

_DIGEST = re.compile(r"[0-9a-f]{64}")

LONGEST_FILE = 1 << 36
"""Bytes of a file of rows or weights."""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Result of checking a package.

    Attributes:
        problems: What does not agree, in one line each; empty where everything does.
        head: Head that the proof leads to; None where it cannot be read.
        label: The package's label; empty where it cannot be read.
    """

    problems: tuple[str, ...]
    head: TreeHead | None = None
    label: dict[str, Any] | None = None


def verify_package(folder: Path, published_root: str | None = None) -> Verification:
    """Checks a package that `dpsynth export` wrote.

    Args:
        folder: The package.
        published_root: Root of a head that the owner published, if one is known.
    """
    if odd := tuple(_odd_files(folder)):
        return Verification(problems=odd)
    try:
        proof = LedgerProof.read(folder)
    except PrivacyError as problem:
        return Verification(problems=(f"{PROOF_FILE}: {problem}",))
    label, problems, head = None, list[str](), proof.head
    if published_root not in (None, head.root):
        problems.append(
            f"{PROOF_FILE}: expected the published head {published_root}, got {head.root} over "
            f"{head.entries} entries. Ask the owner for the head over that many entries."
        )
    try:
        problems += _file_problems(folder, proof.package)
        label = _label(folder)
        if label is None:
            problems.append(UNREADABLE_LABEL)
        elif not problems:
            problems = _label_problems(folder, label, proof)
    except Exception as error:  # noqa: BLE001 - a forged entry may break any reader
        kind = type(error).__name__
        problems.append(f"{PROOF_FILE}: expected entries that can be read, got others ({kind}).")
    return Verification(problems=tuple(problems), head=proof.head, label=label)


def _file_problems(folder: Path, package: LedgerEntry) -> list[str]:
    """Compares the files with the digests that the ledger holds."""
    if package.mechanism != MECHANISM:
        return [f"{PROOF_FILE}: expected the entry of an export, got {package.mechanism!r}."]
    expected: dict[str, str] = package.parameters["files"]
    found = set(file_names(folder)) - {PROOF_FILE}
    missing = [f"{name}: expected this file, got none." for name in sorted(set(expected) - found)]
    added = [f"{name}: expected no such file." for name in sorted(found - set(expected))]
    changed = [
        f"{name}: expected the bytes that the ledger recorded, got others."
        for name in sorted(found & set(expected))
        if digest_of(folder / name) != expected[name]
    ]
    return [*missing, *added, *changed]


def _odd_files(folder: Path) -> Iterator[str]:
    """Names what cannot be read to its end, before anything is read.

    A stranger may have made a package: a FIFO, a device or a link to one would hold the reader or
    never end.
    """
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        longest = LONGEST_TEXT if path.name in _TEXTS else LONGEST_FILE
        if path.is_file():  # Also behind a link, as the cache of the hub has it.
            if path.stat().st_size > longest:
                yield f"{name}: expected at most {longest:,} bytes, got more."
        elif path.is_symlink() or not path.is_dir():  # What a linked folder holds is not listed.
            yield f"{name}: expected a file or a folder, got something else."


def _label(folder: Path) -> dict[str, Any] | None:
    try:
        if (label := read_label(folder)) is None:
            return None
        last, head = label["cohort"]["as_of_entry"], label["cohort"]["ledger_head"]
        _ = label["subject"]["reservation"]
        return label if type(last) is int and (head is None or _DIGEST.fullmatch(head)) else None
    except (KeyError, TypeError):
        return None


def _label_problems(folder: Path, label: dict[str, Any], proof: LedgerProof) -> list[str]:
    """Computes label and card again from the entries of the proof."""
    subject, composition = label["subject"], label.get("composition") or {}
    written = f"{composition.get('code')} with {composition.get('library')}"
    if (label.get("schema"), written) != (SCHEMA, here := f"{CODE} with {LIBRARY}"):
        return [
            f"{LABEL_FILE}: written by {written}, this is {here}: files and proof agree, but the "
            "label cannot be computed again. Install these versions to do so."
        ]
    if subject["kind"] not in (CORPUS, GENERATOR):
        return [f"{LABEL_FILE}: expected a corpus or a generator, got {subject['kind']!r}."]
    if proof.package.parameters["inputs"][RELEASE] != subject["reservation"]:
        return [f"{LABEL_FILE}: subject: expected the release of the proof, got another."]
    try:
        seen = proof.behind(int(label["cohort"]["as_of_entry"]))
        if (expected := proof.package.parameters["entries_behind"]) != len(seen):
            return [f"{PROOF_FILE}: expected {expected} entries behind the label, got {len(seen)}."]
        _expect_all_inputs(seen, subject["reservation"])
        recomputed = corpus_label(
            seen, subject["reservation"], label["audits"], kind=subject["kind"], linked=False
        )
    except PrivacyError as problem:
        return [f"{PROOF_FILE}: {problem}"]
    problems = [
        f"{LABEL_FILE}: {name} differs from what the entries of the proof say."
        for name in differing_sections(label, recomputed, _OF_THE_WHOLE_LEDGER)
    ]
    hub = HubFacts(**proof.package.parameters["card"])
    return [
        *problems,
        *(_content_problems(folder, label, seen) or _form_problems(folder, label, hub)),
    ]


def _form_problems(folder: Path, label: dict[str, Any], hub: HubFacts) -> list[str]:
    """Writes the package again from what was read of it: nothing else fits in it."""
    with TemporaryDirectory(prefix="dpsynth-") as scratch:
        again = Path(scratch)
        write_again(folder, again, label, hub)
        expected = file_digests(again)
    found = set(file_names(folder)) - {PROOF_FILE}
    if label["subject"]["kind"] == GENERATOR:  # The digest of the release covers all others.
        found &= _TEXTS
    added = [f"{name}: expected no such file in a package." for name in sorted(found - {*expected})]
    differing = [
        f"{name}: expected what polars {pl.__version__} and this version write for this package, "
        "got another file: another version wrote it, or it was altered."
        for name in sorted(expected)
        if name not in found or digest_of(folder / name) != expected[name]
    ]
    return [*added, *differing]


def _content_problems(
    folder: Path, label: dict[str, Any], entries: Sequence[LedgerEntry]
) -> list[str]:
    """Compares rows, or weights, with what the ledger noted when the release was stored."""
    subject = label["subject"]
    paid = [e for e in entries if e.kind == COMMIT and e.reservation == subject["reservation"]]
    told = paid[0].parameters if paid else {}
    if subject["kind"] == CORPUS:
        what, name = ROWS, "-".join(subject["asset"].split("/")[:2])
        try:
            _refuse_bombs(folder / "data")
            rows = candidate_behind(pl.read_parquet(folder / "data"), name, label["method"]["name"])
            found = rows_digest(rows)
        except ValueError:
            found = "another form"
    else:
        what, released = FILES, sorted(set(file_names(folder)) - _TEXTS)
        found = files_digest({name: digest_of(folder / name) for name in released})
    if found != told.get(what):
        return [f"{what}: expected the content of the paid release, got another."]
    return []


def _refuse_bombs(data: Path) -> None:
    """Refuses rows that unpack to far more than their files can mean, before they are unpacked.

    Raises:
        SourceError: They do; a `ValueError`.
    """
    files = [data] if data.is_file() else [each for each in data.rglob("*") if each.is_file()]
    for file in files:  # Polars reads files of every name.
        refuse_many_rows(file, declared_rows(file))
        refuse_unpacked_bytes(file, bytes_of_text(pl.scan_parquet(file, glob=False)))


def _expect_all_inputs(entries: Sequence[LedgerEntry], reservation: str) -> None:
    """Refuses a proof that lacks the charge of something the release was made from.

    Raises:
        PrivacyError: A charge is missing: the label would leave its cost out.
    """
    graph = ChargeGraph(entries)
    if lost := [name for name in graph.behind(reservation) if name not in graph.charges]:
        raise PrivacyError(f"expected the charge {lost[0]}, which the release names, got none.")
