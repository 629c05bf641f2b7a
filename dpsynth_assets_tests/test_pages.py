"""Pages that people read: semantic HTML, one script of their own, enough contrast."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from dpsynth_assets.report.pages import (
    Bar,
    Facts,
    Fold,
    FoldedFacts,
    Gallery,
    Heading,
    Link,
    Notice,
    Paragraph,
    Picture,
    TableBlock,
    Tile,
    Tiles,
    to_html,
    to_markdown,
)

HOSTILE = "<script>alert(1)</script>"
TABLE = TableBlock(
    header=("corpus", "MAUVE", "parameters"),
    rows=(
        ("mean_clustered", "0.61 ± 0.02", FoldedFacts("parameters (1)", (("k", HOSTILE),))),
        ("aug_pe", "—", "2026-11-23 04:17"),
    ),
    numeric=(False, True, False),
    caption="Scores",
)
BLOCKS = [
    Heading("A page", 1),
    Tiles((Tile("ε left", "4.2", "of 15"),)),
    Heading("Scores & more", 2),
    TABLE,
    Gallery((Picture("Lengths", b"png"),)),
    Heading("How", 2),
    Fold("Settings", (Facts((("seed", "1"),)), Paragraph("Run `dpsynth audit`."))),
]


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def of(self, *tags):
        return [attributes for tag, attributes in self.found if tag in tags]


@pytest.fixture(scope="module")
def page():
    return to_html("A page", BLOCKS)


@pytest.fixture(scope="module")
def seen(page):
    parsed = _Page()
    parsed.feed(page)
    return parsed


def test_a_page_names_its_language_its_title_and_its_landmarks(seen):
    assert seen.of("html") == [{"lang": "en"}]
    assert len(seen.of("title")) == len(seen.of("main")) == len(seen.of("h1")) == 1
    assert seen.of("nav") == [{"aria-label": "Contents"}]
    assert all(picture["alt"] for picture in seen.of("img"))
    levels = [int(tag[1]) for tag, _ in seen.found if re.fullmatch("h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_every_entry_of_the_contents_leads_to_a_heading(seen):
    leads = [link["href"].removeprefix("#") for link in seen.of("a")]
    headings = [heading["id"] for heading in seen.of("h2")]
    assert leads == ["content", *headings]
    assert len(set(headings)) == 2


def test_every_table_has_a_caption_and_every_head_its_scope(seen):
    assert len(seen.of("caption")) == len(seen.of("table")) == 1
    assert [head["scope"] for head in seen.of("th")] == ["col"] * 3 + ["row"] * 2


def test_the_policy_lets_the_pages_own_script_run_and_no_other(page):
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'Security-Policy" content="([^"]*)"', page)
    assert [part for part in policy.split("; ") if part.startswith("script-src")] == [
        f"script-src 'sha256-{digest}'"
    ]
    assert policy.startswith("default-src 'none'")
    assert HOSTILE not in page


TEXT = '<script src="https://evil.example/x.js">alert(1)</script> | [a](http://b) `c`\n# d'
"""Markup and addresses, in HTML and in Markdown."""
HOSTILE_BLOCKS = [
    *(Heading(TEXT, level) for level in (1, 2, 3)),
    Notice(TEXT),
    Paragraph(TEXT),
    Gallery((Picture(TEXT, b"png"),)),
    Tiles((Tile(TEXT, TEXT, TEXT),)),
    Fold(TEXT, (Facts(((TEXT, TEXT),)), Paragraph(TEXT))),
    TableBlock(
        (TEXT, TEXT, TEXT, TEXT),
        ((TEXT, Link(TEXT, f"/{TEXT}"), FoldedFacts(TEXT, ((TEXT, TEXT),)), Bar(0.5, TEXT)),),
        (False, True, False, False),
        caption=TEXT,
    ),
]


def test_no_text_of_a_page_is_markup_or_an_address():
    page = to_html(TEXT, HOSTILE_BLOCKS)
    assert page.count("<script") == 1  # Its own, whose hash the policy names.
    assert re.findall(r'(?:src|href)="(?!data:image/png;base64,|#)', page) == []
    assert "url(" not in page
    open_tags = []

    class Balance(HTMLParser):
        def handle_starttag(self, tag, attrs):
            if tag not in {"meta", "img", "wbr"}:
                open_tags.append(tag)

        def handle_endtag(self, tag):
            assert open_tags.pop() == tag

    Balance().feed(page)
    assert open_tags == []


def test_no_text_of_markdown_is_markup():
    written = to_markdown([block for block in HOSTILE_BLOCKS if not isinstance(block, Gallery)])
    assert not re.search(r"(?<!\\)<|(?<!\\)\[a|(?<!\\)`|^# d", written, re.MULTILINE)
    (row,) = [line for line in written.splitlines() if "█" in line]
    assert len(re.findall(r"(?<!\\)\|", row)) == 5


def test_facts_behind_a_fold_are_in_both_forms(page):
    assert "<details><summary>parameters (1)</summary>" in page
    assert "k: \\<script\\>alert(1)\\</script\\>" in to_markdown(BLOCKS)
    assert "<code>dpsynth audit</code>" in page
