"""`dpsynth secrets noise-ratio`: numbers, picture, and refusals of one line."""

import json

import pytest
from typer.testing import CliRunner

from dpsynth_assets.cli.main import app

SMALL = ["secrets", "noise-ratio", "--records", "800", "--incidence", "0.02"]


def run(*arguments):
    return CliRunner().invoke(app, [*SMALL, *arguments], env={"COLUMNS": "160"})


def test_rows_are_every_pair_of_secrets_and_ratios():
    told = json.loads(run("--secrets", "20,40", "--ratios", "2,10", "--json").stdout)
    assert [(row["secrets"], row["ratio"]) for row in told["rows"]] == [
        (20, 2), (20, 10), (40, 2), (40, 10),
    ]  # fmt: skip
    for row in told["rows"]:
        assert row["printed"] < row["needed"]
        assert row["printed_ratio"] > row["ratio"]


def test_what_is_printed_is_labelled_as_no_guarantee():
    told = run("--secrets", "20", "--ratios", "10").stdout
    assert "NO" in told
    assert "guarantee" in told


@pytest.mark.parametrize("varied", [["--ratios", "2,50"], ["--secrets", "20,40", "--ratios", "10"]])
def test_a_picture_is_written(tmp_path, varied):
    place = tmp_path / "folder" / "ratio.png"
    assert run(*varied, "--plot", str(place)).exit_code == 0
    assert place.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "wrong", [["--ratios", "0.5"], ["--ratios", "many"], ["--records", "0"], ["--prior", "2"]]
)
def test_impossible_numbers_are_refused_in_one_line(wrong):
    result = run(*wrong)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
