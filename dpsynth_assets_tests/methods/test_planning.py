"""Laws of a plan: shares compose to the budget, nothing private is needed, refusals say why."""

import pytest
from hypothesis import given, settings, strategies as st

from dpsynth_assets.methods import planning
from dpsynth_assets.methods.dataset_plan import budget_terms
from dpsynth_assets.methods.planning import divided_secret_shares, plan_dataset, price_undeclared
from dpsynth_assets.methods.registry import REGISTRY
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.privacy.renyi import zcdp_rho
from dpsynth_assets.privacy.secret_protection import gaussian_budget, posterior_of_events
from dpsynth_assets_tests.declared import private
from dpsynth_assets_tests.privacy.ledger_cases import make_request

pytestmark = pytest.mark.usefixtures("own_home")

SETTINGS = {"expected_batch_size": 64, "max_batches": 8}
LARGE = {"expected_batch_size": 128, "max_batches": 8}


def method(name, /, **changes):
    return {"method": name, "settings": SETTINGS} | changes


MEANS = [method("mean_uniform"), method("mean_clustered")]


def spec(accountant="zcdp", epsilon=10.0, methods=MEANS, rounds=1):
    budget = {"epsilon": epsilon, "delta": 1e-6, "accountant": accountant, "rounds": rounds}
    return private(
        name="letters",
        public_data="elsewhere",  # No language model declared: the fields' own defaults hold.
        budget=budget | {"accepts_ex_post": True},
        cluster_histogram={},
        methods=methods,
    )


@pytest.mark.parametrize(("accountant", "epsilon"), [("zcdp", 3.0), ("tight", 10.0)])
def test_a_plan_without_hand_made_shares_spends_its_budget_and_no_more(accountant, epsilon):
    methods = [each | {"settings": LARGE} for each in MEANS]
    plan = plan_dataset(spec(accountant, epsilon, methods))
    assert 0.97 * epsilon < plan.total_epsilon <= epsilon
    assert plan.total_epsilon == epsilon_of(plan.events, 1e-6, accountant)


@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
def test_a_budget_for_several_rounds_lasts_for_them_and_no_more(accountant):
    methods = [method("mean_clustered", settings=LARGE)]
    plan = plan_dataset(spec(accountant, methods=methods, rounds=3))
    three = epsilon_of(plan.events * 3, 1e-6, accountant)
    assert 0.97 * 10 < three <= 10
    assert epsilon_of(plan.events * 4, 1e-6, accountant) > 10


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.05, 0.24), min_size=1, max_size=4))
def test_any_shares_up_to_one_fit_the_budget(shares):
    methods = [
        method("mean_clustered", name=f"m{i}", budget_share=share) for i, share in enumerate(shares)
    ]
    plan = plan_dataset(spec(methods=methods))
    assert plan.total_epsilon <= 10.0
    rho = float(sum(event.rho for event in plan.events))
    assert rho <= zcdp_rho(10.0, 1e-6) * (0.02 + sum(shares))


def test_a_declared_share_is_kept_and_the_rest_is_divided_equally():
    uniform, clustered = MEANS
    methods = [uniform | {"budget_share": 0.5}, clustered, clustered | {"name": "again"}]
    plan = plan_dataset(spec(methods=methods))
    assert [planned.share for planned in plan.methods] == pytest.approx([0.5, 0.24, 0.24])


def test_the_median_takes_no_share_and_draws_as_many_tokens_as_the_largest_mean():
    methods = [method("mean_clustered"), method("median_clustered")]
    mean, median = plan_dataset(spec(methods=methods)).methods
    assert (mean.share, median.share) == (pytest.approx(0.98), 0.0)
    assert median.plan.event is None
    assert median.plan.tokens_per_batch == mean.plan.tokens_per_batch


def test_a_method_for_which_nothing_is_left_refuses_and_says_so():
    methods = [method("mean_uniform", budget_share=0.98), method("mean_clustered")]
    refused = plan_dataset(spec(methods=methods)).methods[1]
    assert "budget_share" in refused.plan.refusal
    assert refused.plan.event is None


def test_every_registered_method_is_priced_once():
    declared = spec()
    plan = plan_dataset(declared)
    others = price_undeclared(declared, plan)
    names = [planned.method.name for planned in (*plan.methods, *others)]
    assert sorted(names) == sorted(REGISTRY)


def test_the_ledger_admits_every_release_of_a_plan_that_spends_everything(tmp_path):
    for accountant in ("zcdp", "tight"):
        plan = plan_dataset(spec(accountant))
        ledger = Ledger(f"sqlite:///{tmp_path / accountant / 'ledger.sqlite'}")
        for line in plan.releases:
            request = make_request(
                cohort="letters", dataset="letters", asset=line.asset, event=line.event
            )
            ledger.reserve(request, plan.budget, plan.releases)
        assert ledger.spend("letters", plan.budget).epsilon <= 10.0


def test_a_scale_once_fitted_is_read_back_and_changes_with_the_plan(monkeypatch):
    first = plan_dataset(spec("tight"))

    def refuse(cost, epsilon, largest):
        raise AssertionError("fitted again")

    monkeypatch.setattr(planning, "_search", refuse)
    assert plan_dataset(spec("tight")).releases == first.releases
    with pytest.raises(AssertionError, match="fitted again"):
        plan_dataset(spec("tight", epsilon=9.0))


@pytest.mark.parametrize("fixed", [0.0, 0.3, 0.9])
def test_shares_beside_noise_that_stands_still_may_gain_what_the_whole_budget_may(fixed):
    largest = planning.largest_scale(fixed)
    assert fixed + (1 - fixed) * largest == pytest.approx(planning.largest_scale(0.0))
    scale = planning._search(lambda f: 5.0 * (fixed + (1 - fixed) * f) ** 0.8, 6.0, largest)
    assert 6 * (1 - planning.SLACK) <= 5.0 * (fixed + (1 - fixed) * scale) ** 0.8 <= 6


@pytest.mark.parametrize("fixed", [1.0, 7.5])
def test_noise_that_takes_the_whole_budget_leaves_nothing_to_be_scaled(fixed):
    assert planning.largest_scale(fixed) == planning.largest_scale(0.0)


def test_a_plan_that_fits_at_the_bound_is_left_there_after_a_few_steps():
    asked = []
    assert planning._search(lambda f: asked.append(f) or f, 30.0) == max(asked)
    assert len(asked) <= 3


# Laws of shares of what is promised to secrets: together they fit, and little is left over.

PRIOR, POSTERIOR = 1e-4, 5e-3
EVOLUTION = {"iterations": 2, "population": 6, "variations": 2}


OF_RECORDS = {"method": "aug_pe", "settings": EVOLUTION}


def secpe(name, **changes):
    return {"method": "secpe", "name": name, "settings": EVOLUTION | {"clusters": 3} | changes}


def secret_spec(*methods, rounds=1, epsilon=8.0, max_records=2):
    kind = {"name": "account", "detector": "regex", "pattern": "TS-[0-9]+", "prior": PRIOR,
            "posterior": POSTERIOR, "max_records": max_records}  # fmt: skip
    budget = {"epsilon": epsilon, "delta": 1e-6, "accountant": "tight", "rounds": rounds}
    return private(budget=budget, secrets={"kinds": [kind]}, methods=list(methods))


def posterior(declared, rounds):
    """What all planned releases of so many rounds tell together, composed exactly."""
    plan = plan_dataset(declared)
    events = [release.event for release in plan.releases] * rounds
    occurrences = budget_terms(declared).secret.occurrences
    return posterior_of_events(events, PRIOR, occurrences=occurrences)


def shares(declared):
    planned = plan_dataset(declared).methods
    return {each.folder: each.plan.parameters.get("secret_share") for each in planned}


def test_several_releases_and_rounds_fit_together_and_use_what_there_is():
    for declared, rounds in (
        (secret_spec(secpe("one")), 1),
        (secret_spec(secpe("one"), secpe("two"), secpe("three")), 1),
        (secret_spec(secpe("one"), rounds=4), 4),
        (secret_spec(secpe("one", secret_share=0.2), secpe("two"), rounds=2), 2),
    ):
        assert 0.99 * POSTERIOR < posterior(declared, rounds) <= POSTERIOR
        assert posterior(declared, rounds + 1) > POSTERIOR


def test_releases_without_a_share_divide_what_is_left_evenly():
    found = shares(secret_spec(secpe("one", secret_share=0.5), secpe("two"), secpe("three")))
    assert found["one"] == pytest.approx(0.5, rel=1e-5)
    assert found["two"] == found["three"] == pytest.approx(0.25, rel=1e-5)


def test_where_dp_releases_take_all_a_secret_release_is_refused_before_anything_is_charged():
    declared = secret_spec(secpe("one"), OF_RECORDS, epsilon=8.0, max_records=50)
    secret, dp = plan_dataset(declared).methods
    assert "the other releases use all of it" in secret.plan.refusal
    assert dp.plan.refusal is None


def test_shares_beyond_the_whole_are_refused_and_no_other_method_is():
    claims = [secpe(name, secret_share=0.6) for name in ("one", "two")]
    one, two, other = plan_dataset(secret_spec(*claims, OF_RECORDS, epsilon=1.0)).methods
    for refused in (one, two):
        assert "a sum of at most 1, got 1.2" in refused.plan.refusal
        assert not refused.plan.charges
    assert other.plan.refusal is None


def test_dp_releases_count_for_all_records_of_a_secret():
    secret = budget_terms(secret_spec(secpe("one"), max_records=3)).secret
    mu = gaussian_budget(PRIOR, POSTERIOR) / 3  # of one record: the whole bound of a secret in 3
    for part in (0.0, 0.3, 0.8, 1.0, 2.0):
        found = divided_secret_shares({"one": None}, secret, rounds=1, dp_mu=part * mu)["one"]
        assert found == pytest.approx(max(0.0, 1 - part**2), abs=1e-5)
