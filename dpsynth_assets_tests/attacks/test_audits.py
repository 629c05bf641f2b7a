"""Laws of the audits: sound tests, exact attacks, a complete registry, results that keep.

Simulations check coverage at false alarms of 5%; their own false-alarm probability is 1e-6 each.
"""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from dpsynth_assets.attacks.audits import latest_results, run_audits, save_results, still_valid
from dpsynth_assets.attacks.audits.accountants import (
    attained_epsilon,
    binomial_epsilon,
    binomial_mixture,
    point,
    shuffled_epsilon,
    tail_epsilon,
)
from dpsynth_assets.attacks.audits.audit import (
    EX_POST,
    Audit,
    AuditKind,
    Bug,
    Finding,
    audit_event_counts,
    audit_scores,
    event_curve,
    event_types,
    lower_rate,
    pure_curve,
    upper_rate,
)
from dpsynth_assets.attacks.circumstances import circumstances
from dpsynth_assets.cli import audit as cli
from dpsynth_assets.methods.audits import AUDITS, CANARY_AUDITS, audits_for, find_audit, results_for
from dpsynth_assets.methods.registry import REGISTRY
from dpsynth_assets.privacy import events
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    ComposedEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    GaussianEvent,
    PoissonGaussianEvent,
)
from dpsynth_assets.privacy.gaussian_dp import gaussian_epsilon
from dpsynth_assets.report.pages import markdown_table
from dpsynth_assets_tests.declared import audit_result

GAUSSIAN = ("epsvec", GaussianEvent(noise_multiplier=1.0))
RATES = np.linspace(0.001, 0.999, 97)
ROOT = Path(__file__).resolve().parents[2]


def gaussian_curve(mu):
    """The trade-off of μ-GDP: Φ(Φ⁻¹(rate) + μ)."""
    return lambda rates: stats.norm.cdf(stats.norm.ppf(rates) + mu)


def too_many(trials, rate):
    """A count that a binomial exceeds with probability below 1e-6."""
    return stats.binom.ppf(1 - 1e-6, trials, rate)


# Statistics


@pytest.mark.parametrize("trials", [1, 7, 60])
def test_a_rate_is_bounded_wrongly_no_more_often_than_stated(trials):
    hits = np.arange(trials + 1)
    low, high = lower_rate(hits, trials, 0.01), upper_rate(hits, trials, 0.01)
    for rate in np.linspace(0, 1, 41):
        chances = stats.binom.pmf(hits, trials, rate)
        assert chances[low > rate].sum() <= 0.01 + 1e-12
        assert chances[high < rate].sum() <= 0.01 + 1e-12


LAWS = {
    "gaussian": (lambda g, n: g.normal(size=n), 1.0, gaussian_curve(1.0)),
    "rounded": (lambda g, n: np.floor(2 * g.normal(size=n)) / 2, 1.0, gaussian_curve(1.0)),
    "laplace": (lambda g, n: g.laplace(size=n), 1.0, pure_curve(1.0)),
}


@pytest.mark.statistical
@pytest.mark.parametrize("law", LAWS)
def test_a_claim_that_holds_with_equality_is_rarely_refuted(law):
    draw, shift, curve = LAWS[law]
    generator = np.random.default_rng(1)
    passed = sum(
        audit_scores(draw(generator, 120) + shift, draw(generator, 120), curve, 0.05).passed
        for _ in range(250)
    )
    assert 250 - passed <= too_many(250, 0.05)


@pytest.mark.statistical
def test_a_claim_that_is_half_too_good_is_refuted():
    generator = np.random.default_rng(2)
    present, absent = generator.normal(2.0, size=4000), generator.normal(size=4000)
    assert not audit_scores(present, absent, gaussian_curve(1.0)).passed
    assert not audit_scores(present, absent, gaussian_curve(1.6)).passed
    assert audit_scores(present, absent, gaussian_curve(2.0)).passed


@pytest.mark.statistical
def test_the_threshold_is_chosen_on_other_scores_than_those_that_test():
    # Scores of the second half are pure noise, so a threshold chosen there would find structure.
    generator = np.random.default_rng(3)
    refuted = 0
    for _ in range(200):
        first = [np.concatenate([np.full(40, value), generator.random(40)]) for value in (1, 0)]
        refuted += not audit_scores(*first, lambda rates: rates, 0.05).passed
    assert refuted <= too_many(200, 0.05)


def test_scores_without_order_or_number_are_refused():
    with pytest.raises(ValueError, match="at least 4 scores"):
        audit_scores(np.ones(3), np.ones(9), gaussian_curve(1.0))
    with pytest.raises(ValueError, match="no NaN"):
        audit_scores(np.full(9, np.nan), np.ones(9), gaussian_curve(1.0))


def test_an_outcome_named_before_the_run_needs_no_half_of_it():
    found = audit_event_counts(900, 100, 1000, pure_curve(1.0))
    assert not found.passed
    assert audit_event_counts(900, 100, 1000, pure_curve(math.log(9))).passed
    assert 0.84 < found.observed < 0.9
    assert math.e * 0.1 < found.claimed < math.e * 0.16


# Curves


@pytest.mark.parametrize(
    "curve",
    [gaussian_curve(0.8), pure_curve(1.1), event_curve([BoundedRangeEvent(eta=1, count=3)])],
)
def test_curves_grow_from_chance_and_treat_neighbours_alike(curve):
    rates = curve(RATES)
    assert (np.diff(rates) >= 0).all()
    assert (rates >= RATES - 1e-12).all()
    # The curve of the opposite order: 1 − f^(-1)(1 − t).
    assert curve(1 - rates) == pytest.approx(1 - RATES, abs=2e-3)


def test_an_event_claims_what_theory_says():
    gaussian = event_curve([GaussianEvent(noise_multiplier=2.0)])(RATES)
    exact = gaussian_curve(0.5)(RATES)
    assert (gaussian >= exact - 1e-9).all()
    assert gaussian == pytest.approx(exact, abs=2e-3)
    laplace = event_curve([DiscreteLaplaceEvent(scale=2.0)])(RATES)
    assert (laplace <= pure_curve(0.5)(RATES) + 1e-6).all()


# Exact attacks


def test_a_threshold_attains_the_exact_epsilon_of_a_gaussian():
    attained = tail_epsilon(point(1.0, 0.8), point(0.0, 0.8), 1e-5)
    assert attained == pytest.approx(gaussian_epsilon(1.25, 1e-5), rel=1e-6)
    assert attained <= gaussian_epsilon(1.25, 1e-5)


def test_randomised_response_attains_its_epsilon_and_no_more():
    assert binomial_epsilon(2.0, 1, 0.0) == pytest.approx(1.0)
    assert binomial_epsilon(2.0, 7, 0.0) == pytest.approx(7.0)
    assert binomial_epsilon(2.0, 7, 1e-3) < 7.0


def test_nothing_is_attained_where_neighbours_look_alike():
    same = binomial_mixture(5, 0.3, 1.0, 1.0)
    assert tail_epsilon(same, same, 1e-5) == 0.0
    assert attained_epsilon(np.array([1e-6]), np.array([0.0]), 1e-5) == 0.0


def test_mixtures_are_probability_laws():
    for mixture in (binomial_mixture(9, 0.2, 2.0, 1.0), point(1.0, 2.0)):
        assert mixture.weights.sum() == pytest.approx(1.0)
        assert mixture.tail(np.array([-1e3, 1e3])) == pytest.approx([1.0, 0.0])


def test_one_shuffled_batch_is_one_gaussian():
    assert shuffled_epsilon(1.0, 1, 1e-5) == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-5)


# Registry


def test_every_event_type_has_an_audit():
    # A new event needs an audit of its mechanism, or of its accountant, before anybody pays by it.
    audited = {kind for audit in AUDITS for kind in audit.events}
    assert set(events._TYPES) - {"composed"} <= audited
    assert EX_POST in audited


def test_every_audit_has_a_bug_to_notice_and_every_bug_an_audit():
    assert all(audit.planted for audit in AUDITS)
    assert {bug for audit in AUDITS for bug in audit.planted} == {*Bug}


def test_audits_for_a_composition_are_those_of_its_parts():
    both = ComposedEvent(
        events=(DiscreteGaussianEvent(noise_std=2.0), BoundedRangeEvent(eta=1.0, count=2))
    )
    assert event_types(both) == ("bounded_range", "discrete_gaussian")
    names = {audit.name for audit in audits_for([("aug_pe", both)])}
    assert {
        "voting",
        "accountant-noisy-counts",
        "mean-token-range",
        "unseeded-noise",
        "one-draw-a-charge",
    } <= names
    assert not names & {"median-bound", "public-token-test", "dp-sgd-poisson"}
    assert "median-bound" in {audit.name for audit in audits_for([("median_clustered", None)])}


def test_attacks_on_methods_are_listed_for_those_methods():
    sampled = PoissonGaussianEvent(sampling_probability=0.1, noise_multiplier=1.0, steps=2)
    for method, own in (("ctcl", "training"), ("secpe", "clusters"), ("of_others", None)):
        names = {audit.name for audit in audits_for([(method, sampled)])}
        assert "dp-sgd-poisson" in names
        assert {each for each in names if each.startswith("canaries-in-")} == (
            {f"canaries-in-{own}"} if own else set()
        )
    attacked = {name for audit in CANARY_AUDITS for name in audit.events}
    assert attacked <= set(REGISTRY)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="median-bound"):
        find_audit("median")


# Running and storing


def made_up(observed, name="one-draw-a-charge", planted=2.0):
    return Audit(
        name=name,
        mechanism="m",
        events=("every_release",),
        claim="c",
        measure="x",
        kind=AuditKind.EXACT,
        observe=lambda: Finding(claimed=1.0, observed=observed),
        planted={Bug.RENOISED: lambda: Finding(claimed=1.0, observed=planted)},
    )


def test_a_finding_passes_up_to_rounding():
    assert Finding(claimed=1.0, observed=1.0 + 1e-12).passed
    assert not Finding(claimed=1.0, observed=1.0 + 1e-6).passed
    assert not Finding(claimed=0.0, observed=float("nan")).passed


@pytest.mark.parametrize(
    ("observed", "planted", "good"), [(1, 2, True), (2, 2, False), (1, 1, False)]
)
def test_results_are_good_where_real_code_passes_and_planted_bugs_do_not(observed, planted, good):
    told = []
    results = run_audits(
        [made_up(observed, planted=planted)],
        lambda share, message: told.append((share, message)),
        with_planted_bugs=True,
    )
    assert [result.bug for result in results] == [None, "noise drawn again at each start"]
    assert all(result.good for result in results) is good
    assert [share for share, _ in told] == [0.0, 0.5, 1.0]


def test_a_new_result_replaces_the_old_one_of_the_same_audit_alone(tmp_path):
    path = tmp_path / "home" / "audits.json"
    assert latest_results(path) == []
    save_results(
        path,
        [audit_result(), audit_result(bug="b", passed=False), audit_result(name="median-bound")],
    )
    save_results(path, [audit_result(observed=3.0, passed=False)])
    stored = latest_results(path, with_planted_bugs=True)
    assert {(each.name, each.bug, each.passed) for each in stored} == {
        ("one-draw-a-charge", None, False),
        ("one-draw-a-charge", "b", False),
        ("median-bound", None, True),
    }
    assert all(each.bug is None for each in latest_results(path))
    assert [file.name for file in path.parent.iterdir()] == ["audits.json"]


def test_labels_get_the_results_their_events_rest_on_and_nothing_of_the_machine(tmp_path):
    path, now = tmp_path / "audits.json", circumstances()
    assert results_for(path, [GAUSSIAN]) == []
    made = ({"circumstances": now}, {"name": "median-bound"}, {"bug": "b", "passed": False})
    save_results(path, [audit_result(**each) for each in made])
    (found,) = results_for(path, [GAUSSIAN])
    assert (found["name"], found["passed"]) == ("one-draw-a-charge", True)
    assert found["claim"] == find_audit("one-draw-a-charge").claim
    assert len(results_for(path, [("median_clustered", None)])) == 2
    assert now not in found.values()


def test_a_result_holds_while_nothing_changed_and_a_failure_never(tmp_path):
    path, audits = tmp_path / "audits.json", [find_audit("one-draw-a-charge")]
    now = circumstances()
    for changes, holds in (
        ({"circumstances": now}, True),
        ({"circumstances": "of another machine"}, False),
        ({}, False),  # a result of a version that did not record them
        ({"circumstances": now, "passed": False}, False),
        ({"circumstances": now, "bug": "b"}, False),
        ({"circumstances": now, "name": "median-bound"}, False),
    ):
        path.unlink(missing_ok=True)
        save_results(path, [audit_result(**changes)])
        assert bool(still_valid(path, audits)) is holds, changes
    (own,) = run_audits(audits)
    assert own.circumstances == now


@pytest.mark.parametrize("text", ["", "{}", '{"results": [{"name": 1}]}'])
def test_a_file_of_something_else_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "audits.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="Expected audit results") as refusal:
        latest_results(path)
    assert "\n" not in str(refusal.value)


# Command line


def run(*arguments):
    return CliRunner().invoke(cli.app, list(arguments))


def test_run_keeps_results_that_show_prints(own_home):
    assert run("show").exit_code == 2
    ran = run("run", "--only", "one-draw-a-charge", "--with-planted-bugs", "--json")
    assert ran.exit_code == 0
    document = json.loads(ran.stdout)
    assert document["ok"]
    shown = json.loads(run("show", "--json").stdout)
    assert shown["results"] == document["results"]
    assert "1 of 1 audits passed, 1 of 1 planted bugs noticed" in run("show").stdout


@pytest.mark.parametrize(("observed", "planted"), [(2.0, 2.0), (1.0, 1.0)])
def test_a_failed_audit_or_a_missed_bug_ends_with_exit_code_one(
    own_home, monkeypatch, observed, planted
):
    monkeypatch.setattr(cli, "_chosen", lambda _names: (made_up(observed, planted=planted),))
    assert run("run", "--with-planted-bugs").exit_code == 1
    assert run("show").exit_code == 1


def test_the_documented_tables_are_the_registry():
    tested = [(f"`{each.name}`", each.mechanism, each.claim, each.kind) for each in AUDITS]
    noticed = {
        bug: ", ".join(f"`{each.name}`" for each in AUDITS if bug in each.planted) for bug in Bug
    }
    document, head = (ROOT / "docs" / "audits.md").read_text(), ("mechanism", "claim", "kind")
    assert markdown_table(("audit", *head), tested) in document
    assert markdown_table(("planted bug", "noticed by"), noticed.items()) in document
    listed = run("list").stdout
    assert all(audit.name in listed for audit in AUDITS[:3])


def test_results_are_plain_json_numbers():
    ran = find_audit("difference-token-range").run()
    assert json.loads(json.dumps(dataclasses.asdict(ran))) == dataclasses.asdict(ran)
