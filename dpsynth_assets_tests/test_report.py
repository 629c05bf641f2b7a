import re

import pytest

from dpsynth_assets.report.plots import histogram_plot, to_markdown
from dpsynth_assets.report.render import render_report


@pytest.fixture(scope="module")
def report():
    table = [{"name": "clustered", "guarantee": "dp", "epsilon": 3.0, "mauve": 0.4567}]
    return render_report(
        table,
        {"cohort": "tickets", "delta": 1e-6, "notes": ["A note."]},
        {"mauve": histogram_plot({"a": [3.0, -1.0]})},
        {"clustered": [("late", "<b>synthetic</b> row")]},
    )


def test_page_uses_no_outside_resource(report):
    references = re.findall(r"""(?:src|href)=["']([^"']*)|url\(([^)]*)\)""", report.html)
    assert references
    assert all(source.startswith("data:") for source, _ in references)
    assert "http:" not in report.html
    assert "https:" not in report.html


def test_report_says_that_it_is_internal_and_shows_scores(report):
    for text in (report.html, report.markdown):
        assert "internal" in text.lower()
        assert "0.457" in text
        assert "tickets" in text


def test_synthetic_text_is_escaped_in_the_page(report):
    assert "&lt;b&gt;synthetic&lt;/b&gt;" in report.html
    assert "<b>synthetic" not in report.html


def test_pictures_are_png_and_inline_in_markdown():
    png = histogram_plot({"a": [1, 2], "b": [3.0]})
    assert png.startswith(b"\x89PNG")
    assert to_markdown(png, "x").startswith("![x](data:image/png;base64,")
