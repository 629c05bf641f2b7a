"""Tables as Markdown: the one writer of them, for pages, cards, metadata and commands."""

import re
from collections.abc import Iterable, Sequence

_BREAKS_A_ROW = re.compile(r"\s*[\r\n]+\s*")
_ENDS_A_CELL = re.compile(r"(?<!\\)\|")


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[object]], numeric: Sequence[bool] = ()
) -> str:
    """Writes a table.

    Args:
        header: Titles of the columns.
        rows: Cells, in Markdown; what would end a cell or a row is escaped.
        numeric: Columns that are aligned to the right; by default none.
    """
    aligned = numeric or [False] * len(header)
    lines = [f"|{'|'.join('---:' if each else '---' for each in aligned)}|"]
    return "\n".join([_line(header), *lines, *map(_line, rows)])


def _line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(content: object) -> str:
    return _ENDS_A_CELL.sub(r"\|", _BREAKS_A_ROW.sub(" ", str(content)))
