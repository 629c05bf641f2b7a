"""Laws of the noise source. Each statistical test raises a false alarm at most 1e-9 of the time."""

import ast
import importlib
import inspect
import math
import os
import pkgutil

import numpy as np
import pytest
import torch
from scipy import stats

import dpsynth_assets.privacy
from dpsynth_assets.privacy import noise
from dpsynth_assets.privacy.noise import (
    discrete_gaussian,
    discrete_laplace,
    gaussian_like,
    secure_bernoulli,
    secure_uniform,
)

FALSE_ALARM = 1e-9
SEEDS = {"seed", "rng", "generator", "random_state"}


def privacy_modules():
    package = dpsynth_assets.privacy
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(module.name)


def test_no_privacy_function_takes_or_passes_a_seed_or_uses_a_seeded_generator():
    for module in privacy_modules():
        source = inspect.getsource(module)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.arg | ast.keyword):
                assert node.arg not in SEEDS, f"{module.__name__}:{node.lineno}"
        for forbidden in (
            "np.random",
            "numpy.random",
            "import random",
            "manual_seed",
            "multinomial",
            "default_rng",
            "RandomState",
            "torch.rand",
        ):
            assert forbidden not in source, module.__name__


def test_uniforms_are_uniform_and_strictly_inside():
    drawn = secure_uniform(50_000)
    assert drawn.min() > 0
    assert drawn.max() < 1
    assert stats.kstest(drawn, "uniform").pvalue > FALSE_ALARM


@pytest.mark.parametrize("draw", [secure_uniform, noise.SecureWords()])
def test_forked_child_does_not_share_its_parents_entropy(draw):
    draw(1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, draw(4).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = np.frombuffer(os.read(reader, 32), dtype=draw(1).dtype)
    assert not set(theirs) & set(draw(4))


def chi_square(noise, log_weight):
    support = np.arange(-200, 201)
    weights = np.exp(log_weight(support))
    expected = weights / weights.sum() * len(noise)
    kept = expected >= 10
    observed = np.array([(noise == value).sum() for value in support[kept]])
    observed = np.append(observed, len(noise) - observed.sum())
    expected = np.append(expected[kept], len(noise) - expected[kept].sum())
    return stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("sampler", "log_weight"),
    [
        (discrete_laplace, lambda scale: lambda k: -np.abs(k) / scale),
        (discrete_gaussian, lambda scale: lambda k: -(k**2) / (2 * scale**2)),
    ],
    ids=["laplace", "gaussian"],
)
def test_integer_noise_has_its_stated_law(sampler, log_weight):
    noise = np.array(sampler([0] * 20_000, 3.0))
    assert chi_square(noise, log_weight(3.0)) > FALSE_ALARM
    # The same test sees noise of half the scale.
    halved = np.array(sampler([0] * 20_000, 1.5))
    assert chi_square(halved, log_weight(3.0)) < FALSE_ALARM


def test_words_are_whole_words_that_never_repeat():
    drawn = noise.secure_words(20_000)
    assert drawn.dtype == np.uint64
    assert len(set(drawn.tolist())) == 20_000
    ones = np.unpackbits(drawn.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 7 * 0.5 / math.sqrt(20_000 * 64)
    assert noise.secure_words(0).shape == (0,)
    few = noise.SecureWords(block=5)
    drawn = np.concatenate([few(count) for count in (1, 3, 9, 1, 4, 2, 0)])
    assert len(set(drawn.tolist())) == 20


@pytest.fixture(params=[1 << 16, 7], ids=["one block", "many blocks"])
def blocks(request, monkeypatch):
    monkeypatch.setattr(noise, "GAUSSIAN_BLOCK", request.param)
    monkeypatch.setattr(noise, "UNIFORM_BLOCK", request.param)


def test_coins_of_probability_zero_and_one_are_certain(blocks):
    heads = secure_bernoulli(np.tile([0.0, 1.0], 500))
    assert heads.dtype == np.bool_
    assert not heads[::2].any()
    assert heads[1::2].all()
    assert secure_bernoulli(np.empty(0)).shape == (0,)


@pytest.mark.statistical
def test_each_coin_has_its_own_probability(blocks):
    chances = np.repeat([0.01, 0.5, 0.9], 20_000)
    for part, heads in zip(
        chances[::20_000], secure_bernoulli(chances).reshape(3, -1), strict=True
    ):
        assert stats.binomtest(int(heads.sum()), 20_000, part).pvalue > FALSE_ALARM


@pytest.mark.parametrize(("nudge", "expected"), [(1 - 1e-12, True), (1 + 1e-12, False)])
def test_coins_compare_in_float64(monkeypatch, nudge, expected):
    chances = np.array([0.1, 1e-4, 0.999])
    monkeypatch.setattr(noise, "secure_uniform", lambda size: chances * nudge)
    assert (secure_bernoulli(chances) == expected).all()


@pytest.mark.statistical
def test_tensor_noise_is_gaussian_with_the_asked_deviation(blocks):
    drawn = gaussian_like(torch.empty(3, 6_667), 2.0).flatten().double().numpy()
    assert stats.kstest(drawn, "norm", args=(0, 2.0)).pvalue > FALSE_ALARM
    assert stats.kstest(drawn, "norm", args=(0, 1.8)).pvalue < FALSE_ALARM
    # Variance by chi-square: the whole law of noise that is a few per cent short.
    share = stats.chi2.cdf((drawn**2).sum() / 4.0, len(drawn))
    assert min(share, 1 - share) > FALSE_ALARM


@pytest.mark.statistical
def test_tensor_noise_is_independent_within_and_between_blocks(blocks):
    # Each entry against every entry at most a block's length away, sines and cosines included.
    rows = gaussian_like(torch.empty(4_000, 14, dtype=torch.float64), 1.0).numpy()
    correlations = np.corrcoef(rows.T)[np.triu_indices(14, 1)]
    limit = stats.norm.isf(FALSE_ALARM / 4 / len(correlations)) / math.sqrt(len(rows))
    assert np.abs(correlations).max() < limit
    squares = np.corrcoef(rows.T**2)[np.triu_indices(14, 1)]
    assert np.abs(squares).max() < 2 * limit


def test_long_requests_for_entropy_have_a_key_of_their_own_each(monkeypatch):
    keys, original = [], os.urandom
    monkeypatch.setattr(noise.os, "urandom", lambda size: keys.append(original(size)) or keys[-1])
    count = noise.EXPANDED_BYTES + 8
    first, second = noise._entropy(count), noise._entropy(count)
    assert [len(key) for key in keys] == [32, 32]
    assert len(first) == len(second) == count
    assert not np.array_equal(np.frombuffer(first, np.uint64), np.frombuffer(second, np.uint64))
    assert len(np.unique(np.frombuffer(first + second, np.uint64))) == 2 * count // 8


@pytest.mark.statistical
def test_bytes_of_a_long_request_are_uniform():
    drawn = np.frombuffer(noise._entropy(16 * noise.EXPANDED_BYTES), np.uint8)
    assert stats.chisquare(np.bincount(drawn, minlength=256)).pvalue > FALSE_ALARM
    bits = np.unpackbits(drawn).reshape(-1, 64)[:, ::7].astype(np.float64)
    apart = np.corrcoef(bits.T)[np.triu_indices(bits.shape[1], 1)]
    limit = stats.norm.isf(FALSE_ALARM / 4 / len(apart)) / math.sqrt(len(bits))
    assert np.abs(apart).max() < limit


def test_each_number_sums_four_normals_and_no_fewer(monkeypatch):
    # A sum that held both halves of one Box-Muller pair would be a single normal in disguise.
    uniforms = secure_uniform(8)
    monkeypatch.setattr(noise, "secure_uniform", lambda size: uniforms.copy())
    whole = gaussian_like(torch.empty(2, dtype=torch.float64), 1.0)
    radii, angles = np.sqrt(-2 * np.log(uniforms[:4])), 2 * math.pi * uniforms[4:]
    halves = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)
    np.testing.assert_allclose(whole.numpy(), np.sum(halves, axis=0) / 2, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (0,), (5, 3), (1,)])
def test_tensor_noise_takes_shape_and_type_of_its_reference(blocks, dtype, shape):
    drawn = gaussian_like(torch.zeros(shape, dtype=dtype), 1.0)
    assert drawn.shape == shape
    assert drawn.dtype == dtype
    assert torch.isfinite(drawn).all()


def test_tensor_noise_ignores_the_values_and_layout_of_its_reference():
    reference = torch.full((4, 6), math.nan).t()
    assert torch.isfinite(gaussian_like(reference, 1.0)).all()
    assert not gaussian_like(reference, 0.0).any()
    with pytest.raises(TypeError, match="floating-point"):
        gaussian_like(torch.zeros(1, dtype=torch.int64), 1.0)
