"""Laws of every Markdown table."""

from dpsynth_assets.report.pages import markdown_table


def test_a_cell_ends_neither_its_cell_nor_its_row():
    table = markdown_table(
        ("a", "n"), [("one | two\\|three\r\nfour", 1), ("`x`", 2)], (False, True)
    )
    assert table.splitlines() == [
        "| a | n |",
        "|---|---:|",
        "| one \\| two\\|three four | 1 |",
        "| `x` | 2 |",
    ]
