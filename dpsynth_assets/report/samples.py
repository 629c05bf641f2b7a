"""Rows of several corpora beside each other: the same labels in the same order."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice

from dpsynth_assets.report.pages import Block, Fold, Heading, Paragraph, TableBlock

SAMPLE_ROWS = 10
"""Lines of a table; labels that have no line among them stand behind a fold."""
CORPORA_BESIDE = 4
"""Corpora in one table; further ones stand in a table below, with the same labels."""
SAMPLE_CHARACTERS = 600

Samples = Mapping[str, Sequence[tuple[str, str]]]
"""(label, text) rows of each corpus that may be shown, in the corpus's order."""


def sample_blocks(samples: Samples) -> list[Block]:
    """Writes tables with a column a corpus and a label a line, every label at least once."""
    shown = {name: rows for name, rows in samples.items() if rows}
    if not shown:
        return []
    names = list(shown)
    labels = {label for rows in shown.values() for label, _ in rows}
    lines = list(aligned_samples(shown, max(SAMPLE_ROWS, len(labels))))
    blocks: list[Block] = [
        Heading("Samples of synthetic text", 2),
        Paragraph(
            "The first rows of each corpus by label, every label at least once; a dash stands "
            "where a corpus has no further row of that label. Texts that go on are cut."
        ),
    ]
    for start in range(0, len(names), CORPORA_BESIDE):
        beside = slice(start, start + CORPORA_BESIDE)
        blocks += _tables(names[beside], [(label, texts[beside]) for label, texts in lines])
    return blocks


def _tables(names: Sequence[str], lines: Sequence[tuple[str, Sequence[str]]]) -> Iterator[Block]:
    """A table of `SAMPLE_ROWS` lines, and behind a fold one of the labels that are left."""
    first, rest = lines[:SAMPLE_ROWS], lines[SAMPLE_ROWS:]
    yield _table(names, first, f"Samples of {', '.join(names)}")
    if rest:
        further = _table(names, rest, f"Further samples of {', '.join(names)}")
        yield Fold(f"Samples of {len(rest)} further labels", (further,))


def _table(
    names: Sequence[str], lines: Sequence[tuple[str, Sequence[str]]], caption: str
) -> TableBlock:
    header = ("label", *names)
    rows = tuple((label or "—", *texts) for label, texts in lines)
    return TableBlock(header, rows, (False,) * len(header), of_texts=True, caption=caption)


def aligned_samples(
    samples: Samples, rows: int = SAMPLE_ROWS, characters: int = SAMPLE_CHARACTERS
) -> Iterator[tuple[str, list[str]]]:
    """Takes labels in turn, and of every corpus its next row of that label.

    Args:
        samples: Rows of each corpus.
        rows: Lines.
        characters: Longest text that is shown whole.

    Yields:
        A label, and a text for each corpus; a dash where it has none left.
    """
    of_label = {
        name: {label: iter([t for found, t in own if found == label]) for label, _ in own}
        for name, own in samples.items()
    }
    labels = sorted({label for own in samples.values() for label, _ in own})
    for label in islice(cycle(labels), rows if labels else 0):
        texts = [next(own.get(label, iter(())), None) for own in of_label.values()]
        yield label, ["—" if text is None else _shown(text, characters) for text in texts]


def _shown(text: str, characters: int) -> str:
    text = text.strip()
    return text if len(text) <= characters else f"{text[: characters - 1].rstrip()}…"
