import json

import pytest
from typer.testing import CliRunner

from dpsynth_assets.cli.account import app

TOKENS = ["tokens", "--expected-batch-size", "64", "--clip-bound", "9", "--temperature", "1.5"]


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_tokens_reports_a_flat_object():
    result = invoke(*TOKENS, "--tokens", "373", "--delta", "2.9e-6", "--json")
    assert result.exit_code == 0
    values = json.loads(result.stdout)
    assert values["epsilon"] == pytest.approx(9.9858, abs=1e-3)
    assert values["eta"] == pytest.approx(0.1875)
    assert values["rho"] == pytest.approx(373 * 0.1875**2 / 8)
    assert (values["tokens"], values["delta"], values["accountant"]) == (373, 2.9e-6, "zcdp")
    assert not any(isinstance(value, dict | list) for value in values.values())


@pytest.mark.parametrize(("accountant", "tokens"), [("zcdp", 373), ("tight", 416)])
def test_tokens_inverts_a_target(accountant, tokens):
    arguments = [
        "--target-epsilon",
        "10",
        "--delta",
        str(108_000**-1.1),
        "--accountant",
        accountant,
    ]
    values = json.loads(invoke(*TOKENS, *arguments, "--json").stdout)
    assert values["tokens"] == tokens
    assert values["epsilon"] <= 10


def test_relation_and_unit_reach_the_price():
    arguments = ["--tokens", "1", "--delta", "1e-6", "--relation", "replace-one"]
    values = json.loads(invoke(*TOKENS, *arguments, "--max-records-per-unit", "3", "--json").stdout)
    assert values["eta"] == pytest.approx(0.1875 * 6)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_histogram_prices_its_noise(noise):
    result = invoke("histogram", "--noise", noise, "--scale", "10", "--delta", "1e-6", "--json")
    values = json.loads(result.stdout)
    assert values["rho"] == pytest.approx(0.005)
    assert values["epsilon"] > 0
    pure = values["pure_epsilon"]
    assert pure is None if noise == "gaussian" else pure == pytest.approx(0.1)


def test_text_names_epsilon_delta_and_relation():
    result = invoke(*TOKENS, "--tokens", "373", "--delta", "2.9e-6")
    assert result.stdout.startswith("ε = 9.9858 at δ = 2.9e-06 (zcdp accountant, add-remove of one")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tokens", "3", "--delta", "2"], "0 < delta < 1"),
        (["--tokens", "-3", "--delta", "1e-6"], "count"),
        (["--delta", "1e-6"], "exactly one of --tokens and --target-epsilon"),
        (["--tokens", "3", "--target-epsilon", "3", "--delta", "1e-6"], "both"),
        (["--target-epsilon", "nan", "--delta", "1e-6"], "target_epsilon"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, words):
    result = invoke(*TOKENS, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert "Traceback" not in result.output


def test_table_10_is_reproduced():
    rows = json.loads(invoke("table10", "--json").stdout)
    assert len(rows) == 12
    assert all(row["tokens_zcdp"] == row["tokens_printed"] for row in rows)
    assert [row["tokens_tight"] for row in rows][:3] == [416, 373, 393]
