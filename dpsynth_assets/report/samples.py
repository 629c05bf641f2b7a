"""Rows of several corpora beside each other: the same labels in the same order."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice

from dpsynth_assets.report.pages import Block, Heading, Paragraph, TableBlock

SAMPLE_ROWS = 10
CORPORA_BESIDE = 4
"""Corpora in one table; further ones stand in a table below, with the same labels."""
SAMPLE_CHARACTERS = 600

Samples = Mapping[str, Sequence[tuple[str, str]]]
"""(label, text) rows of each corpus that may be shown, in the corpus's order."""


def sample_blocks(samples: Samples) -> list[Block]:
    """Writes tables of `SAMPLE_ROWS` rows a corpus, a column a corpus, a label a line."""
    shown = {name: rows for name, rows in samples.items() if rows}
    if not shown:
        return []
    lines = list(aligned_samples(shown))
    names = list(shown)
    blocks: list[Block] = [
        Heading("Samples of synthetic text", 2),
        Paragraph(
            f"The first rows of each corpus by label, {SAMPLE_ROWS} in all; a dash stands where a "
            "corpus has no further row of that label. Texts that go on are cut."
        ),
    ]
    for start in range(0, len(names), CORPORA_BESIDE):
        beside = slice(start, start + CORPORA_BESIDE)
        header = ("label", *names[beside])
        rows = tuple((label or "—", *texts[beside]) for label, texts in lines)
        blocks.append(TableBlock(header, rows, (False,) * len(header), of_texts=True))
    return blocks


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
