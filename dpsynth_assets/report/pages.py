"""A page as a list of blocks, written as Markdown or as self-contained HTML.

The HTML holds its style, its script and its pictures in itself, names no address on any network,
lets no other script run by its content policy, and follows the reader's choice of a light or a
dark page. It is as wide as the screen; without scripts everything but sorting works.
"""

import base64
import hashlib
import importlib.metadata
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from dpsynth_assets.datasets import registered_part
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_down, epsilon_up, rounded_up
from dpsynth_assets.report.plots import data_uri, to_markdown as picture_to_markdown

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

_HERE: Final = Path(__file__).parent
SCRIPT: Final = (_HERE / "page.js").read_text(encoding="utf-8")
"""Sorts tables, and opens folds for the printer."""
POLICY: Final = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-"
    f"{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'"
)
"""Names the script's hash, so that a browser runs no other."""

_FULL, _EMPTY, _WIDTH = "█", "░", 12


class Heading(NamedTuple):
    """A heading of level 1 to 3; those of level 2 make the page's contents."""

    text: str
    level: int


class Notice(NamedTuple):
    """A warning that must not be overlooked."""

    text: str


class Gap(NamedTuple):
    """A question that the page cannot answer, to whom it may concern."""

    text: str


class Paragraph(NamedTuple):
    """Running text."""

    text: str


class Picture(NamedTuple):
    """A PNG picture with its title."""

    title: str
    png: bytes


class Gallery(NamedTuple):
    """Pictures beside each other: two in a line where there is room."""

    pictures: tuple[Picture, ...]


class Tile(NamedTuple):
    """One value of a summary, with its name and a line on it."""

    name: str
    value: str
    note: str = ""


class Tiles(NamedTuple):
    """What a page says first, in a few values."""

    items: tuple[Tile, ...]


class Facts(NamedTuple):
    """Names and values, one a line."""

    items: tuple[tuple[str, str], ...]


class FoldedFacts(NamedTuple):
    """A cell of a table: a few words, and behind them facts that open on demand."""

    summary: str
    items: tuple[tuple[str, str], ...]


class Bar(NamedTuple):
    """How much of a total is used, as a bar.

    Attributes:
        share: Used part, 0 to 1; a larger one is drawn full.
        words: The same in words, for readers who do not see the bar.
    """

    share: float
    words: str

    @property
    def bounded(self) -> float:
        """The share, in [0, 1]."""
        return min(1.0, max(0.0, self.share))

    def __str__(self) -> str:
        """The bar in characters, for terminals and Markdown; anything used at all is seen."""
        full = max(int(self.bounded * _WIDTH + 1e-6), int(self.bounded > 0.0))
        return _FULL * full + _EMPTY * (_WIDTH - full)


class Link(NamedTuple):
    """A link to a page of the web UI; plain text outside of it, where it leads nowhere.

    Attributes:
        text: What is shown; characters that mean markup are escaped by the writer of the page.
        path: Path on the web server, e.g. `/runs/ID`.
    """

    text: str
    path: str

    def __str__(self) -> str:
        """What is shown, where nothing leads there."""
        return self.text


Cell = str | FoldedFacts | Bar | Link


class TableBlock(NamedTuple):
    """A table whose first column names its rows and stays in sight.

    Attributes:
        header: Titles of the columns.
        rows: Cells.
        numeric: Columns that are aligned to the right and sorted by number.
        of_texts: Whether cells hold running text, which gets room and is not sorted.
        caption: What the table shows; it names the table for readers who do not see it.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: tuple[bool, ...]
    of_texts: bool = False
    caption: str = ""


def table_of(
    items: Iterable[Any],
    columns: Mapping[str, Callable[[Any], Cell]],
    *,
    caption: str,
    numeric: Collection[str] = (),
) -> TableBlock:
    """A table with a line an item.

    Args:
        items: What is told.
        columns: What each column shows of an item, by its title.
        caption: As in `TableBlock`.
        numeric: Titles of the columns of numbers.
    """
    return TableBlock(
        header=tuple(columns),
        rows=tuple(tuple(shown(item) for shown in columns.values()) for item in items),
        numeric=tuple(title in numeric for title in columns),
        caption=caption,
    )


class Fold(NamedTuple):
    """Blocks that open on demand."""

    summary: str
    blocks: tuple["Block", ...]


Block = Heading | Notice | Gap | Paragraph | Gallery | Tiles | Facts | TableBlock | Fold

_DIGEST = re.compile(r"[0-9a-f]{40,}")
_CODE = re.compile(r"`([^`]+)`")
_DATE = re.compile(r"\b\d{4}-\d\d-\d\d\b")
_BREAKS = re.compile(r"([/_])(?=\S)")
_TOGETHER = re.compile(r"(?<=±) | (?=%)| (?=to\b)|(?<=\bto) ")
_MARKDOWN_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<>|#"} | {"\n": " ", "\r": " "})


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """Writes a whole HTML document; every text is escaped."""
    sections = [block.text for block in blocks if isinstance(block, Heading) and block.level == 2]
    page = _template("page.html.j2").render(title=title, blocks=blocks, sections=sections)
    return f"{page}\n"


def to_markdown(blocks: Sequence[Block]) -> str:
    """Writes Markdown; characters that mean markup are escaped."""
    return f"{_template('page.md.j2').render(blocks=blocks)}\n"


@cache
def _template(name: str) -> "Template":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    pages = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=name.endswith(".html.j2"),
        undefined=StrictUndefined,
    )
    pages.globals |= {
        "kind": lambda value: type(value).__name__,
        "data_uri": data_uri,
        "with_code": _with_code,
        "shown": _shown,
        "style_of": _style_of,
        "style": (_HERE / "page.css").read_text(encoding="utf-8"),
        "script": SCRIPT,
        "policy": POLICY,
        "version": f"dpsynth_assets {importlib.metadata.version('dpsynth_assets')}",
        "plain": _plain,
        "picture": picture_to_markdown,
        "table": _markdown_table,
    }
    return pages.get_template(name)


def _with_code(text: str) -> "Markup":
    from markupsafe import Markup, escape

    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before


def _shown(cell: str | Link, numeric: bool, of_texts: bool) -> "Markup":
    """A cell's text: numbers stay together, long names may break, dates may not."""
    from markupsafe import Markup, escape

    if numeric:
        return escape(_TOGETHER.sub("\N{NO-BREAK SPACE}", str(cell)))
    escaped = str(escape(str(cell)))
    if not of_texts:
        parted = _BREAKS.sub(r"\1<wbr>", escaped)
        escaped = _DATE.sub(r'<span class="whole">\g<0></span>', parted)
    return Markup(escaped)  # noqa: S704 - escaped before


def _style_of(cell: Cell, numeric: bool, of_texts: bool) -> str:
    """Classes of a cell, by which numbers are aligned and sorted and digests break anywhere."""
    text = cell.text if isinstance(cell, Link) else cell
    if not isinstance(text, str):
        return ""
    if numeric:
        return "number" if " " in text else "number whole"
    return "digest" if not of_texts and _DIGEST.fullmatch(text) else ""


def _markdown_table(block: TableBlock) -> str:
    rows = (tuple(map(_markdown_cell, row)) for row in block.rows)
    return markdown_table([*map(_plain, block.header)], rows, block.numeric)


def _markdown_cell(cell: Cell) -> str:
    if isinstance(cell, FoldedFacts):
        return _plain("; ".join(f"{name}: {value}" for name, value in cell.items))
    if isinstance(cell, Bar):
        return str(cell)
    if isinstance(cell, Link):
        named = _plain(_BREAKS.sub("\\1\N{ZERO WIDTH SPACE}", cell.text))  # Long names may break.
        return f"[{named}]({quote(cell.path)})"
    return _plain(cell)


def _plain(text: str) -> str:
    return text.translate(_MARKDOWN_SPECIAL)


# Tables as Markdown: the one writer of them, for pages, cards, metadata and commands.

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


PAGES = "/pages"
"""Below it the web server shows written pages."""


def page_address(place: str, *names: str) -> str:
    """Path of a written page.

    Args:
        place: `released` or `reports`.
        names: Its folders and its file below that.
    """
    return "/".join((PAGES, place, *names))


def asset_address(asset: str) -> str:
    """Path of an asset's page, or of the folder of a cohort's assets.

    Args:
        asset: Parts joined by `/`, the cohort's name first, as in the ledger. Where the cohort is
            one of a partitioned dataset, the page is the dataset's, at the cohort's partition.
    """
    cohort, slash, rest = asset.partition("/")
    dataset, partition = registered_part(cohort)
    chosen = f"?view=partitions&partition={partition}" if partition is not None and rest else ""
    return f"/assets/{dataset}{slash}{rest}{chosen}"


def shortened(value: object, characters: int) -> str:
    """The text of a value without blanks around it, cut at a length; None as a dash."""
    text = "—" if value is None else str(value).strip()
    return text if len(text) <= characters else f"{text[: characters - 1].rstrip()}…"


def leaves(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Values of nested mappings, each with the names that lead to it."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*above, name))
        else:
            yield (*above, name), value


# Values of a table of scores as every page and command shows them.

_EPSILONS = {"epsilon", "ex_post_epsilon"}
"""Columns that bound what a release tells: written rounded up, as δ is."""


def budget_in_words(spent: float, total: float | None, left: float | None) -> str:
    """ε that is spent, of a total, and left; each rounded so that none is told too favourably."""
    return f"ε = {epsilon_up(spent)} of {declared(total)} spent, {epsilon_down(left)} left"


def format_cell(key: str, value: Any, row: Mapping[str, Any] | None = None) -> str:
    """Shows one value of the table: shares in percent, None as a dash.

    Args:
        key: Its column.
        value: The value.
        row: The row it stands in, whose `<key>_std` is shown as ±, and whose `<key>_low` and
            `<key>_high` as an interval.
    """
    if value is None:
        return "—"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if key in _EPSILONS:
        return epsilon_up(value)
    if key == "delta":
        return rounded_up(value, ".3g")
    return _score(key, value, row or {})


def _score(key: str, value: float, row: Mapping[str, Any]) -> str:
    """A score by the form of its metric; other numbers with three digits."""
    from dpsynth_assets.metrics.registry import registered

    metrics = registered()
    if key.removeprefix("gap_closed_") in metrics and key not in metrics:
        return _share(key, value, row)
    metric = metrics.get(key)
    if metric is not None and metric.percent:
        return f"{100 * value:.1f} %"
    if isinstance(value, int):
        return f"{value:,}"
    form = ".0f" if key == "seconds" else ".3g" if metric is None else metric.form
    spread = row.get(f"{key}_std")
    return f"{value:{form}}" if spread is None else f"{value:{form}} ± {spread:{form}}"


def _share(key: str, value: float, row: Mapping[str, Any]) -> str:
    """A share of the gap with its interval."""
    from dpsynth_assets.metrics.comparison import GapShare

    low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
    if low is None or high is None:
        return f"{100 * value:.0f} %"
    return str(GapShare(value, low, high))
