"""A page as a list of blocks, written as Markdown or as self-contained HTML.

The HTML holds its style, its script and its pictures in itself, names no address on any network,
lets no other script run by its content policy, and follows the reader's choice of a light or a
dark page. It is as wide as the screen; without scripts everything but sorting works.
"""

import importlib.metadata
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import quote

from dpsynth_assets.datasets import registered_part
from dpsynth_assets.files.tables import markdown_table
from dpsynth_assets.report.page_style import POLICY, SCRIPT, STYLE
from dpsynth_assets.report.plots import data_uri, to_markdown as picture_to_markdown

_FULL, _EMPTY, _WIDTH = "█", "░", 12


@dataclass(frozen=True)
class Heading:
    """A heading of level 1 to 3; those of level 2 make the page's contents."""

    text: str
    level: int


@dataclass(frozen=True)
class Notice:
    """A warning that must not be overlooked."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    text: str


@dataclass(frozen=True)
class Picture:
    """A PNG picture with its title."""

    title: str
    png: bytes


@dataclass(frozen=True)
class Gallery:
    """Pictures beside each other: two in a line where there is room."""

    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Tile:
    """One value of a summary, with its name and a line on it."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Tiles:
    """What a page says first, in a few values."""

    items: tuple[Tile, ...]


@dataclass(frozen=True)
class Facts:
    """Names and values, one a line."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class FoldedFacts:
    """A cell of a table: a few words, and behind them facts that open on demand."""

    summary: str
    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Bar:
    """How much of a total is used, as a bar.

    Attributes:
        share: Used part, 0 to 1; a larger one is drawn full.
        words: The same in words, for readers who do not see the bar.
    """

    share: float
    words: str

    def text(self) -> str:
        """The bar in characters, for terminals and Markdown; anything used at all is seen."""
        bounded = min(1.0, max(0.0, self.share))
        full = int(bounded * _WIDTH)
        if bounded > 0.0:
            full = max(1, full)
        return _FULL * full + _EMPTY * (_WIDTH - full)

    def html(self) -> str:
        """The bar as an element of a page."""
        bounded = min(1.0, max(0.0, self.share))
        words = escape(self.words)
        value = f'low="0.8" high="0.95" optimum="0" value="{bounded:.4f}"'
        return f'<meter {value} title="{words}" aria-label="{words}">{words}</meter>'


@dataclass(frozen=True)
class Link:
    """A link to a page of the web UI; plain text outside of it, where it leads nowhere.

    Attributes:
        text: What is shown; characters that mean markup are escaped by the writer of the page.
        path: Path on the web server, e.g. `/runs/ID`.
    """

    text: str
    path: str


Cell = str | FoldedFacts | Bar | Link


@dataclass(frozen=True)
class TableBlock:
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


@dataclass(frozen=True)
class Fold:
    """Blocks that open on demand."""

    summary: str
    blocks: tuple["Block", ...]


Block = Heading | Notice | Paragraph | Picture | Gallery | Tiles | Facts | TableBlock | Fold

_VERSION = f"dpsynth_assets {importlib.metadata.version('dpsynth_assets')}"
_DIGEST = re.compile(r"[0-9a-f]{40,}")
_CODE = re.compile(r"`([^`]+)`")
_DATE = re.compile(r"\b\d{4}-\d\d-\d\d\b")
_BREAKS = re.compile(r"([/_])(?=\S)")
_TOGETHER = re.compile(r"(?<=±) | (?=%)| (?=to\b)|(?<=\bto) ")
_MARKDOWN_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<>|#"} | {"\n": " ", "\r": " "})


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """Writes a whole HTML document; every text is escaped."""
    sections = [block.text for block in blocks if isinstance(block, Heading) and block.level == 2]
    places = iter(range(1, len(sections) + 1))
    body = "\n".join(_html_block(block, places) for block in blocks)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'{_contents(sections)}<main id="content">\n{body}\n</main>\n'
        f"<footer>{_VERSION}</footer>\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _contents(sections: Sequence[str]) -> str:
    links = "".join(
        f'<li><a href="#part-{place}">{escape(text)}</a></li>'
        for place, text in enumerate(sections, start=1)
    )
    skip = '<a class="skip" href="#content">Skip to the content</a>\n'
    return f'{skip}<nav aria-label="Contents"><ul>{links}</ul></nav>\n' if links else ""


def _html_block(block: Block, places: Iterator[int]) -> str:
    match block:
        case Heading(text, level):
            place = f' id="part-{next(places)}"' if level == 2 else ""
            return f"<h{level}{place}>{escape(text)}</h{level}>"
        case Notice(text):
            return f'<p class="notice" role="note">{escape(text)}</p>'
        case Paragraph(text):
            shown = _CODE.sub(r"<code>\1</code>", escape(text))
            return f"<p>{shown}</p>"
        case Picture(title, png):
            caption = escape(title)
            image = f'<img src="{data_uri(png)}" alt="{caption}">'
            return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"
        case Gallery(pictures):
            shown = "\n".join(_html_block(picture, places) for picture in pictures)
            return f'<div class="gallery">\n{shown}\n</div>'
        case Tiles(items):
            return f'<dl class="tiles">{"".join(map(_html_tile, items))}</dl>'
        case TableBlock():
            return _html_table(block)
        case Facts(items):
            return _html_facts(items)
        case Fold(summary, blocks):
            inside = "\n".join(_html_block(each, places) for each in blocks)
            return f"<details><summary>{escape(summary)}</summary>\n{inside}\n</details>"


def _html_tile(tile: Tile) -> str:
    note = f"<dd>{escape(tile.note)}</dd>" if tile.note else ""
    return f"<div><dt>{escape(tile.name)}</dt><dd>{escape(tile.value)}</dd>{note}</div>"


def _html_facts(items: Sequence[tuple[str, str]]) -> str:
    lines = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in items)
    return f'<dl class="facts">{"".join(lines)}</dl>'


def _html_table(table: TableBlock) -> str:
    kind = ' class="texts"' if table.of_texts else ""
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    name = escape(table.caption or table.header[0])
    # A box that scrolls must be reachable by the keyboard, and then needs a name.
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{name}">'
        f"<table{kind}>{caption}{''.join(_html_rows(table))}</table></div>"
    )


def _html_rows(table: TableBlock) -> Iterator[str]:
    titles = zip(table.numeric, table.header, strict=True)
    cells = "".join(
        f'<th scope="col"{_class(numeric)}>{escape(text)}</th>' for numeric, text in titles
    )
    yield f"<thead><tr>{cells}</tr></thead><tbody>"
    for row in table.rows:
        cells = "".join(
            _html_cell(cell, numeric, place == 0, of_text=table.of_texts)
            for place, (numeric, cell) in enumerate(zip(table.numeric, row, strict=True))
        )
        yield f"<tr>{cells}</tr>"
    yield "</tbody>"


def _html_cell(cell: Cell, numeric: bool, first: bool, *, of_text: bool) -> str:
    tag = 'th scope="row"' if first else "td"
    if isinstance(cell, FoldedFacts):
        facts = _html_facts(cell.items)
        shown = f"<details><summary>{escape(cell.summary)}</summary>{facts}</details>"
        return f"<{tag}>{shown}</{tag[:2]}>"
    if isinstance(cell, Bar):
        return f"<{tag}>{cell.html()}</{tag[:2]}>"
    cell = cell.text if isinstance(cell, Link) else cell
    text = escape(_TOGETHER.sub("\N{NO-BREAK SPACE}", cell) if numeric else cell)
    style = ' class="number whole"' if numeric and " " not in cell else _class(numeric)
    if not (of_text or numeric):
        style = ' class="digest"' if _DIGEST.fullmatch(cell) else style
        text = _DATE.sub(r'<span class="whole">\g<0></span>', _BREAKS.sub(r"\1<wbr>", text))
    return f"<{tag}{style}>{text}</{tag[:2]}>"


def _class(numeric: bool) -> str:
    return ' class="number"' if numeric else ""


def to_markdown(blocks: Sequence[Block]) -> str:
    """Writes Markdown; characters that mean markup are escaped."""
    return "\n\n".join(_markdown_block(block) for block in blocks) + "\n"


def _markdown_block(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_plain(text)}"
        case Notice(text):
            return f"> **{_plain(text)}**"
        case Paragraph(text):
            return _plain(text)
        case Picture(title, png):
            return f"{picture_to_markdown(png, title)}\n*{_plain(title)}*"
        case Gallery(pictures):
            return "\n\n".join(map(_markdown_block, pictures))
        case Tiles(items):
            return "\n".join(
                f"- {_plain(tile.name)}: {_plain(f'{tile.value} {tile.note}'.strip())}"
                for tile in items
            )
        case TableBlock():
            rows = (map(_markdown_cell, row) for row in block.rows)
            return markdown_table([*map(_plain, block.header)], map(tuple, rows), block.numeric)
        case Facts(items):
            return "\n".join(f"- {_plain(name)}: {_plain(value)}" for name, value in items)
        case Fold(summary, blocks):
            return f"{_plain(summary)}\n\n{to_markdown(blocks).rstrip()}"


def _markdown_cell(cell: Cell) -> str:
    if isinstance(cell, FoldedFacts):
        return _plain("; ".join(f"{name}: {value}" for name, value in cell.items))
    if isinstance(cell, Bar):
        return cell.text()
    if isinstance(cell, Link):
        return f"[{_plain(cell.text)}]({quote(cell.path)})"
    return _plain(cell)


def _plain(text: str) -> str:
    return text.translate(_MARKDOWN_SPECIAL)


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
