"""Laws of `dpsynth ledger`: it shows and verifies, and never creates or repairs."""

import json

import pytest
from typer.testing import CliRunner

from dpsynth_assets.cli.ledger import app
from dpsynth_assets.privacy.directed_rounding import epsilon_up
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import GaussianEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets_tests.privacy.ledger_cases import (
    make_terms,
    release,
    sqlite_file,
    sqlite_url,
)


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    """Two DP releases of one cohort, an ex-post one of another."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSYNTH_LEDGER_URL", sqlite_url(tmp_path))
    ledger = Ledger(sqlite_url(tmp_path))
    release(ledger, make_terms(epsilon=20.0))
    release(ledger, make_terms(epsilon=20.0), release="2")
    ex_post = {"cohort": "mail", "guarantee": GuaranteeType.EX_POST, "event": None}
    release(ledger, make_terms(accepts_ex_post=True), **ex_post)
    return ledger


def run(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "240"})


def shown(*arguments):
    return json.loads(run("show", "--json", *arguments).stdout)


def test_show_tells_single_and_cumulative_epsilon(ledger):
    first, second, _ = shown()["charges"]
    assert first["epsilon_alone"] == second["epsilon_alone"]
    assert first["epsilon_alone"] == pytest.approx(first["epsilon_cumulative"])
    assert second["epsilon_cumulative"] == ledger.spend("tickets").epsilon
    assert second["epsilon_remaining"] == ledger.spend("tickets").remaining_epsilon


def test_show_keeps_ex_post_apart(ledger):
    document = shown("mail")
    (charge,) = document["charges"]
    assert (charge["epsilon_alone"], charge["epsilon_cumulative"]) == (None, 0.0)
    (spend,) = document["cohorts"]
    assert (spend["total_guarantee"], spend["ex_post_epsilon_max"]) == (
        "none (ex-post only)",
        "inf",
    )
    assert "ex-post releases" in run("show").stdout


def test_show_counts_what_it_does_not_list(ledger):
    document = shown("tickets", "--last", "1")
    assert (len(document["charges"]), document["earlier_charges"]) == (1, 1)
    assert document["charges"][0]["epsilon_cumulative"] == ledger.spend("tickets").epsilon
    assert "1 earlier charges" in run("show", "tickets", "--last", "1").stdout


def test_show_tells_what_disjoint_cohorts_cost_together(ledger):
    terms = make_terms(partition="month of created")
    letters = {"dataset": "letters", "asset": "letters/mean/corpus"}
    for cohort, number in (("january", "1"), ("february", "1"), ("february", "2")):
        event = GaussianEvent(noise_multiplier=10.0)
        release(ledger, terms, **letters, cohort=cohort, release=number, event=event)
    total, shown = ledger.dataset_spend("letters"), run("show").stdout
    assert "in parallel: the largest cohort" in shown
    assert total.epsilon == ledger.spend("february").epsilon
    assert epsilon_up(total.epsilon) in shown


def test_show_refuses_an_unknown_cohort(ledger):
    assert "no entries" in str(run("show", "nobody").exception)


def test_verify_prints_the_head_and_accepts_it_as_witness(ledger):
    assert ledger.head() in run("verify").stdout
    assert run("verify", "--head", ledger.head()).exit_code == 0
    assert run("verify", "--head", "f" * 64).exit_code == 1


@pytest.mark.parametrize("command", ["show", "verify"])
def test_a_missing_ledger_is_told_in_one_line_and_not_created(tmp_path, monkeypatch, command):
    monkeypatch.setenv("DPSYNTH_LEDGER_URL", sqlite_url(tmp_path))
    result = run(command)
    assert isinstance(result.exception, PrivacyError)
    assert "\n" not in str(result.exception)
    assert not sqlite_file(tmp_path).exists()
