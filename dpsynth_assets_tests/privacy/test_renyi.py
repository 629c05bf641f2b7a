import pytest
from hypothesis import given, settings, strategies as st

from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    ComposedEvent,
    DiscreteLaplaceEvent,
    GaussianEvent,
    PoissonGaussianEvent,
    PureEvent,
)
from dpsynth_assets.privacy.renyi import (
    ORDERS,
    delta_at_order,
    epsilon_at_order,
    filter_order,
    is_zcdp,
    renyi_divergence,
    renyi_epsilon,
    zcdp_epsilon,
    zcdp_epsilon_closed_form,
    zcdp_rho,
)

ZCDP_EVENTS = [
    GaussianEvent(noise_multiplier=3.0),
    DiscreteLaplaceEvent(scale=10.0),
    BoundedRangeEvent(eta=0.1875, count=40),
    PureEvent(epsilon=0.05, count=20),
]


def sampled(**changes):
    fields = {"sampling_probability": 0.05, "noise_multiplier": 1.2, "steps": 100}
    return PoissonGaussianEvent(**{**fields, **changes})


@pytest.mark.parametrize("event", ZCDP_EVENTS)
def test_divergence_of_a_zcdp_event_is_rho_times_the_order(event):
    for order in (1.5, 4.0, 300.0):
        divergence = renyi_divergence(event, order)
        assert event.rho * order <= divergence
        assert divergence == pytest.approx(float(event.rho) * order)


@given(st.floats(1e-4, 0.99), st.floats(0.35, 20.0), st.one_of(st.integers(2, 60), st.just(256)))
@settings(max_examples=60, deadline=None)
def test_sampled_divergence_is_the_series_of_the_library_at_whole_orders(q, sigma, order):
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders=[order])
    gaussian = dp_accounting.GaussianDpEvent(sigma)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(q, gaussian), 7)
    library = float(accountant.rdp[0])
    event = sampled(sampling_probability=q, noise_multiplier=sigma, steps=7)
    ours = renyi_divergence(event, order)
    assert library <= ours * (1 + 1e-12)
    assert ours <= min(library, order * float(event.rho)) * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize(
    ("q", "sigma", "order"), [(0.3, 0.4, 1.3), (0.05, 3.0, 22.3), (0.9, 8, 5.1)]
)
def test_sampled_divergence_is_the_integral_between_whole_orders(q, sigma, order):
    import mpmath

    def integrand(x):
        ratio = (1 - q) + q * mpmath.exp((2 * x - 1) / (2 * sigma**2))
        return mpmath.npdf(x, 0, sigma) * ratio**order

    ends = [-10 * sigma + part * (order + 20 * sigma) / 40 for part in range(41)]
    exact = mpmath.log(mpmath.quad(integrand, ends)) / (order - 1)
    ours = renyi_divergence(sampled(sampling_probability=q, noise_multiplier=sigma, steps=1), order)
    assert exact <= ours <= exact * (1 + 1e-8)


@given(
    st.floats(1e-3, 0.5),
    st.floats(0.5, 5.0),
    st.integers(1, 200),
    st.integers(1, 4),
    st.sampled_from([1.7, 3.0, 8.2, 33.0]),
)
@settings(max_examples=40, deadline=None)
def test_divergence_is_monotone_in_every_parameter(q, sigma, steps, records, order):
    def divergence(**changes):
        fields = {
            "sampling_probability": q,
            "noise_multiplier": sigma,
            "steps": steps,
            "max_records_per_unit": records,
        }
        return renyi_divergence(sampled(**{**fields, **changes}), order)

    base = divergence()
    assert base > 0
    for larger in (
        {"sampling_probability": 1.3 * q},
        {"noise_multiplier": 0.9 * sigma},
        {"steps": steps + 1},
        {"max_records_per_unit": records + 1},
        {"replaced": True},
    ):
        assert divergence(**larger) >= base * (1 - 1e-9)
    assert base <= order * float(sampled(noise_multiplier=sigma, steps=steps).rho) * records**2 * (
        1 + 1e-9
    )


def test_a_unit_of_several_records_costs_at_least_the_true_mixture():
    # Two records of one unit, drawn one by one: shifts 0, 1, 2 with binomial chances.
    import mpmath

    q, sigma, order = 0.1, 1.5, 6
    chances = [(1 - q) ** 2, 2 * q * (1 - q), q * q]

    def integrand(x):
        ratio = sum(
            chance * mpmath.exp((2 * k * x - k * k) / (2 * sigma**2))
            for k, chance in enumerate(chances)
        )
        return mpmath.npdf(x, 0, sigma) * ratio**order

    exact = mpmath.log(mpmath.quad(integrand, range(-16, 34, 2))) / (order - 1)
    event = sampled(sampling_probability=q, noise_multiplier=sigma, steps=1, max_records_per_unit=2)
    assert exact <= renyi_divergence(event, order) < float(event.rho) * order


def test_replaced_units_and_whole_samples_are_not_amplified():
    for event in (sampled(replaced=True), sampled(sampling_probability=1.0)):
        assert is_zcdp(event)
        assert renyi_divergence(event, 5.0) == pytest.approx(5.0 * float(event.rho))
    assert not is_zcdp(ComposedEvent(events=(ZCDP_EVENTS[0], sampled())))


def test_hardly_any_noise_is_charged_as_if_nothing_were_sampled():
    event = sampled(noise_multiplier=0.02)
    assert renyi_divergence(event, 2000.0) == pytest.approx(2000.0 * float(event.rho))


def test_divergences_add():
    parts = [*ZCDP_EVENTS, sampled()]
    whole = renyi_divergence(ComposedEvent(events=parts), 7.5)
    assert whole == pytest.approx(sum(renyi_divergence(part, 7.5) for part in parts))


@given(st.floats(1e-4, 30.0), st.floats(1.05, 500.0), st.floats(1e-12, 0.1))
def test_conversion_at_an_order_is_rounded_up_and_turns_back(divergence, order, delta):
    epsilon = epsilon_at_order(divergence, order, delta)
    if epsilon > 0:
        assert delta_at_order(divergence, order, epsilon) <= delta * (1 + 1e-9)
        assert delta_at_order(divergence, order, 0.99 * epsilon) >= delta * (1 - 1e-9)


@given(st.floats(1e-5, 20.0), st.floats(1e-12, 0.1))
@settings(max_examples=40, deadline=None)
def test_the_best_order_gives_the_zcdp_conversion(rho, delta):
    best = min(epsilon_at_order(order * rho, order, delta) for order in ORDERS)
    exact = zcdp_epsilon(rho, delta)
    assert exact <= best * (1 + 1e-9)
    assert exact <= zcdp_epsilon_closed_form(rho, delta)
    if exact > 0.05:
        assert best <= 1.02 * exact


@given(st.floats(0.01, 30.0), st.floats(1e-12, 0.01))
@settings(max_examples=40, deadline=None)
def test_at_the_order_of_a_budget_zcdp_releases_fill_it_exactly(budget, delta):
    order = filter_order(budget, delta)
    rho = zcdp_rho(budget, delta)
    assert epsilon_at_order(order * rho, order, delta) == pytest.approx(budget, rel=1e-9)
    assert epsilon_at_order(order * rho * 1.001, order, delta) > budget
    assert epsilon_at_order(order * rho * 0.999, order, delta) < budget


def test_nothing_released_costs_nothing():
    assert renyi_epsilon([], 1e-6) == 0.0
    assert epsilon_at_order(0.0, 2.0, 1e-6) == 0.0
