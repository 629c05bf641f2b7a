"""Laws of shares of what is promised to secrets: together they fit, and little is left over."""

import pytest

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.dataset_plan import budget_terms
from dpsynth_assets.methods.planning import divided_secret_shares, plan_dataset
from dpsynth_assets.privacy.secret_protection import gaussian_budget, posterior_of_events

pytestmark = pytest.mark.usefixtures("own_home")

PRIOR, POSTERIOR = 1e-4, 5e-3
EVOLUTION = {"clusters": 3, "iterations": 2, "population": 6, "variations": 2}


def secpe(name, **changes):
    return {"method": "secpe", "name": name, "settings": EVOLUTION | changes}


def spec(*methods, rounds=1, epsilon=8.0, max_records=2):
    kind = {"name": "account", "detector": "regex", "pattern": "TS-[0-9]+", "prior": PRIOR,
            "posterior": POSTERIOR, "max_records": max_records}  # fmt: skip
    return PrivateDatasetSpec.model_validate(
        {
            "name": "cases",
            "source": {"path": "nowhere.jsonl"},
            "budget": {
                "epsilon": epsilon, "delta": 1e-6, "accountant": "tight", "rounds": rounds,
            },
            "secrets": {"kinds": [kind]},
            "methods": list(methods),
        }
    )  # fmt: skip


def posterior(declared, rounds):
    """What all planned releases of so many rounds tell together, composed exactly."""
    plan = plan_dataset(declared)
    events = [release.event for release in plan.releases] * rounds
    occurrences = budget_terms(declared).secret.occurrences
    return posterior_of_events(events, PRIOR, occurrences=occurrences)


def noise(declared):
    return [planned.plan.parameters["noise_std"] for planned in plan_dataset(declared).methods]


def shares(declared):
    planned = plan_dataset(declared).methods
    return {each.folder: each.plan.parameters.get("secret_share") for each in planned}


def test_one_release_has_the_whole_bound():
    assert shares(spec(secpe("one"))) == {"one": 1.0}
    assert posterior(spec(secpe("one")), 1) == pytest.approx(POSTERIOR, rel=1e-3)


def test_several_releases_and_rounds_fit_together_and_use_what_there_is():
    for declared, rounds in (
        (spec(secpe("one"), secpe("two"), secpe("three")), 1),
        (spec(secpe("one"), rounds=4), 4),
        (spec(secpe("one", secret_share=0.2), secpe("two"), rounds=2), 2),
    ):
        assert 0.99 * POSTERIOR < posterior(declared, rounds) <= POSTERIOR
        assert posterior(declared, rounds + 1) > POSTERIOR


def test_releases_without_a_share_divide_what_is_left_evenly():
    found = shares(spec(secpe("one", secret_share=0.5), secpe("two"), secpe("three")))
    assert found["one"] == pytest.approx(0.5, rel=1e-5)
    assert found["two"] == found["three"] == pytest.approx(0.25, rel=1e-5)


def test_a_larger_share_buys_less_noise():
    small, large = noise(spec(secpe("one", secret_share=0.2), secpe("two")))
    assert large == pytest.approx(small / 2, rel=1e-3)


def test_dp_releases_are_left_room_for():
    small = {
        "method": "aug_pe",
        "settings": {k: v for k, v in EVOLUTION.items() if k != "clusters"},
    }
    declared = spec(secpe("one"), small, epsilon=1.0)
    assert shares(declared)["one"] < 0.95
    assert posterior(declared, 1) <= POSTERIOR


def test_where_dp_releases_take_all_a_secret_release_is_refused_before_anything_is_charged():
    many = {"method": "aug_pe", "settings": {k: v for k, v in EVOLUTION.items() if k != "clusters"}}
    declared = spec(secpe("one"), many, epsilon=8.0, max_records=50)
    secret, dp = plan_dataset(declared).methods
    assert "the other releases use all of it" in secret.plan.refusal
    assert dp.plan.refusal is None


def test_shares_beyond_the_whole_are_refused_and_no_other_method_is():
    small = {
        "method": "aug_pe",
        "settings": {k: v for k, v in EVOLUTION.items() if k != "clusters"},
    }
    claims = [secpe(name, secret_share=0.6) for name in ("one", "two")]
    one, two, other = plan_dataset(spec(*claims, small, epsilon=1.0)).methods
    for refused in (one, two):
        assert "a sum of at most 1, got 1.2" in refused.plan.refusal
        assert not refused.plan.charges
    assert other.plan.refusal is None


def test_dp_releases_count_for_all_records_of_a_secret():
    secret = budget_terms(spec(secpe("one"), max_records=3)).secret
    mu = gaussian_budget(PRIOR, POSTERIOR) / 3  # of one record: the whole bound of a secret in 3
    for part in (0.0, 0.3, 0.8, 1.0, 2.0):
        found = divided_secret_shares({"one": None}, secret, rounds=1, dp_mu=part * mu)["one"]
        assert found == pytest.approx(max(0.0, 1 - part**2), abs=1e-5)
