"""A metric of another package is shown wherever those of this one are; a broken one is named."""

from dataclasses import replace
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from typer import Typer
from typer.testing import CliRunner

from dpsynth_assets.benchmark.cohorts import Bench, Cohort
from dpsynth_assets.benchmark.leaderboard import leaderboard
from dpsynth_assets.benchmark.leaderboard_page import LeaderboardPage
from dpsynth_assets.benchmark.running import Place
from dpsynth_assets.cli.evaluate import evaluate
from dpsynth_assets.files import from_outside
from dpsynth_assets.metrics import registry
from dpsynth_assets.metrics.comparison import Compared, gap_fields
from dpsynth_assets.metrics.evaluation import (
    Evaluation,
    EvaluationSettings,
    PrivateReference,
)
from dpsynth_assets.metrics.metric import Estimate, Metric, ScoredSide, Sides
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.report.render import render_report

SETTINGS = EvaluationSettings(max_rows=40, resamples=50)


def _commas(sides: Sides) -> Estimate:
    """Share of texts with a comma."""
    found = np.array(["," in text for text in sides.corpus.texts], dtype=float)
    counts = sides.corpus.counts
    return Estimate.around(found.mean(), counts @ found / counts.sum(axis=1))


COMMAS = Metric("commas", "commas", _commas, compared=True, decimals=1, picture="Texts with commas")
TAKEN, BROKEN = replace(COMMAS, name="mauve"), "no metric"


@pytest.fixture(autouse=True)
def _own_registry():
    yield
    registry.registered.cache_clear()


def _installed(monkeypatch, name="commas", value="COMMAS"):
    point = EntryPoint(name, f"{__name__}:{value}", registry.GROUP)
    monkeypatch.setattr(
        from_outside, "entry_points", lambda group: [point] if group == registry.GROUP else []
    )
    registry.registered.cache_clear()


def _texts(name, shares):
    return [f"{name}{',' if row < shares else ''} letter {row}" for row in range(40)]


def test_a_need_that_is_no_attribute_is_named():
    side = ScoredSide(features=np.zeros((1, 2), np.float32))
    sides = Sides(corpus=side, held_out=side, settings=SETTINGS, labelled=False)
    with pytest.raises(PrivacyError, match=r"commas: .* settings\.encoder, .* 'settings\.enc'"):
        replace(COMMAS, needs=("settings.enc",)).of(sides)


def test_it_stands_in_report_verdicts_and_shares_of_the_gap(monkeypatch):
    _installed(monkeypatch)
    blank, features = [""] * 40, np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    private = {
        side: ScoredSide(texts=_texts(side, 20), labels=blank, features=features)
        for side in ("source", "held_out")
    }
    evaluation = Evaluation(reference=PrivateReference(**private), settings=SETTINGS)
    scores = {
        name: evaluation.scores(
            ScoredSide(name=name, texts=_texts(name, n), labels=blank, features=features)
        )
        for name, n in (("floor", 2), ("ceiling", 38), ("corpus", 20))
    }  # fmt: skip
    estimates = {name: score.estimates for name, score in scores.items()}
    told = Compared(estimates, "floor", "ceiling").verdicts()
    assert "By commas: ceiling is better than corpus, floor; corpus is better than floor." in told
    gaps = gap_fields(estimates["corpus"], estimates["floor"], estimates["ceiling"])
    assert gaps["gap_closed_commas"] == pytest.approx(0.5)
    row = scores["corpus"].to_json() | gaps | {"guarantee": "dp", "epsilon": 1.0}
    page = render_report([row], {}, {"commas": b"png"}, {}).markdown
    assert "| commas | commas gap closed |" in page
    assert "| 0.5 ± 0.1 | 50 % (" in page
    assert "Highest commas: 0.5" in page
    assert "*Texts with commas*" in page


class Embedder:
    name = "made up"

    def embed(self, texts, progress=None, *, public=False):
        return np.random.default_rng(len(texts)).normal(size=(len(texts), 3)).astype(np.float32)


def test_it_stands_in_cells_and_on_the_leaderboard(monkeypatch, tmp_path):
    _installed(monkeypatch)
    held_out = pl.DataFrame({"text": _texts("held out", 9), "label": [""] * 40})
    cohort = Cohort(name="c", domain="d", labels={}, source=held_out, held_out=held_out)
    models = SimpleNamespace(
        text_embedder=lambda _manifest: Embedder(), language_model=lambda _manifest: None
    )
    public = SimpleNamespace(values=dict.fromkeys, models=models)
    bench = Bench(folder=tmp_path, cohort=cohort, public=public, rows=40, scored_rows=40)

    def cell(line, shares, epsilon=None):
        rows = pl.DataFrame({"text": _texts(line, shares), "label": [""] * 40})
        place = Place(dataset="letters", line=line, epsilon=epsilon, records=40, seed=0)
        return place, bench.of_rows(rows, 0, line) | {"rows": 40, "epsilon": epsilon}

    cells = [cell("public_only", 2), cell("one_real_example", 38), cell("a_method", 20, 3.0)]
    page = LeaderboardPage(leaderboard("made up", cells)).to_text()
    assert "| commas | commas gap closed |" in page
    assert "C = commas" in page
    line, *_ = (line for line in page.splitlines() if line.startswith("| a\\_method"))
    assert "| 0.5 ± 0.1 | 50 % (" in line


def test_it_stands_in_what_evaluate_prints(monkeypatch, tmp_path):
    monkeypatch.setattr("dpsynth_assets.models.text_embedder.TextEmbedder", Embedder)
    _installed(monkeypatch)
    for name, shares in (("real", 10), ("made", 30)):
        pl.DataFrame({"text": _texts(name, shares)}).write_csv(tmp_path / f"{name}.csv")
    app = Typer()
    app.command()(evaluate)
    files = [f"--real={tmp_path}/real.csv", f"--synthetic={tmp_path}/made.csv"]
    shown = CliRunner().invoke(app, files).stdout
    assert any("commas" in line and "0.8 ± 0.1" in line for line in shown.splitlines())


@pytest.mark.parametrize(
    ("name", "value", "got"),
    [
        ("other", "COMMAS", "got Metric"),
        ("commas", "BROKEN", "got 'no metric'"),
        ("commas", "MISSING", "got AttributeError"),
        ("mauve", "TAKEN", "got the name 'mauve', which is taken"),
    ],
)
def test_a_broken_one_is_refused_with_the_package_to_correct(monkeypatch, name, value, got):
    _installed(monkeypatch, name, value)
    with pytest.raises(ImportError, match=got) as refused:
        registry.registered()
    assert f"entry point {name} of group dpsynth.metrics" in str(refused.value)
