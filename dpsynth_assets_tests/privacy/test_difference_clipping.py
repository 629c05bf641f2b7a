import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dpsynth_assets.privacy import clipping, difference_clipping, difference_lattice
from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism, public_support
from dpsynth_assets.privacy.difference_lattice import DifferenceLattice
from dpsynth_assets.privacy.token_selection import NextLogits, PrivateTokenMeter
from dpsynth_assets_tests.privacy.batched import batched
from dpsynth_assets_tests.privacy.oracles import difference_scores_oracle

VOCABULARY = 257
EVERY = torch.arange(VOCABULARY)


mechanism = partial(
    batched, DifferenceTokenMechanism, clip_bound=1.0, temperature=1.2, expected_batch_size=4
)


def batches(seed=0):
    generator = torch.Generator().manual_seed(seed)
    public = torch.randn(6, VOCABULARY, generator=generator) * 4
    batch_of_row = torch.randint(0, 6, (20,), generator=generator)
    batch_of_row[batch_of_row == 2] = 3  # batch 2 is empty
    logits = public[batch_of_row] + torch.randn(20, VOCABULARY, generator=generator)
    return logits, public, batch_of_row


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("top_k", [None, 9])
def test_tensor_scores_match_the_numpy_oracle(block_entries, dtype, top_k):
    logits, public, batch_of_row = batches()
    logits, tested = logits.to(dtype), mechanism(top_k=top_k)
    for batch in range(6):
        rows = torch.nonzero(batch_of_row == batch).squeeze(1)
        support = tested.support(public[batch], None)
        scores = tested.private_scores(logits, public[batch], rows, support)
        expected = difference_scores_oracle(
            logits[rows].double().numpy(),
            public[batch].double().numpy(),
            support.numpy(),
            clip_bound=1.0,
            expected_batch_size=4,
            temperature=1.2,
        )
        np.testing.assert_allclose(scores.numpy(), expected, atol=1e-12)


def test_token_that_a_record_forbids_loses_no_more_than_the_bound():
    public = torch.zeros(VOCABULARY)
    row = torch.zeros(1, VOCABULARY)
    row[0, 7] = -math.inf
    scores = mechanism().private_scores(row, public, torch.arange(1), EVERY)
    assert torch.isfinite(scores).all()
    assert float(scores[0] - scores[7]) == pytest.approx(1.0 / (4 * 1.2), abs=1e-2)


# Support


def test_support_holds_the_k_largest_and_all_within_the_margin():
    logits = torch.tensor([3.0, 9.0, 8.5, 8.4, -1.0, 8.0])
    assert public_support(logits, 2, 0.0).nonzero().squeeze(1).tolist() == [1, 2]
    assert public_support(logits, 2, 0.1001).nonzero().squeeze(1).tolist() == [1, 2, 3]
    assert public_support(logits, None, 0.0).all()
    assert public_support(logits, 99, 0.0).all()


def test_support_keeps_ties_at_the_last_place():
    assert public_support(torch.tensor([1.0, 1.0, 0.0, 1.0]), 1, 0.0).sum() == 3


def test_support_never_holds_a_token_without_a_finite_logit():
    logits = torch.tensor([[0.0, -math.inf, 1.0], [-math.inf, 5.0, -math.inf]])
    for k in (None, 1, 3):
        assert not public_support(logits, k, 1.0)[~torch.isfinite(logits)].any()


def test_margin_is_two_clip_bounds_over_the_expected_batch_size():
    assert mechanism(clip_bound=3.0).support_margin == pytest.approx(1.5)
    logits = torch.full((VOCABULARY,), -9.0)
    logits[[5, 6, 7]] = torch.tensor([2.0, 1.51, 1.49])
    assert mechanism(top_k=1).support(logits, None).tolist() == [5, 6]


# Selection


def test_a_mask_that_leaves_no_public_token_is_refused():
    public = torch.tensor([[0.0] + [-math.inf] * 4])
    with pytest.raises(ValueError, match="allowed"):
        mechanism().support(public[0], np.arange(5) == 3)


# What a record adds is a function of its own row, to the last bit, whatever its company

LATTICE = DifferenceLattice(1.0, 4)


def near_tie(draw, tokens, lattice=LATTICE):
    """A float64 row whose log-normaliser lies within 2^-45 of a boundary between units."""
    row = draw.normal(0, 2, tokens)
    row[0] = row.max() + 1.0
    shifted = row - row[0]

    def normaliser(extra):
        return math.log(math.fsum([*np.exp(shifted[:-1]), math.exp(extra)]))

    low, high = -30.0, 0.0
    unit = lattice.normaliser_unit
    target = (math.floor(normaliser(-5.0) / unit) + 0.5) * unit
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if normaliser(middle) < target else (low, middle)
    row[-1] = row[0] + low
    return row


def contribution(rows, row, public, **changes):
    """What one of (n, V) rows adds to the sums of a batch: exact integers, hence a difference."""
    tested = mechanism(**changes)
    support = tested.support(public, None)
    law = difference_clipping._public_distributions(public.unsqueeze(0), [support])[0]
    others = [index for index in range(len(rows)) if index != row]
    every = tested._private_sums(rows, law, torch.arange(len(rows)), support)
    return every - tested._private_sums(rows, law, torch.tensor(others, dtype=torch.int64), support)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("entries", [1 << 17, 700])
def test_what_a_row_adds_does_not_depend_on_its_company(monkeypatch, dtype, entries):
    monkeypatch.setattr(clipping, "CACHED_ENTRIES", entries)
    draw = np.random.default_rng(1)
    rows = torch.from_numpy(np.stack([near_tie(draw, VOCABULARY) for _ in range(9)])).to(dtype)
    public = torch.from_numpy(draw.normal(0, 2, VOCABULARY))
    alone = [contribution(rows[row : row + 1], 0, public) for row in range(9)]
    for order in (np.arange(9), draw.permutation(9)[:5]):
        company = rows[torch.from_numpy(order)]
        for place, row in enumerate(order.tolist()):
            assert torch.equal(contribution(company, place, public), alone[row])


def test_what_is_drawn_together_is_what_is_added_alone(monkeypatch):
    draw = np.random.default_rng(2)
    logits = torch.from_numpy(np.stack([near_tie(draw, VOCABULARY) for _ in range(30)]))
    public = torch.from_numpy(draw.normal(0, 2, (5, VOCABULARY)))
    owner = torch.from_numpy(draw.integers(0, 4, 30))  # batch 4 is empty
    logits[7], logits[8, 5] = torch.nan, torch.inf
    seen = []

    def keep(sums, divisor):
        seen.append((sums.clone(), divisor))
        return np.zeros(len(sums), dtype=np.int64)

    monkeypatch.setattr(difference_clipping, "draw_tokens", keep)
    for entries in (1 << 18, 0):
        monkeypatch.setattr(difference_clipping, "_GATHERED_ENTRIES", entries)
        meter = PrivateTokenMeter(1, 5)
        mechanism(top_k=60).select(NextLogits(logits, owner, np.arange(5), public), meter)
    together, apart = seen[0][0], seen[1:]
    for row, (sums, divisor) in zip(together, apart, strict=True):
        assert torch.equal(row[: sums.shape[1]], sums[0])
        assert (row[sums.shape[1] :] == -torch.inf).all()
        assert divisor == 4 * Fraction(1.2)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 60))
def test_normalisers_near_a_boundary_are_decided_by_exact_arithmetic(seed, tokens):
    row = near_tie(np.random.default_rng(seed), tokens)
    unit, answers = LATTICE.normaliser_unit, []
    value, error = difference_lattice._precise_normaliser(row, 60)
    exact = math.floor(value / Fraction(unit) + Fraction(1, 2))
    assert error < Fraction(1, 10**50)
    for wrong in (-3e-14, 0.0, 3e-14):  # a float sum in another order
        computed = torch.tensor([float(value) + wrong], dtype=torch.float64)
        units = LATTICE.rounded_normalisers(computed, tokens, lambda _: row) / unit
        answers.append(int(units[0]))
    assert answers == [exact] * 3


def test_a_normaliser_far_from_a_boundary_is_read_off():
    def unread(_row):
        raise AssertionError("computed again")

    computed = torch.tensor([0.0, 1.25, float("nan")], dtype=torch.float64)
    rounded = LATTICE.rounded_normalisers(computed, 100, unread)
    assert rounded[:2].tolist() == [0.0, 1.25]


@pytest.mark.parametrize("row", [[3.0], [5.0, -math.inf], [2.0, 2.0], [0.0, -800.0]])
def test_rows_of_one_weight_end_without_a_tie(row):
    expected = round(math.log(sum(value == max(row) for value in row)) / 2.0**-26)
    assert difference_lattice._exact_units(np.array(row), 2.0**-26) == expected


@settings(max_examples=100, deadline=None)
@given(st.floats(1e-9, 100.0), st.integers(1, 4096))
def test_units_leave_room_for_sums_without_rounding(clip_bound, size):
    lattice = DifferenceLattice(clip_bound, size)
    assert 0 <= lattice.bound <= clip_bound
    assert clip_bound - lattice.bound < lattice.unit
    assert size * 1024.0 / lattice.unit + 2**27 * clip_bound / lattice.unit <= 2.0**53
    for width in (lattice.unit, lattice.normaliser_unit):
        assert math.frexp(width)[0] == 0.5
    law = torch.tensor([-1e9, -3.3, 0.0], dtype=torch.float64)
    units = lattice.public_units(law) / lattice.unit
    assert torch.equal(units, units.round())


def test_the_lattice_is_charged_where_logits_move_and_only_there():
    assert mechanism().eta == pytest.approx(2.0 / (4 * 1.2), rel=1e-15)
    moved, free = mechanism(logit_slack=1e-4), mechanism()
    ideal = 2 * 1e-4 * 4 / 1.2
    assert ideal < moved.eta - free.eta < 1.01 * ideal


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1e-6, 3e-5, 0.05]))
def test_a_row_that_moves_by_the_slack_moves_its_differences_by_no_more_than_is_charged(
    seed, slack
):
    draw = np.random.default_rng(seed)
    row, public = near_tie(draw, 40), torch.from_numpy(draw.normal(0, 2, 40))
    moved = row + slack * draw.choice([-1.0, 1.0], 40)
    sums = [contribution(torch.from_numpy(each[None]), 0, public) for each in (row, moved)]
    assert float(np.ptp(sums[1] - sums[0])) <= 2 * LATTICE.slack(slack)
