"""A page as a list of blocks, written as Markdown or as self-contained HTML.

The HTML holds its style and pictures in itself, names no address on any network, forbids scripts
by its content policy, and follows the reader's choice of a light or a dark page.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from dpsynth_assets.report.plots import data_uri, to_markdown as picture_to_markdown


@dataclass(frozen=True)
class Heading:
    """A heading of level 1 to 3."""

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
class TableBlock:
    """A table; `numeric` aligns a column to the right, `of_texts` leaves room for running text."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    of_texts: bool = False


@dataclass(frozen=True)
class Facts:
    """Names and values, one a line."""

    items: tuple[tuple[str, str], ...]


Block = Heading | Notice | Paragraph | Picture | TableBlock | Facts

_STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --page: #ffffff; --soft: #f3f5f7;
  --line: #d5dae0; --quiet: #5b6570; --alert: #9b2c00; --alert-page: #fff1e8; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --page: #15181c; --soft: #1f2429;
  --line: #39414a; --quiet: #a3adb8; --alert: #ffb38a; --alert-page: #3a1e10; } }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem; color: var(--text);
  background: var(--page); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.2rem; } h3 { font-size: 1rem; }
.notice { border: 2px solid var(--alert); border-radius: 6px; padding: .7rem 1rem;
  color: var(--alert); background: var(--alert-page); font-weight: 600; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; overflow-wrap: break-word; }
th { background: var(--soft); } tbody tr:hover { background: var(--soft); }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.texts td + td { min-width: 15rem; white-space: pre-line; line-height: 1.4; }
figure { margin: 1rem 0; } figcaption { color: var(--quiet); font-size: .88rem; }
img { max-width: 100%; height: auto; background: #ffffff; border-radius: 6px; }
dl { display: grid; grid-template-columns: minmax(10rem, max-content) 1fr; gap: .15rem 1rem;
  font-size: .88rem; } dt { color: var(--quiet); } dd { margin: 0; overflow-wrap: anywhere; }
"""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_MARKDOWN_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<>|#"} | {"\n": " ", "\r": " "})


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """Writes a whole HTML document; every text is escaped."""
    body = "\n".join(_html_block(block) for block in blocks)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def to_markdown(blocks: Sequence[Block]) -> str:
    """Writes Markdown; characters that mean markup are escaped."""
    return "\n\n".join(_markdown_block(block) for block in blocks) + "\n"


def _html_block(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Notice(text):
            return f'<p class="notice" role="note">{escape(text)}</p>'
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Picture(title, png):
            caption = escape(title)
            image = f'<img src="{data_uri(png)}" alt="{caption}">'
            return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"
        case TableBlock():
            kind = ' class="texts"' if block.of_texts else ""
            return f'<div class="wide"><table{kind}>{"".join(_html_rows(block))}</table></div>'
        case Facts(items):
            lines = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in items)
            return f"<dl>{''.join(lines)}</dl>"


def _html_rows(table: TableBlock) -> Iterator[str]:
    classes = [' class="number"' if numeric else "" for numeric in table.numeric]
    titles = zip(classes, table.header, strict=True)
    cells = "".join(f"<th{style}>{escape(text)}</th>" for style, text in titles)
    yield f"<thead><tr>{cells}</tr></thead><tbody>"
    for row in table.rows:
        values = zip(classes, row, strict=True)
        cells = "".join(f"<td{style}>{escape(text)}</td>" for style, text in values)
        yield f"<tr>{cells}</tr>"
    yield "</tbody>"


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
        case TableBlock():
            return "\n".join(_markdown_rows(block))
        case Facts(items):
            return "\n".join(f"- {_plain(name)}: {_plain(value)}" for name, value in items)


def _markdown_rows(table: TableBlock) -> Iterator[str]:
    yield f"| {' | '.join(_plain(text) for text in table.header)} |"
    yield f"|{'|'.join('---:' if numeric else '---' for numeric in table.numeric)}|"
    for row in table.rows:
        yield f"| {' | '.join(_plain(text) for text in row)} |"


def _plain(text: str) -> str:
    return text.translate(_MARKDOWN_SPECIAL)
