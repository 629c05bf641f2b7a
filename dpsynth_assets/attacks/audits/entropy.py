"""Audit of the noise source: no seed that a reader of the code knows may bring the noise back.

Every seedable generator of the process is seeded alike before each of two runs; noise that comes
from one of them repeats, and whoever repeats it can subtract it. Honest runs agree by chance with
probability below 2^-100.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from dpsynth_assets.attacks.audits import token_choices
from dpsynth_assets.attacks.audits.audit import (
    ADD_REMOVE,
    Audit,
    AuditKind,
    Bug,
    Finding,
)
from dpsynth_assets.attacks.audits.gradients import one_step, private_gradient
from dpsynth_assets.attacks.audits.sums import release_vector_mean
from dpsynth_assets.attacks.audits.token_draws import MEAN
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.histogram import NoiseKind, NoisyHistogram
from dpsynth_assets.privacy.poisson_sampling import poisson_sample
from dpsynth_assets.privacy.secret_clustering import SecretClustering
from dpsynth_assets.privacy.secret_noise import SecretSampling
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest
from dpsynth_assets.privacy.token_selection import PrivateTokenMeter

SEED = 42
SIZE = 128

Draw = Callable[[], np.ndarray]


@contextmanager
def seeded_everywhere(seed: int = SEED) -> Iterator[None]:
    """Seeds Python's, NumPy's and PyTorch's generators; puts their old states back afterwards."""
    import torch

    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng():
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


def _histogram(noise: NoiseKind) -> np.ndarray:
    return NoisyHistogram(noise=noise, scale=10.0, relation=ADD_REMOVE).release([0] * SIZE).value


def _tokens() -> np.ndarray:
    import torch

    nobody = torch.empty(0, 1000), torch.empty(0, dtype=torch.int64)
    meter = PrivateTokenMeter(1, SIZE)
    return MEAN.select(*nobody, np.arange(SIZE), meter)


def _answers() -> np.ndarray:
    """Empty batches at distance 1 of the threshold's 1: each answer is a fair coin."""
    import torch

    batch = BatchTerms(expected_batch_size=1, relation=ADD_REMOVE)
    test = PublicTokenTest(batch=batch, noise_scale=1.0, threshold=1.0)
    opened = test.open(PrivateTokenMeter(1, SIZE))
    nobody = torch.empty(0, dtype=torch.int64)
    public = torch.zeros(SIZE, 2)
    return opened.needs_private_token(public[:0], public, nobody, np.arange(SIZE))


def _vector() -> np.ndarray:
    zeros, settings = np.zeros((1, 1, SIZE)), {"l2_bounds": [1.0], "noise_std": 1.0}
    return release_vector_mean(zeros, records=1, relation=ADD_REMOVE, **settings).value


def _gradient() -> np.ndarray:
    import torch

    mechanism = one_step()
    (batch,) = mechanism.batches(1)
    return private_gradient(mechanism, [torch.zeros(len(batch), SIZE)])[0].numpy()


def _clusters() -> np.ndarray:
    clustering = SecretClustering(
        public_centres=np.eye(SIZE),
        public_counts=np.ones(SIZE),
        l2_bound=1.0,
        sampling=SecretSampling.capped(probability=0.5, max_occurrences=1),
        noise_std=1.0,
        iterations=1,
    )
    return clustering.release(np.zeros((0, SIZE))).value.counts


REAL: Mapping[str, Draw] = {
    "histogram, laplace": lambda: _histogram("laplace"),
    "histogram, gaussian": lambda: _histogram("gaussian"),
    "softmax_draws, tokens": _tokens,
    "sparse_vector": _answers,
    "vector_mean": _vector,
    "dp_sgd": _gradient,
    "poisson_sampling": lambda: np.isin(np.arange(SIZE), poisson_sample(SIZE, 0.5)),
    "secret_clustering": _clusters,
    "noisy_probabilities": lambda: token_choices.tokens(token_choices.mechanism(50.0, SIZE), 1),
}
"""A release of every module of the kernel that draws noise, by the module's name."""


def _global_noise() -> np.ndarray:
    import torch

    return torch.randn(SIZE).numpy()


PLANTED: Mapping[str, Draw] = {
    "own generator": lambda: np.random.default_rng(SEED).normal(size=SIZE),
    "global generator": _global_noise,
}
"""Noise from a published constant: 42 seeds a generator of its own, or PyTorch's."""


def _repeats(draws: Mapping[str, Draw]) -> Finding:
    """Counts the releases whose noise two equally seeded runs share."""
    repeated = []
    for name, draw in draws.items():
        runs = []
        for _ in range(2):
            with seeded_everywhere():
                runs.append(draw())
        if np.array_equal(runs[0], runs[1]):
            repeated.append(name)
    return Finding(claimed=0.0, observed=float(len(repeated)), note=", ".join(repeated))


AUDITS = (
    Audit(
        name="unseeded-noise",
        mechanism="noise source of every mechanism",
        claim="Runs that start from equal seeds release different noise.",
        measure="releases whose noise repeats",
        kind=AuditKind.STATISTICAL,
        observe=lambda: _repeats(REAL),
        planted={Bug.PUBLIC_SEED: lambda: _repeats(PLANTED)},
    ),
)
