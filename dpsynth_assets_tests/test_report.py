import json
import re
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from dpsynth_assets.cli.evaluate import _without_accuracy, read_rows, split_by_content
from dpsynth_assets.metrics.metric import stratified_rows
from dpsynth_assets.report import plots
from dpsynth_assets.report.pages import TableBlock
from dpsynth_assets.report.render import BANNER, render_report, sample_blocks
from dpsynth_assets_tests.children import dpsynth

TABLE = [
    {"name": "real data", "guarantee": "real data", "epsilon": "∞", "delta": None, "rows": 500,
     "mauve": 0.91, "mauve_std": 0.01, "accuracy": 0.95, "mean_words": 31.25, "distinct_2": 0.4,
     "verbatim_share": 0.01, "near_duplicate_share": 0.02, "canaries_found": None},
    {"name": "mean <b>clustered</b>", "guarantee": "dp", "epsilon": 3.0, "delta": 1e-6,
     "rows": 1500, "mauve": 0.61, "mauve_std": 0.02, "accuracy": None, "seconds": 12.0,
     "gap_closed_mauve": 0.75, "gap_closed_accuracy": None, "canaries_found": 0},
]  # fmt: skip
CONTEXT = {"cohort": "tickets", "evaluation": {"max_rows": 500, "mauve": {"repeats": 5}}}


def _report(table=TABLE):
    return render_report(table, CONTEXT, {}, {})


def test_ten_rows_of_each_corpus_stand_beside_each_other_by_label():
    samples = {
        "first": [("b", f"first b{i}") for i in range(8)]
        + [("a", f"first a{i}") for i in range(8)],
        "second": [("a", f"second a{i}") for i in range(8)] + [("b", "second b0")],
        "empty": [],
    }
    (table,) = (block for block in sample_blocks(samples) if isinstance(block, TableBlock))
    assert table.header == ("label", "first", "second")
    assert [row[0] for row in table.rows] == ["a", "b"] * 5
    assert table.rows[0] == ("a", "first a0", "second a0")
    assert table.rows[2] == ("a", "first a1", "second a1")
    assert table.rows[3] == ("b", "first b1", "—")
    many = [f"label {i:02}" for i in range(14)]
    *_, table = sample_blocks({"corpus": [(label, "a text") for label in many]})
    assert [row[0] for row in table.rows] == many, "every label has a sample"


def test_the_summary_is_of_corpora_and_not_of_real_data_or_references():
    floor = {**TABLE[1], "name": "public only", "role": "floor", "mauve": 0.99}
    page = _report([*TABLE, floor]).markdown
    assert "- Corpora: 1 " in page
    assert "- Highest MAUVE: 0.610 mean" in page


def test_surviving_terms_stand_beside_the_number_of_records_that_the_guarantee_asks_for():
    assert "What survives" not in _report().markdown
    told = {"terms_of_5_to_9_records": 0.25}
    page = _report(
        [TABLE[0] | told, TABLE[1] | told, {**TABLE[1], "guarantee": "ex-post"}]
    ).markdown
    assert "| corpus | terms of 5 to 9 records | records needed at least |" in page
    assert "| real data | 25.0 % | — |" in page
    assert "| 25.0 % | 2 |" in page


def test_verdicts_stand_with_the_table_and_the_gap_with_its_interval():
    row = {**TABLE[1], "gap_closed_mauve_low": 0.51, "gap_closed_mauve_high": 0.98}
    page = render_report([row], CONTEXT, {}, {}, ["undecided: <a> and b"])
    assert "75 % (51 to 98)" in page.html.replace("\N{NO-BREAK SPACE}", " ")
    assert "<p>undecided: &lt;a&gt; and b</p>" in page.html


def test_both_forms_open_with_the_warning_that_the_report_is_internal():
    report = _report()
    assert BANNER in report.html
    assert "INTERNAL: scored against private held-out text" in report.markdown


@pytest.mark.parametrize("rows", [TABLE, [], [{"name": "$\\frac{$", "mauve": 0.5}]])
def test_pictures_are_small_png_files_whatever_the_names(rows):
    names = [f"corpus {i}" for i in range(8)]
    lines = plots.cumulative_plot(dict.fromkeys(names, range(500)) | {"": []}, "words", "texts")
    for picture in (plots.scores_plot(rows, "mauve", 0.1, 0.9), lines):
        assert picture.startswith(b"\x89PNG")
        assert len(picture) < 60_000


def test_an_inline_picture_is_one_markdown_image():
    shown = plots.to_markdown(b"png", "noisy [counts]\n")
    assert re.fullmatch(r"!\[[^\[\]\n]*\]\(data:image/png;base64,[A-Za-z0-9+/=]+\)", shown)


# The command


def letters(rows, labels=("food", "bus")):
    """Rows of text and label, whose words follow the label."""
    nouns = ("soup", "train")
    return [(f"the {nouns[i % 2]} is late, said number {i}", labels[i % 2]) for i in range(rows)]


@pytest.fixture
def evaluated(tmp_path):
    """Scores one table of texts and labels against another; returns what the command printed."""

    def scores(real, made):
        for name, rows in (("real.csv", real), ("made.csv", made)):
            pl.DataFrame(rows, schema=["text", "label"], orient="row").write_csv(tmp_path / name)
        files = ("--real", tmp_path / "real.csv", "--synthetic", tmp_path / "made.csv")
        printed = dpsynth("evaluate", *files, "--json", code=0)
        assert "kayak" not in printed.output
        return json.loads(printed.stdout)

    return scores


def test_corpus_and_real_data_are_scored_on_one_number_of_rows_without_private_text(evaluated):
    scores = evaluated([*letters(400), ("my secret kayak", "food")], letters(60))
    assert scores["rows"] == scores["evaluation"]["max_rows"] == 60
    assert scores["accuracy"] > 0.9
    assert scores["accuracy_real"] > 0.9
    assert {"mean_words", "distinct_2", "verbatim_share"} <= set(scores)
    assert (scores["mauve"], scores["mauve_real"]) == (None, None)
    assert scores["energy_distance_std"] > 0
    told = scores["verdicts"]
    assert told[0] == (
        "Corpus and real data are scored on 60 rows; MAUVE needs at least 100 rows on each side."
    )
    assert any(line.startswith("By energy distance: ") for line in told)


def test_few_rows_or_other_labels_have_no_verdict(evaluated):
    found = evaluated(letters(60), letters(5, ("y0", "y1")))
    assert found["accuracy"] is None
    (told,) = found["verdicts"]
    assert "No accuracy: no real row has the label 'y0', 'y1' of the corpus" in told
    assert "No verdict" in told


def test_the_split_is_by_content_and_not_by_place():
    rows = pl.DataFrame(letters(37), schema=["text", "label"], orient="row")
    source, held_out = split_by_content(rows)
    backwards = split_by_content(rows.reverse())
    assert set(source["text"]) == set(backwards[0]["text"])
    assert set(source["text"]).isdisjoint(held_out["text"])
    assert source.height + held_out.height == 37


def test_missing_files_and_columns_are_one_line_and_exit_code_two(tmp_path):
    real = made = tmp_path / "real.csv"
    real.write_text("text,label\nthe soup is cold,food\n")
    (tmp_path / "empty.csv").write_text("text,label\n,\n")
    (tmp_path / "broken.jsonl").write_text('{"text": "secret kayak"')
    for arguments, expected in (
        (("--real", tmp_path / "none.csv", "--synthetic", made), "Expected a file"),
        (("--real", real, "--synthetic", made, "--text-column", "body"), "column 'body'"),
        (("--real", real, "--synthetic", tmp_path / "empty.csv"), "rows with text"),
        (("--real", real, "--synthetic", tmp_path / "broken.jsonl"), "rows with text"),
    ):
        result = dpsynth("evaluate", *arguments, code=2)
        assert expected in result.stderr
        assert result.stderr.strip().count("\n") == 0
        assert "kayak" not in result.stderr


def test_a_sample_has_every_label_in_its_share_wherever_its_rows_stand():
    labels = [*"a" * 60, *"b" * 30, *"c" * 10]
    found = stratified_rows(labels, 20, seed=0)
    assert Counter(labels[row] for row in found) == {"a": 12, "b": 6, "c": 2}
    assert len(set(found)) == 20
    assert set(found) != set(stratified_rows(labels, 20, seed=1))
    assert stratified_rows(labels, 100, seed=0).tolist() == list(range(100))


@pytest.mark.parametrize(
    ("name", "encoding", "separator"),
    [("a.tsv", "utf-8", "\t"), ("b.csv", "cp1252", ";"), ("c.csv", "utf-16", ",")],
)
def test_a_file_is_read_for_scores_as_it_is_for_a_run(tmp_path, name, encoding, separator):
    lines = [["text", "label"], ["naïve", "1.0"], ["Grüße", "1"], ["x", "02"]]
    text = "\n".join(separator.join(line) for line in lines)
    (tmp_path / name).write_bytes(text.encode(encoding))
    named = "" if encoding == "utf-16" else "cp1252"  # For files that are not UTF-8.
    rows = read_rows(tmp_path / name, "text", "label", named)
    assert rows.rows() == [("naïve", "1"), ("Grüße", "1"), ("x", "02")]


def test_types_that_differ_from_line_to_line_are_read_line_by_line(tmp_path):
    values = [7, 1.0, "1", True, *range(20)]
    lines = [json.dumps({"text": f"t{i}", "label": value}) for i, value in enumerate(values)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    rows = read_rows(tmp_path / "a.jsonl", "text", "label")
    assert rows["label"].to_list()[:4] == ["7", "1", "1", "true"]


@pytest.mark.parametrize(
    ("real", "corpus", "why"),
    [
        ("aabb", "ab", ""),
        ("aabbc", "ab", ""),
        ("aabb", "aB", "no real row has the label 'B' of the corpus"),
        ("aabb", "ab-", "1 of 3 rows of made.csv have no value in a column 'kind'"),
        ("----", "ab", "4 of 4 rows of real.csv have no value in a column 'kind'"),
        ("aaaa", "aa", "all real rows have one label"),
    ],
)
def test_labels_that_carry_no_accuracy_are_said(real, corpus, why):
    sides = {
        Path(name): pl.DataFrame({"label": [label.strip("-") for label in labels]})
        for name, labels in (("real.csv", real), ("made.csv", corpus))
    }
    said = _without_accuracy(sides, "kind")
    assert said.startswith(why)
    assert bool(said) == bool(why)
