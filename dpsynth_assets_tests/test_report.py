import json
import re

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from dpsynth_assets.cli.evaluate import evaluate as evaluate_command
from dpsynth_assets.metrics.mauve import MauveSettings
from dpsynth_assets.report.evaluation import (
    CorpusInput,
    EvaluationSettings,
    LeakSource,
    evaluate,
)
from dpsynth_assets.report.plots import histogram_plot, to_markdown
from dpsynth_assets.report.rendering import CorpusContext, ReportContext, render_report

SECRET = "my brother sold the green van to a dentist from Odderby last winter for cash"
QUICK = EvaluationSettings(
    embedder="two Gaussians",
    mauve=MauveSettings(repeats=1, initialisations=1, iterations=10),
    accuracy_seeds=1,
)


def corpus(name, share, role="corpus", extra=""):
    """A corpus with `share` of its features where the real ones are."""
    random = np.random.default_rng(len(name))
    features = random.normal(size=(60, 8)).astype(np.float32)
    labels = ["left" if value > 0 else "right" for value in features[:, 0]]
    features[int(60 * share) :, 0] *= -1
    features[int(60 * share) :, 1] += 6
    texts = [f"{name} row {n} {extra}" for n in range(60)]
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    return CorpusInput(texts=texts, labels=labels, embeddings=unit, role=role)


@pytest.fixture(scope="module")
def result():
    corpora = {
        "non-private": corpus("non-private", 1.0, "ceiling"),
        "clustered": corpus("clustered", 0.6),
        "leaking": corpus("leaking", 0.6, extra=SECRET),
        "public-only": corpus("public-only", 0.1, "floor"),
    }
    train, held_out = corpus("train", 1.0), corpus("held out", 1.0)
    train = CorpusInput(
        texts=[*train.texts[1:], SECRET], labels=train.labels, embeddings=train.embeddings
    )
    leaks = LeakSource(canaries=["ODDERBY LAST", "NEVER-SEEN-00"])
    return evaluate(corpora, train, held_out, leaks=leaks, settings=QUICK)


@pytest.fixture(scope="module")
def report(result):
    known = CorpusContext(guarantee="dp", epsilon=3.0, delta=1e-6, samples=["<b>synthetic</b>"])
    return render_report(result, ReportContext(title="Tickets", corpora={"clustered": known}))


def by_name(result):
    return {score.name: score for score in result.scores}


def test_references_surround_the_corpora(result):
    roles = [score.role for score in result.scores]
    assert roles == ["real", "floor", "corpus", "corpus", "ceiling"]


def test_gap_closed_is_the_share_of_the_way_from_floor_to_ceiling(result):
    scores = by_name(result)
    low, own, high = (scores[name].mauve for name in ("public-only", "clustered", "non-private"))
    assert low < high
    assert scores["clustered"].gap_closed["mauve"] == pytest.approx((own - low) / (high - low))
    assert not scores["public-only"].gap_closed


def test_planted_leak_is_seen_in_the_leaking_corpus_only(result):
    scores = by_name(result)
    assert scores["leaking"].verbatim_private_span
    assert scores["leaking"].shared_spans == 1.0
    assert scores["leaking"].canaries == 1
    assert scores["leaking"].longest_span_words == len(SECRET.split())
    assert not scores["clustered"].verbatim_private_span
    assert scores["clustered"].canaries == 0


def test_result_is_json(result):
    assert json.loads(json.dumps(result.to_json()))["held_out_rows"] == 60


def test_report_never_contains_private_text(report):
    for text in (report.html, report.markdown, json.dumps(report.table)):
        assert "Odderby" not in text
        assert "train row" not in text
        assert "held out row" not in text


def test_page_uses_no_outside_resource(report):
    references = re.findall(r"""(?:src|href)=["']([^"']*)|url\(([^)]*)\)""", report.html)
    assert references
    assert all(source.startswith("data:") for source, _ in references)
    assert "http:" not in report.html
    assert "https:" not in report.html


def test_report_says_that_it_is_internal_and_shows_the_guarantee(report):
    for text in (report.html, report.markdown):
        assert "INTERNAL" in text
        assert "clustered" in text
        assert "1e-06" in text


def test_synthetic_text_is_escaped_in_the_page(report):
    assert "&lt;b&gt;synthetic&lt;/b&gt;" in report.html
    assert "<b>synthetic" not in report.html


def test_pictures_are_png_and_inline_in_markdown(report):
    assert set(report.plots) == {"mauve", "accuracy", "lengths", "epsilon"}
    pictures = [*report.plots.values(), histogram_plot({"a": [1, 2], "b": [3.0]})]
    assert all(png.startswith(b"\x89PNG") for png in pictures)
    assert to_markdown(pictures[0], "x").startswith("![x](data:image/png;base64,")


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="one length"):
        CorpusInput(texts=["a", "b"], embeddings=np.ones((1, 2), np.float32))


@pytest.fixture(scope="module")
def command():
    app = typer.Typer()
    app.command()(evaluate_command)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def test_command_scores_files_and_writes_the_report(command, tmp_path):
    rows = [f"text,label\nstart {SECRET},a"]
    rows += [f"the kettle number {n} leaks badly,{'ab'[n % 2]}" for n in range(20)]
    (tmp_path / "real.csv").write_text("\n".join(rows))
    lines = [json.dumps({"text": f"kettle {n} {SECRET}", "label": "ab"[n % 2]}) for n in range(12)]
    (tmp_path / "made.jsonl").write_text("\n".join(lines))
    outcome = command(
        "--real", tmp_path / "real.csv", "--synthetic", tmp_path / "made.jsonl",
        "--json", "--output", tmp_path / "out",
    )  # fmt: skip
    assert outcome.exit_code == 0
    table = json.loads(outcome.stdout)["table"]
    assert [row["name"] for row in table] == ["real text", "made"]
    assert table[1]["verbatim_private_span"]
    assert SECRET not in (tmp_path / "out" / "report.html").read_text()
    assert (tmp_path / "out" / "metrics.json").exists()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("none.csv", None, "got none"),
        ("rows.xlsx", "x", "ending in"),
        ("rows.csv", "body\nhello\n", "--text-column"),
        ("rows.jsonl", "not json at all", "parse"),
        ("few.csv", "text\nhello\n", "at least 4 rows"),
    ],
)
def test_command_refuses_bad_files_in_one_line(command, tmp_path, name, content, expected):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    outcome = command("--real", path, "--synthetic", path)
    assert outcome.exit_code == 2
    assert expected in outcome.stderr
    assert len(outcome.stderr.strip().splitlines()) == 1
