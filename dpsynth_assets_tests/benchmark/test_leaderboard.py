"""The leaderboard: kinds of guarantees apart, intervals over seeds, what is undecided is said."""

import json

import numpy as np
import pytest

from dpsynth_assets.benchmark.leaderboard import leaderboard, promise_of
from dpsynth_assets.benchmark.leaderboard_page import LeaderboardPage
from dpsynth_assets.benchmark.running import Place
from dpsynth_assets.metrics.metric import RESAMPLES


def scored(mauve, seed=0, spread=0.01, **facts):
    """A finished cell with resamples around its score."""
    noise = np.random.default_rng(hash((mauve, seed)) % 2**32).normal(0, spread, RESAMPLES)
    return {
        "rows": 400,
        "processor_seconds": 60.0,
        "seconds": 70.0,
        "mauve": mauve,
        "draws": {"mauve": (mauve + noise).tolist()},
        **facts,
    }


def place(line, epsilon=None, records=4000, seed=0):
    return Place(dataset="yelp", line=line, epsilon=epsilon, records=records, seed=seed)


@pytest.fixture
def board():
    cells = [
        (place("public_only"), scored(0.2)),
        (place("one_real_example"), scored(0.7)),
        (place("a", 3.0, seed=0), scored(0.55, epsilon=2.9)),
        (place("a", 3.0, seed=1), scored(0.65, seed=1, epsilon=3.0)),
        (place("b", 3.0), scored(0.3, epsilon=3.0)),
        (place("b", 3.0, records=500), scored(0.25, epsilon=3.0)),
        (place("m", 3.0), scored(0.6, ex_post_epsilon=1.7)),
        (place("s", 3.0), scored(0.6, posterior=0.005)),
        (place("r", 3.0), {"rows": 0, "refusal": "Expected more records."}),
    ]
    return leaderboard("tiny", cells, missing=2, facts={"δ": "1e-06"})


def test_a_line_is_the_mean_over_its_seeds_with_its_largest_epsilon(board):
    (line,) = [each for each in board.standings if each.line == "a"]
    assert line.seeds == 2
    assert line.scores["mauve"].value == pytest.approx(0.6)
    assert line.scores["mauve"].std > 0.02  # Seeds differ by more than rows.
    assert line.epsilon == 3.0
    assert line.gap_closed["mauve"].value == pytest.approx(0.8)
    assert line.gap_closed["mauve"].low < 0.8 < line.gap_closed["mauve"].high


def test_guarantees_of_other_kinds_stand_in_tables_of_their_own(board):
    kinds = {each.line: each.promise for each in board.standings}
    assert kinds == {
        "public_only": "reference", "one_real_example": "reference", "a": "worst case",
        "b": "worst case", "m": "ex post", "s": "secrets", "r": "refused",
    }  # fmt: skip
    text = LeaderboardPage(board).to_text()
    ex_post = text.index("Ex-post guarantees")
    assert text.index("| a |") < ex_post < text.index("| m |")
    assert promise_of("x", [{"refusal": "no"}, {"epsilon": 1.0}]) == "worst case"


def test_the_page_says_what_is_missing_refused_and_decided(board):
    text = LeaderboardPage(board).to_text()
    assert "2 cells are missing" in text
    assert "r at ε = 3: Expected more records." in text
    matrix = text[text.index("yelp, 4000 records, ε = 3*") :]
    assert "| better |" in matrix
    assert "| one\\_real\\_example | M |" in matrix
    page = LeaderboardPage(board).to_html()
    assert page.startswith("<!DOCTYPE html>")
    assert "data:image/png" in page


def test_the_json_reads_back_and_holds_no_resamples(board):
    content = json.loads(json.dumps(board.to_json()))
    assert content["missing_cells"] == 2
    (line,) = [each for each in content["lines"] if each["line"] == "a"]
    assert line["gap_closed"]["mauve"]["value"] == pytest.approx(0.8)
    assert "draws" not in json.dumps(content)


def test_an_empty_benchmark_has_a_page():
    board = leaderboard("tiny", [], missing=4)
    assert "No cell is finished yet" in LeaderboardPage(board).to_text()
    assert "4 cells" in LeaderboardPage(board).to_html()
