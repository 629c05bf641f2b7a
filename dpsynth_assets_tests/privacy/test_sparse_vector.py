import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dpsynth_assets.privacy import sparse_vector
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.sparse_vector import (
    STEPS_PER_RECORD,
    PublicTokenTest,
    draw_public_tokens,
    next_token_distributions as laws_of,
)
from dpsynth_assets.privacy.token_selection import (
    NextLogits,
    PrivateTokenMeter,
)
from dpsynth_assets_tests.privacy.batched import VOCABULARY, Unread, batched, batches
from dpsynth_assets_tests.privacy.oracles import distance_oracle

RELATIONS = list(NeighboringRelation)


public_test = partial(
    batched, PublicTokenTest, expected_batch_size=4, noise_scale=0.2, threshold=0.5
)


@pytest.fixture
def noiseless(monkeypatch):
    """Integer noise of zero, and a list of (values, scale) of each call for noise."""
    calls = []

    def exact(values, scale):
        calls.append((list(values), scale))
        return list(values)

    monkeypatch.setattr(sparse_vector, "discrete_laplace", exact)
    return calls


def one_batch(distance):
    """One row whose law has about this distance, 0 or 2, from the public law; s = 1."""
    public = torch.tensor([[60.0, -60.0, -60.0]])
    private = public if distance == 0 else public.roll(1, dims=1)
    return NextLogits(private, torch.zeros(1, dtype=torch.int64), np.array([0]), public)


def unread(*batches):
    return NextLogits(Unread(), Unread(), np.array(batches), Unread())


# Price


@pytest.mark.parametrize(
    ("relation", "records", "expected"),
    [("add-remove", 1, 0.1), ("zero-out", 1, 0.1), ("replace-one", 1, 0.2), ("add-remove", 3, 0.3)],
)
def test_epsilon_is_two_over_s_sigma_for_each_changed_vector(relation, records, expected):
    tested = public_test(expected_batch_size=100, relation=relation, max_records_per_unit=records)
    assert tested.epsilon == pytest.approx(expected, rel=1e-12)


@settings(deadline=None)
@given(
    st.integers(1, 5000),
    st.floats(1e-3, 10.0),
    st.sampled_from(RELATIONS),
    st.integers(1, 5),
    st.sampled_from([0.0, 1e-4, 0.25]),
)
def test_integer_noise_costs_exactly_the_stated_epsilon(size, sigma, relation, records, slack):
    tested = public_test(
        expected_batch_size=size,
        noise_scale=sigma,
        relation=relation,
        max_records_per_unit=records,
        logit_slack=slack,
    )
    changes = relation.records_changed * records
    scale = Fraction(tested.noise_steps)
    cost = changes * tested.sensitivity_steps * (1 / scale + 2 / (2 * scale))
    assert Fraction(tested.epsilon) * (1 - Fraction(1, 10**12)) <= cost <= tested.epsilon


@settings(deadline=None)
@given(
    st.integers(1, 300),
    st.floats(1e-3, 10.0),
    st.sampled_from([1e-5, 1e-4, 0.25]),
    st.integers(2, 32),
    st.sampled_from([1.0, 2.5]),
    st.data(),
)
def test_instances_of_a_passs_other_batches_are_paid_too(size, sigma, slack, batches, load, data):
    # The P rows that may move are of one batch, of all alike, or of any.
    settings = {"expected_batch_size": size, "noise_scale": sigma, "logit_slack": slack}
    tested = public_test(**settings, load=load, batches_per_pass=batches)
    room = tested.batch.rows_per_pass
    weights = data.draw(st.lists(st.integers(0, 5), min_size=batches, max_size=batches))
    rows = [room * weight // max(1, sum(weights)) for weight in weights]
    rows[0] += room - sum(rows)
    # Floors of distances that far apart, in steps, and what summation may add.
    moved = [math.ceil(each * slack * STEPS_PER_RECORD) + tested.rounding_steps for each in rows]
    moved[0] = math.ceil((1 + rows[0] * slack) * STEPS_PER_RECORD) + tested.rounding_steps
    assert tested.noise_steps == public_test(**settings, load=load).noise_steps
    assert sum(moved) * 2 / tested.noise_steps <= tested.epsilon * (1 + 1e-12)


@pytest.mark.parametrize(("size", "enlarged"), [(8, 1e-4), (64, 4e-4), (255, 1.2e-3)])
def test_lattice_and_rounding_enlarge_the_noise_by_little(size, enlarged):
    tested = public_test(expected_batch_size=size)
    ideal = 0.2 * size * STEPS_PER_RECORD
    assert 1 <= tested.noise_steps / ideal < 1 + enlarged


def test_numerical_slack_is_charged():
    free = public_test().epsilon
    assert public_test(logit_slack=0.01).epsilon == pytest.approx(free * (1 + 4 * 4 * 0.01))
    assert public_test(batches_per_pass=32).epsilon == free  # no slack: nothing moves elsewhere


# Distance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("masked", [False, True])
def test_tensor_distances_match_the_numpy_oracle(block_entries, dtype, masked):
    logits, public, batch_of_row = batches()
    logits, active = logits.to(dtype), np.array([5, 2, 0, 3])
    allowed = np.random.default_rng(0).random(VOCABULARY) < 0.5 if masked else None
    columns = None if allowed is None else torch.from_numpy(np.flatnonzero(allowed))
    distances = public_test().private_distances(
        logits, public[active], batch_of_row, active, columns
    )
    keep = slice(None) if allowed is None else allowed
    for position, batch in enumerate(active):
        rows = logits[batch_of_row == batch].double().numpy()[:, keep]
        expected = distance_oracle(rows, public[batch].double().numpy()[keep], 4)
        assert float(distances[position]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("rows", "scale"), [(64, 4.0), (64, 0.0), (256, 0.01), (260, 4.0)])
def test_rounding_of_the_sums_is_within_the_steps_that_are_charged_for_it(rows, scale):
    # Any order of summation is allowed, so a neighbour's other rows may round differently: two
    # orders may lie apart by what is charged, and each from the exact distance by half of it.
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(rows, 20_000, generator=generator) * scale
    public = torch.randn(1, 20_000, generator=generator) * 4
    tested = public_test(expected_batch_size=64)
    exact = distance_oracle(logits.double().numpy(), public[0].double().numpy(), 64)
    for order in (torch.arange(rows), torch.randperm(rows, generator=generator)):
        found = tested.private_distances(
            logits[order], public, torch.zeros(rows, dtype=torch.int64), np.array([0])
        )
        masses = 0.5 * (rows + 64)  # half a step for each law's own rounding to mass 1
        steps = abs(float(found[0]) - exact) * 64 * STEPS_PER_RECORD
        assert steps < tested.rounding_steps / 2 + masses


def test_float32_sums_stop_where_their_rounding_is_no_longer_charged(monkeypatch):
    summed = []
    monkeypatch.setattr(
        sparse_vector,
        "_sum_on_a_cpu",
        lambda logits, *_: summed.append(1) or logits[0].double(),
    )
    for rows in (16, 17):
        public_test().private_distances(
            torch.zeros(rows, 9),
            torch.zeros(1, 9),
            torch.zeros(rows, dtype=torch.int64),
            np.array([0]),
        )
    assert len(summed) == 1


# Instances


def test_noise_is_integer_with_the_stated_scales_and_a_fresh_threshold(noiseless):
    tested = public_test(expected_batch_size=1)
    opened = tested.open(PrivateTokenMeter(2, 1))
    answers = [
        bool(opened.needs_private_token(one_batch(distance))[0]) for distance in (0, 0, 2, 0)
    ]
    assert answers == [False, False, True, False]
    scale, end = tested.noise_steps, 2 * STEPS_PER_RECORD
    expected = [
        (tested.threshold_steps, scale),
        (0, 2 * scale),
        (0, 2 * scale),
        (end, 2 * scale),
        (tested.threshold_steps, scale),
        (0, 2 * scale),
    ]
    assert [call[1] for call in noiseless] == [call[1] for call in expected]
    for (values, _), (value, _) in zip(noiseless, expected, strict=True):
        assert values == pytest.approx([value], abs=1)
        assert isinstance(values[0], int)


def test_distance_equal_to_the_noisy_threshold_is_far(noiseless, monkeypatch):
    tested = public_test(expected_batch_size=1, threshold=1.0)
    monkeypatch.setattr(
        PublicTokenTest, "private_distances", lambda *_: torch.ones(1, dtype=torch.float64)
    )
    opened = tested.open(PrivateTokenMeter(1, 1))
    assert opened.needs_private_token(one_batch(0)).tolist() == [True]


def test_answers_are_aligned_with_active(noiseless):
    near, far = one_batch(0), one_batch(2)
    private, public = torch.cat([far.private, near.private]), near.public.repeat(2, 1)
    opened = public_test(expected_batch_size=1).open(PrivateTokenMeter(1, 10))
    asked = NextLogits(private, torch.tensor([9, 4]), np.array([4, 9]), public)
    answers = opened.needs_private_token(asked)
    assert answers.tolist() == [False, True]


def test_both_laws_are_conditioned_on_the_allowed_tokens(noiseless):
    logits, public, _ = batches()
    allowed = np.arange(VOCABULARY) % 3 == 0
    opened = public_test(expected_batch_size=1).open(PrivateTokenMeter(1, 1))
    where = torch.zeros(1, dtype=torch.int64), np.array([0])
    opened.needs_private_token(NextLogits(logits[:1], *where, public[:1], allowed))
    rows, law = logits[:1].double().numpy()[:, allowed], public[0].double().numpy()[allowed]
    expected = math.floor(distance_oracle(rows, law, 1) * STEPS_PER_RECORD)
    assert noiseless[-1][0] == pytest.approx([expected], abs=1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3), st.lists(st.tuples(st.booleans(), st.booleans()), max_size=14))
def test_no_loop_can_run_more_instances_than_the_plan_pays(tokens, steps):
    meter = PrivateTokenMeter(tokens, 1)
    opened = public_test(expected_batch_size=1, noise_scale=0.01).open(meter)
    finished = 0
    for far, draws in steps:
        try:
            finished += int(opened.needs_private_token(one_batch(2 * far))[0])
            meter.spend(np.array([0] * draws))
        except UnaccountedReleaseError:
            continue
    assert finished <= int(opened.opened[0]) <= tokens
    if meter.exhausted[0]:
        with pytest.raises(UnaccountedReleaseError):
            opened.needs_private_token(unread(0))


def test_refused_question_opens_nothing_for_any_batch(noiseless):
    meter = PrivateTokenMeter(1, 2)
    opened = public_test().open(meter)
    meter.spend(np.array([1]))
    with pytest.raises(UnaccountedReleaseError):
        opened.needs_private_token(unread(0, 1))
    assert opened.opened.tolist() == [0, 0]
    assert noiseless == []


@pytest.mark.parametrize("batch", [-1, 2])
def test_batches_unknown_to_the_meter_are_refused(batch):
    opened = public_test().open(PrivateTokenMeter(1, 2))
    with pytest.raises(UnaccountedReleaseError):
        opened.needs_private_token(unread(batch))


def test_a_meter_pays_for_one_test_only():
    meter = PrivateTokenMeter(1, 2)
    public_test().open(meter)
    with pytest.raises(UnaccountedReleaseError, match="without a public-token test"):
        public_test().open(meter)


def test_noisy_thresholds_do_not_show():
    opened = public_test().open(PrivateTokenMeter(1, 1))
    assert "threshold" not in repr(opened)


# Public tokens


def test_public_tokens_follow_their_temperature_and_mask():
    logits = torch.tensor([[0.0, 3.0, 1.0]]).repeat(4000, 1)
    cold = np.bincount(draw_public_tokens(logits, 0.05), minlength=3)
    assert cold.tolist() == [0, 4000, 0]
    hot = np.bincount(draw_public_tokens(logits, 50.0), minlength=3) / 4000
    assert (np.abs(hot - 1 / 3) < 0.1).all()
    masked = draw_public_tokens(logits, 1.0, np.array([True, False, True]))
    assert set(masked) == {0, 2}


# Distributions whose sums are compared


def test_float32_sums_equal_the_laws_sums_but_for_rounding(block_entries):
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(37, 300, generator=generator) * 5
    logits[3] += 200.0  # leaves the range of plain exponentials
    logits[9, 2], logits[20] = math.nan, -math.inf
    for rows in (slice(2, 31), torch.tensor([36, 3, 9, 20, 1, 0])):
        for columns in (None, torch.arange(0, 300, 3)):
            found = sparse_vector._sum_on_a_cpu(logits, columns, rows)
            kept = logits[rows] if columns is None else logits[rows][:, columns]
            exact = laws_of(kept).double().sum(dim=0)
            torch.testing.assert_close(found, exact, atol=0, rtol=9 * 2.0**-24)


@pytest.mark.parametrize("scale", [0.0, 1e-3, 4.0, 30.0])
@pytest.mark.parametrize("level", [-100.0, -40.0, 0.0, 60.0, 100.0])
def test_a_rows_law_adds_up_to_one_within_half_a_lattice_step(scale, level):
    # The sensitivity of the distance is the mass of one law: D has one whole step for rounding.
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(4, 262_144, generator=generator) * scale + level
    masses = laws_of(rows).double().sum(dim=1)
    assert ((masses - 1).abs() * STEPS_PER_RECORD < 0.5).all()


def test_a_rows_law_does_not_depend_on_other_rows():
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(6, 500, generator=generator) * 5
    rows[1] += 200.0  # leaves the range of plain exponentials
    rows[2, 3], rows[3] = math.inf, -math.inf
    together = laws_of(rows)
    for index in range(6):
        assert torch.equal(together[index], laws_of(rows[index : index + 1])[0])
    assert (together[2:4] == 0).all()
    assert float(together[1].sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("level", [-120.0, -21.0, 0.0, 19.0, 21.0, 150.0])
def test_sums_of_laws_do_not_depend_on_the_rows_level(level):
    # Of a model whose logits lie around -100, plain exponentials would be denormal and slow.
    generator = torch.Generator().manual_seed(6)
    logits = torch.randint(-40, 20, (24, 300), generator=generator) * 0.25
    raised = logits.clone()
    raised[::2] += level  # exact, and so is taking a level off again
    exact = laws_of(logits).double().sum(dim=0)
    found = sparse_vector._sum_on_a_cpu(raised, None, slice(0, 24))
    torch.testing.assert_close(found, exact, atol=0, rtol=9 * 2.0**-24)


@pytest.mark.parametrize("level", [-120.0, 0.0, 30.0, 150.0])
@pytest.mark.parametrize("mate", [math.nan, math.inf, -math.inf])
def test_a_mate_without_a_law_leaves_the_others_sums_as_they_are(level, mate):
    # To the last bit: the price of the test has no room for laws that mates could round anew.
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(2, 300, generator=generator) * 4 + level
    logits[1] = mate
    alone = sparse_vector._sum_on_a_cpu(logits, None, slice(0, 1))
    assert torch.equal(sparse_vector._sum_on_a_cpu(logits, None, slice(0, 2)), alone)
    assert float(alone.sum()) == pytest.approx(1.0)


def test_a_safe_row_is_not_rounded_anew_beside_an_unsafe_one():
    generator = torch.Generator().manual_seed(8)
    logits = torch.randn(2, 300, generator=generator) * 4 + 30.0
    logits[1] = -200.0 * torch.arange(300)  # nearly all its mass on one token
    alone = sparse_vector._sum_on_a_cpu(logits, None, slice(0, 1))
    both = sparse_vector._sum_on_a_cpu(logits, None, slice(0, 2))
    assert torch.equal(both[1:], alone[1:])
