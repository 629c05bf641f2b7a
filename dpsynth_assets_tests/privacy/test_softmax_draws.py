"""Tokens have exactly the probabilities of the softmax, whatever scores, divisor and entropy.

The cells of the uniform that lead to each token are compared with ones computed in 160 digits.
"""

import itertools
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from scipy import stats

from dpsynth_assets.privacy import clipping, softmax_draws
from dpsynth_assets.privacy.softmax_draws import draw_tokens, tokens_from_words

PRECISE = Context(prec=160)
BITS = 512
FALSE_ALARM = 1e-9


def cells(scores, divisor):
    """(A + 1) edges of the tokens' cells of U in [0, 1), as Decimals."""
    top = max(scores)
    known = {}
    for score in set(scores):
        exponent = (Fraction(score) - Fraction(top)) / Fraction(divisor)
        quotient = PRECISE.divide(Decimal(exponent.numerator), Decimal(exponent.denominator))
        known[score] = PRECISE.exp(quotient)
    reached = list(itertools.accumulate((known[score] for score in scores), PRECISE.add))
    return [Decimal(0)] + [PRECISE.divide(each, reached[-1]) for each in reached]


def feed(uniform):
    """Words of entropy that make the uniform: its leading 64 bits, then as many as are asked."""
    whole = int(uniform * 2**BITS)
    parts = iter(whole >> shift & 2**64 - 1 for shift in range(BITS - 64, -1, -64))

    def words(count):
        return np.array([next(parts) for _ in range(count)], dtype=np.uint64)

    return words


def token_at(scores, divisor, uniform):
    row = torch.tensor([scores], dtype=torch.float64)
    return int(tokens_from_words(row, divisor, feed(uniform))[0])


def assert_cell(scores, divisor, edges, token):
    """The token is drawn up to 1e-9 of a cell from either end of its own, and not beyond."""
    low, high = map(Fraction, edges[token : token + 2])
    about = map(Fraction, edges[max(0, token - 1) : token + 3])
    near = min(after - before for before, after in itertools.pairwise(about)) / 10**9
    for uniform in (low + near, (low + high) / 2, high - near):
        assert token_at(scores, divisor, uniform) == token
    if token:
        assert token_at(scores, divisor, low - near) < token
    if token + 1 < len(scores):
        assert token_at(scores, divisor, high + near) > token


@pytest.mark.parametrize(("clip_bound", "temperature", "size"), [(10.0, 1.0, 64), (9.0, 0.5, 8)])
def test_a_rare_token_of_a_large_vocabulary_has_its_probability(clip_bound, temperature, size):
    # Sums of batches of s rows, most tokens at the floor: probabilities down to 4e-18, which one
    # uniform of 53 bits cannot give to any token.
    vocabulary = 64_000
    sums = np.full(vocabulary, -clip_bound * size)
    sums[:1000] = np.linspace(0, clip_bound * size, 1000)
    scores, divisor = sums.tolist(), size * Fraction(temperature)
    edges = cells(scores, divisor)
    for token in (3, 999, vocabulary - 5):
        assert_cell(scores, divisor, edges, token)
    if temperature == 0.5:
        assert 0 < edges[vocabulary - 4] - edges[vocabulary - 5] < Decimal("5e-18")


def test_every_token_has_its_cell_however_rare():
    scores = [0.0, -40.0, -3.0, -200.0, -800.0, -1500.0, -1.0]
    edges = cells(scores, 1)
    for token in (0, 1):
        assert_cell(scores, 1, edges, token)
    low, high = map(Fraction, edges[3:5])
    assert high - low < Fraction(1, 10**86)
    for share, token in ((-0.01, 2), (0.01, 3), (0.99, 3), (1.01, 6)):
        assert token_at(scores, 1, low + Fraction(share) * (high - low)) == token


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.integers(-(2**30), 2**30).map(lambda steps: steps * 2.0**-24), min_size=2, max_size=9
    ),
    st.fractions("0.01", "50"),
    st.data(),
)
def test_cells_of_lattice_scores_are_those_of_the_softmax(scores, divisor, data):
    edges = cells(scores, divisor)
    token = data.draw(st.integers(0, len(scores) - 1))
    if min(after - before for before, after in itertools.pairwise(edges)) > Decimal("1e-100"):
        assert_cell(scores, divisor, edges, token)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(-40, 40), st.sampled_from([0.01, 1.0, 8.0]))
@example(4980, 40, 1.0)  # The upper edge of the last cell: a word of ones.
def test_where_float64_decides_it_decides_as_integers_do(seed, nudge, spread):
    # Uniforms within some float64 units of an edge, where a careless margin would show.
    draw = np.random.default_rng(seed)
    scores = draw.normal(0, spread, 300)
    reached = np.cumsum(np.exp(scores - scores.max()))
    place = int(draw.integers(300))
    word = int(reached[place] / reached[-1] * 2**64) + nudge * 2 ** int(draw.integers(5, 30))
    word = min(max(word, 0), 2**64 - 1)

    def later(count):
        # Other bits than `word`: a uniform of ones alone is 1, to which no token belongs, and the
        # search for it would never end.
        return np.full(count, 2**63, dtype=np.uint64)

    first = iter([np.array([word], dtype=np.uint64)])
    row = torch.from_numpy(scores).unsqueeze(0)
    exact = softmax_draws._exact_token(scores, Fraction(1), word, later)
    assert tokens_from_words(row, 1, lambda count: next(first, later(count)))[0] == exact


@pytest.mark.statistical
@pytest.mark.parametrize("in_integers", [False, True])
def test_draws_follow_the_softmax(monkeypatch, in_integers):
    scores = np.array([0.0, 1.0, -2.0, 3.0, -4.0, -300.0])
    draws = 2_000 if in_integers else 40_000

    def unsure(rows, *_):
        return np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=bool)

    if in_integers:
        monkeypatch.setattr(softmax_draws, "_float_tokens", unsure)
    drawn = draw_tokens(torch.from_numpy(scores).repeat(draws, 1), Fraction(3, 2))
    observed = np.bincount(drawn, minlength=6)
    expected = np.exp(scores / 1.5) / np.exp(scores / 1.5).sum() * draws
    assert observed[5] == 0
    assert stats.chisquare(observed[:5], expected[:5]).pvalue > FALSE_ALARM


def test_the_draw_is_as_good_at_the_ends_of_the_uniform():
    scores = [0.0, -1.0, -float("inf")]
    row = torch.tensor([scores], dtype=torch.float64)
    for word, token in ((0, 0), (2**64 - 1, 1)):
        later = iter([[word], [0], [0]])
        assert tokens_from_words(row, 1, lambda _, words=later: np.uint64(next(words)))[0] == token


def test_tokens_without_weight_are_never_drawn():
    rows = torch.full((500, 6), -torch.inf, dtype=torch.float64)
    rows[:, 1], rows[:, 4] = 0.0, -0.5
    assert set(draw_tokens(rows).tolist()) == {1, 4}


def test_rows_are_drawn_from_their_own_law_in_blocks(monkeypatch):
    monkeypatch.setattr(clipping, "CACHED_ENTRIES", 20)
    rows = torch.full((37, 8), -50.0, dtype=torch.float64)
    best = torch.arange(37) % 8
    rows[torch.arange(37), best] = 50.0
    before = rows.clone()
    assert draw_tokens(rows).tolist() == best.tolist()
    assert torch.equal(rows, before)
    assert draw_tokens(rows[:0]).shape == (0,)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_without_a_law_are_refused_without_showing_them(bad):
    row = torch.tensor([[4177.0, bad, 1.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match="Expected scores below") as refusal:
        draw_tokens(row)
    assert "4177" not in str(refusal.value)
    with pytest.raises(ValueError, match="finite"):
        draw_tokens(torch.full((1, 3), -torch.inf, dtype=torch.float64))
