"""Cells of tables that are more than text: a bar, and a link within the web UI."""

from dataclasses import dataclass
from html import escape

_FULL, _EMPTY, _WIDTH = "█", "░", 12


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
