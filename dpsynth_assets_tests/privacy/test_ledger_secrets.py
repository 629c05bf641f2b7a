"""Laws of secret protection in the ledger: apart from every ε, bounded as one composition."""

import json
from functools import partial

import pytest
from typer.testing import CliRunner

from dpsynth_assets.cli.ledger import app
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.errors import BudgetExceededError, PlanChangedError, PrivacyError
from dpsynth_assets.privacy.events import (
    POST_PROCESSING,
    ComposedEvent,
    GaussianEvent,
    MixtureGaussianEvent,
)
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import PlannedRelease, SecretTerms
from dpsynth_assets.privacy.ledger.statement import SECRET_TOTAL
from dpsynth_assets.privacy.secret_protection import posterior_of_events
from dpsynth_assets_tests.privacy.ledger_cases import HALF_RHO, make_request, make_terms, sqlite_url

DELTA = 1e-6
PRIOR = 1e-4
MIXTURE = MixtureGaussianEvent(noise_std=2.0, shifts=(0.0, 1.0), probabilities=(0.5, 0.5))
SECRET = PlannedRelease("tickets/centres", MIXTURE)
HISTOGRAM = PlannedRelease("tickets/histogram", GaussianEvent(noise_multiplier=10.0))
PLAN = [HISTOGRAM, SECRET]


def posterior(*events, occurrences=1):
    return posterior_of_events(events, PRIOR, occurrences=occurrences)


def terms(bound=0.01, occurrences=1, prior=PRIOR, others=(), **changes):
    secret = SecretTerms(prior=prior, posterior=bound, occurrences=occurrences, others=others)
    return make_terms(**{"accountant": "tight", "secret": secret, **changes})


promised = partial(terms, occurrences=50)


def secret_request(**changes):
    fields = {"asset": SECRET.asset, "event": MIXTURE, "guarantee": GuaranteeType.SECRET}
    return make_request(**{**fields, **changes})


def histogram_request(**changes):
    return make_request(asset=HISTOGRAM.asset, event=HISTOGRAM.event, **changes)


def test_a_secret_release_costs_no_epsilon_and_ends_the_dp_total(tmp_path, ledger):
    ledger.reserve(secret_request(), terms(occurrences=3), PLAN)
    spend = ledger.spend("tickets")
    assert (spend.epsilon, spend.rho, spend.remaining_epsilon) == (0.0, 0, 8.0)
    assert spend.total_guarantee == SECRET_TOTAL
    assert ledger.dataset_spend("tickets").total_guarantee == SECRET_TOTAL
    together = posterior(HISTOGRAM.event, MIXTURE, occurrences=3)
    assert spend.secret_posterior == pytest.approx(together)
    assert together > posterior(MIXTURE, occurrences=3)
    assert spend.secret_prior == PRIOR
    ledger.reserve(histogram_request(), terms(occurrences=3), PLAN)
    assert ledger.spend("tickets").epsilon == epsilon_of([HISTOGRAM.event], DELTA, "tight")
    runner = CliRunner(env={"DPSYNTH_LEDGER_URL": sqlite_url(tmp_path), "COLUMNS": "240"})
    document = json.loads(runner.invoke(app, ["show", "--json"]).stdout)
    assert document["cohorts"][0]["secret_posterior"] == spend.secret_posterior
    assert [charge["epsilon_alone"] is None for charge in document["charges"]] == [True, False]
    assert "secrets (posterior" in runner.invoke(app, ["show"]).stdout


@pytest.mark.parametrize("first", [secret_request(), histogram_request()])
def test_a_plan_that_tells_too_much_together_is_refused_at_its_first_charge(ledger, first):
    alone, together = posterior(MIXTURE), posterior(HISTOGRAM.event, MIXTURE)
    with pytest.raises(BudgetExceededError, match="would reveal too much about the secrets"):
        ledger.reserve(first, terms((alone + together) / 2), PLAN)
    assert ledger.entries() == []
    ledger.reserve(first, terms(together), PLAN)


def test_a_second_copy_of_a_secret_release_is_composed_not_added(ledger):
    strong = MixtureGaussianEvent(noise_std=1.0, shifts=(1.0,), probabilities=(1.0,))
    once, twice = posterior(strong), posterior(strong, strong)
    assert twice > 2 * once, "otherwise adding would have sufficed"
    plan = [PlannedRelease(SECRET.asset, strong)]
    for name in ("1", "2"):
        ledger.reserve(secret_request(event=strong, release=name), terms(twice), plan)
    assert ledger.spend("tickets").secret_posterior == pytest.approx(twice)
    with pytest.raises(BudgetExceededError, match="reveal too much"):
        ledger.reserve(secret_request(event=strong, release="3"), terms(twice), plan)


def test_secret_releases_need_terms_and_a_fixed_plan(ledger):
    with pytest.raises(PrivacyError, match="Declare prior, posterior and occurrences"):
        ledger.reserve(secret_request(), make_terms(accountant="tight"), PLAN)
    with pytest.raises(PrivacyError, match="Set `accountant: tight`"):
        ledger.reserve(secret_request(), terms(accountant="zcdp"), PLAN)
    assert ledger.entries() == []


@pytest.mark.parametrize("guarantee", [GuaranteeType.DP, GuaranteeType.EX_POST])
@pytest.mark.parametrize("event", [MIXTURE, ComposedEvent(events=(HALF_RHO, MIXTURE))])
def test_an_event_of_secrets_is_never_charged_as_epsilon(ledger, guarantee, event):
    request = make_request(event=event, guarantee=guarantee)
    with pytest.raises(PrivacyError, match="Expected guarantee secret"):
        ledger.reserve(request, make_terms(accepts_ex_post=True))


@pytest.mark.parametrize("event", [HALF_RHO, ComposedEvent(events=(MIXTURE, HALF_RHO))])
def test_an_event_of_records_is_never_charged_as_secret(ledger, event):
    plan = [PlannedRelease(SECRET.asset, event)]
    with pytest.raises(PrivacyError, match="Expected mixture-of-Gaussians events"):
        ledger.reserve(secret_request(event=event), terms(), plan)


@pytest.mark.parametrize("charged", [0, 1], ids=["promised", "charged"])
def test_what_would_end_the_bound_is_refused(ledger, charged):
    for _ in range(charged):
        ledger.reserve(secret_request(), terms(), PLAN)
    with pytest.raises(BudgetExceededError, match="would break that bound"):
        ledger.reserve(make_request(), terms(accountant="zcdp"))
    ex_post = make_request(guarantee=GuaranteeType.EX_POST, event=None)
    with pytest.raises(BudgetExceededError, match="would break that bound"):
        ledger.reserve(ex_post, terms(accepts_ex_post=True), PLAN if charged else DP_PLAN)
    assert len(ledger.entries()) == charged


def test_an_unplanned_past_excludes_a_secret_release(ledger):
    ledger.reserve(make_request(), make_terms())
    with pytest.raises(PlanChangedError):
        ledger.reserve(secret_request(), terms(), PLAN)


@pytest.mark.parametrize("changed", [{"occurrences": 2}, {"secret": None}])
def test_occurrences_are_fixed_by_the_first_secret_release(ledger, changed):
    ledger.reserve(secret_request(), terms(), PLAN)
    with pytest.raises(PrivacyError, match="Restore secret occurrences"):
        ledger.reserve(histogram_request(), terms(**changed), PLAN)


HIDDEN = GaussianEvent(noise_multiplier=60.0)
DP_PLAN = [PlannedRelease("tickets/mean/corpus", HIDDEN)]


def test_no_promise_follows_an_ex_post_release(ledger):
    ex_post = make_request(guarantee=GuaranteeType.EX_POST, event=None)
    ledger.reserve(ex_post, make_terms(accountant="tight", accepts_ex_post=True), DP_PLAN)
    with pytest.raises(BudgetExceededError, match="secrets"):
        ledger.reserve(make_request(event=HIDDEN), promised(0.99, accepts_ex_post=True), DP_PLAN)


def test_a_promise_binds_a_cohort_of_dp_releases_alone(ledger):
    reached = posterior(HIDDEN, occurrences=50)
    with pytest.raises(BudgetExceededError, match="reveal too much about the secrets") as refusal:
        ledger.reserve(make_request(event=HIDDEN), promised(reached * 0.999), DP_PLAN)
    assert "Lower budget.epsilon" in str(refusal.value)
    assert ledger.entries() == []
    ledger.reserve(make_request(event=HIDDEN), promised(reached), DP_PLAN)
    spend = ledger.spend("tickets")
    assert spend.secret_posterior == pytest.approx(reached)
    assert spend.total_guarantee == "dp"


def test_what_is_written_from_paid_releases_tells_nothing_more(ledger):
    reached = posterior(HIDDEN, occurrences=50)
    ledger.reserve(make_request(event=HIDDEN), promised(reached), DP_PLAN)
    free = make_request(asset="tickets/mean/more", event=POST_PROCESSING)
    ledger.reserve(free, promised(reached * 0.999), DP_PLAN)


REACHED = posterior(HIDDEN, occurrences=50)


@pytest.mark.parametrize(
    ("changed", "remedy"),
    [
        (make_terms(accountant="tight"), "Restore secret occurrences"),
        (make_terms(), "Restore secret occurrences"),
        (promised(REACHED, occurrences=49), "Restore secret occurrences"),
        (promised(0.9), "Restore secrets.kinds"),
        (promised(REACHED, prior=PRIOR / 2), "Restore secrets.kinds"),
    ],
)
def test_a_promise_to_secrets_outlives_the_file_that_made_it(ledger, changed, remedy):
    """A second release would break the promise; so it may not be dropped or weakened either."""
    ledger.reserve(make_request(event=HIDDEN), promised(REACHED), DP_PLAN)
    second = make_request(event=HIDDEN, release="2")
    with pytest.raises(BudgetExceededError, match="reveal too much about the secrets"):
        ledger.reserve(second, promised(REACHED), DP_PLAN)
    with pytest.raises(PrivacyError, match=remedy) as refusal:
        ledger.reserve(second, changed, DP_PLAN)
    assert "\n" not in str(refusal.value)
    assert "Expected" in str(refusal.value)
    assert len(ledger.entries()) == 1
    for told in (ledger.spend("tickets"), ledger.spend("tickets", changed)):
        if changed.secret is None:
            assert told.secret_posterior == pytest.approx(REACHED)
    assert ledger.spend("tickets", promised(0.9)).secret_prior == PRIOR


def test_a_promise_may_become_stronger_and_is_then_kept(ledger):
    twice = posterior(HIDDEN, HIDDEN, occurrences=50)
    ledger.reserve(make_request(event=HIDDEN), promised(0.9), DP_PLAN)
    stronger = promised(twice, others=((PRIOR / 2, 0.9),))
    ledger.reserve(make_request(event=HIDDEN, release="2"), stronger, DP_PLAN)
    with pytest.raises(PrivacyError, match=r"Restore secrets\.kinds"):
        ledger.reserve(make_request(event=HIDDEN, release="3"), promised(0.9), DP_PLAN)


def test_a_cohort_that_was_charged_without_a_promise_may_make_one(ledger):
    ledger.reserve(make_request(event=HIDDEN), make_terms(accountant="tight"), DP_PLAN)
    ledger.reserve(make_request(event=HIDDEN, release="2"), promised(0.9), DP_PLAN)
    with pytest.raises(PrivacyError, match="Restore secret occurrences"):
        ledger.reserve(
            make_request(event=HIDDEN, release="3"), make_terms(accountant="tight"), DP_PLAN
        )


def test_terms_with_secrets_survive_the_ledger(ledger):
    several = promised(0.99, occurrences=3, others=((0.1, 0.9), (0.2, 0.95)))
    ledger.reserve(secret_request(), several, PLAN)
    assert ledger.entries()[0].terms == several
    assert ledger.verify(ledger.head()).ok


# ------------------------------------------------------------------- several kinds of secrets


def test_every_promised_bound_is_compared(ledger):
    reached = posterior_of_events([HISTOGRAM.event, MIXTURE], 0.1)
    with pytest.raises(BudgetExceededError, match=r"prior 0\.1"):
        ledger.reserve(secret_request(), terms(0.99, others=((0.1, reached * 0.999),)), PLAN)
    assert ledger.entries() == []
    ledger.reserve(secret_request(), terms(0.99, others=((0.1, reached),)), PLAN)
