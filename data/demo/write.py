"""Writes the files of this folder again: `python data/demo/write.py [FOLDER]`.

The files are committed, so that nothing needs this script. It shows where every line comes from.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import polars as pl
from mailboxes import private_rows, public_rows
from mailboxes.canaries import planted_canaries
from mailboxes.organisations import PRIVATE_ORGANISATION, SECOND_ORGANISATION

OTHER_SEED = 1_000_003
"""Added to the seed of the second mailbox: other customers, other canaries."""


def write_demo_files(
    folder: Path,
    *,
    seed: int = 0,
    public_documents: int = 8000,
    private_records: int = 5000,
    further_private_records: int = 4000,
    feedback_records: int = 2000,
) -> None:
    """Writes the public corpus, the private mailboxes and the canaries planted in two of them.

    Args:
        folder: Existing folder; files of the same names are replaced.
        seed: Public seed; equal seeds give equal files.
        public_documents: Rows of `public.parquet` (columns `text`, `label`, `group`).
        private_records: Lines of each of the two larger mailboxes (`id`, `customer_id`, `text`,
            `label`).
        further_private_records: Lines of each of the two smaller ones.
        feedback_records: Lines of the smallest.
    """
    pl.DataFrame(public_rows(public_documents, seed)).write_parquet(folder / "public.parquet")
    mailboxes = (
        ("tickets", private_records, seed, PRIVATE_ORGANISATION, "T"),
        ("letters", private_records, seed + OTHER_SEED, SECOND_ORGANISATION, "L"),
        ("enquiries", further_private_records, seed + 2, SECOND_ORGANISATION, "E"),
        ("cases", further_private_records, seed + 3, SECOND_ORGANISATION, "K"),
        ("feedback", feedback_records, seed + 4, SECOND_ORGANISATION, "F"),
    )
    for name, count, own_seed, organisation, prefix in mailboxes:
        rows = private_rows(count, own_seed, organisation, prefix)
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        _write_lines(folder / f"private_{name}.jsonl", lines)
    _write_lines(folder / "private_canaries.txt", planted_canaries(seed))
    _write_lines(folder / "private_letters_canaries.txt", planted_canaries(seed + OTHER_SEED))


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_demo_files(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
