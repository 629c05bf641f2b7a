"""Failures of published code around a release: settings read off private records, and seeds.

Noise from seeds and noise drawn anew at each start are bugs that audits notice.
"""

import ast
import inspect
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from dpsynth_assets import privacy
from dpsynth_assets.attacks.audits.gradients import private_gradient
from dpsynth_assets.attacks.audits.ledger_rules import REAL, seeded_everywhere
from dpsynth_assets.attacks.audits.sums import release_vector_mean
from dpsynth_assets.privacy.events import GaussianEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.histogram import GaussianVoting, NoisyHistogram
from dpsynth_assets_tests.privacy.dp_sgd_cases import mechanism

ADD_REMOVE = NeighboringRelation.ADD_REMOVE
KERNEL = Path(inspect.getfile(privacy)).parent


def test_every_module_that_draws_noise_is_seeded_in_the_audit():
    drawing = {
        path.stem
        for path in sorted(KERNEL.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "dpsynth_assets.privacy.noise"
    }
    assert drawing == {name.split(",")[0] for name in REAL}


def test_seeding_for_an_audit_leaves_the_process_as_it_was():
    with seeded_everywhere():
        expected = np.random.random(), float(torch.rand(1))  # noqa: NPY002
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    with seeded_everywhere():
        assert (np.random.random(), float(torch.rand(1))) == expected  # noqa: NPY002
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


# Settings read off private records (InvisibleInk: lengths, clip bound and number of texts).


dp_sgd = partial(mechanism, sampling_probability=0.5, steps=1)


def gradients_of(mechanism, records=10):
    for batch in mechanism.batches(records):
        private_gradient(mechanism, [torch.zeros(len(batch), 2)])


def histogram_cost(records):
    return (
        NoisyHistogram(noise="laplace", scale=2.0, relation=ADD_REMOVE).release([records, 0]).cost
    )


def vector_cost(records):
    vectors = np.full((records, 1, 2), 1e6)
    return release_vector_mean(
        vectors, l2_bounds=[1.0], noise_std=1.0, records=4, relation=ADD_REMOVE
    ).cost


def vote_cost(records):
    voting = GaussianVoting(noise_std=2.0, iterations=1, votes_per_record=1, relation=ADD_REMOVE)
    return voting.release(np.array([records, 0])).cost


@pytest.mark.parametrize("cost", [histogram_cost, vector_cost, vote_cost])
def test_no_cost_depends_on_how_many_records_there_are(cost):
    assert cost(0) == cost(1) == cost(500)


def test_a_training_run_costs_what_it_was_declared_to_whatever_came():
    small, large = dp_sgd(), dp_sgd()
    gradients_of(small, records=0)
    gradients_of(large, records=1000)
    assert small.event() == large.event()


def test_a_denominator_of_private_records_is_no_setting():
    # The released mean of nothing is noise around zero over the declared n, not a division by 0.
    released = release_vector_mean(
        np.zeros((0, 1, 50)), l2_bounds=[1.0], noise_std=0.5, records=4, relation=ADD_REMOVE
    )
    assert np.isfinite(released.value).all()
    assert released.cost.event == GaussianEvent(
        noise_multiplier=vector_cost(4).event.noise_multiplier / 2
    )
