import ast
import importlib
import inspect
import math
import os
import pkgutil

import numpy as np
import pytest
from scipy import stats

import dpsynth_assets.privacy
from dpsynth_assets.privacy.noise import (
    SecureUniform,
    discrete_gaussian,
    discrete_laplace,
    secure_categorical,
)

FALSE_ALARM = 1e-9
SEEDS = {"seed", "rng", "generator", "random_state"}


def privacy_modules():
    package = dpsynth_assets.privacy
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(module.name)


def test_no_privacy_function_takes_or_passes_a_seed():
    for module in privacy_modules():
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.arg | ast.keyword):
                assert node.arg not in SEEDS, f"{module.__name__}:{node.lineno}"


def test_no_privacy_module_uses_a_seeded_generator():
    for module in privacy_modules():
        source = inspect.getsource(module)
        for forbidden in (
            "np.random",
            "numpy.random",
            "import random",
            "manual_seed",
            "multinomial",
        ):
            assert forbidden not in source, module.__name__


def test_uniforms_are_uniform_and_strictly_inside():
    drawn = SecureUniform(block=7).random(50_000)
    assert drawn.min() > 0
    assert drawn.max() < 1
    assert stats.kstest(drawn, "uniform").pvalue > FALSE_ALARM


def test_small_requests_never_repeat_a_uniform():
    source = SecureUniform(block=5)
    drawn = np.concatenate([source.random(size) for size in (1, 3, 4, 9, 2, 0, 1)])
    assert len(set(drawn)) == 20


def test_forked_child_does_not_share_its_parents_uniforms():
    source = SecureUniform()
    source.random(1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, source.random(4).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = np.frombuffer(os.read(reader, 32))
    assert not set(theirs) & set(source.random(4))


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


@pytest.mark.statistical
def test_categorical_draws_follow_the_softmax():
    scores = np.array([0.0, 1.0, 2.0, -40.0])
    observed = np.bincount([secure_categorical(scores) for _ in range(20_000)], minlength=4)
    assert observed[3] == 0
    expected = np.exp(scores[:3]) / np.exp(scores[:3]).sum() * 20_000
    assert stats.chisquare(observed[:3], expected).pvalue > FALSE_ALARM


@pytest.mark.parametrize("scores", [[], [math.nan, 0.0], [math.inf]])
def test_categorical_refuses_scores_without_a_law(scores):
    with pytest.raises(ValueError, match="finite"):
        secure_categorical(np.array(scores))
