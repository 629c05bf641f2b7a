"""Laws of all mechanisms: settings outside their domain are refused, and none is copied."""

import copy
import pickle
from functools import partial
from math import inf, nan

import numpy as np
import pytest
import torch

from dpsynth_assets.privacy import renyi
from dpsynth_assets.privacy.accounting import epsilon_of, privacy_profile
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.calibration import dp_sgd_noise_multiplier, smallest_multiplier
from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism, public_support
from dpsynth_assets.privacy.directed_rounding import rounded_up
from dpsynth_assets.privacy.events import GaussianEvent, MixtureGaussianEvent, PoissonGaussianEvent
from dpsynth_assets.privacy.gaussian_dp import (
    compose_mu,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.histogram import GaussianVoting, NoisyHistogram
from dpsynth_assets.privacy.lattice import Lattice
from dpsynth_assets.privacy.ledger import SecretTerms
from dpsynth_assets.privacy.median import MedianTokenMechanism
from dpsynth_assets.privacy.noise import gaussian_like, secure_bernoulli
from dpsynth_assets.privacy.secret_clustering import SecretClustering
from dpsynth_assets.privacy.secret_noise import (
    SecretSampling,
    sampling_probabilities,
    secret_noise_std,
    secret_weights,
)
from dpsynth_assets.privacy.secret_protection import (
    gaussian_budget,
    gaussian_posterior,
    poisson_binomial,
    posterior_of_dp,
    posterior_of_events,
)
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest, draw_public_tokens
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism, PrivateTokenMeter
from dpsynth_assets.privacy.vector_mean import VectorMean
from dpsynth_assets_tests.privacy.batched import batched
from dpsynth_assets_tests.privacy.dp_sgd_cases import mechanism as dp_sgd

UNIT = {"relation": NeighboringRelation.ADD_REMOVE, "max_records_per_unit": 1}
GAUSSIAN = GaussianEvent(noise_multiplier=3.0)
SECRET = MixtureGaussianEvent(noise_std=1.0, shifts=(0.0, 1.0), probabilities=(0.9, 0.1))
TRAINING = PoissonGaussianEvent(sampling_probability=0.1, noise_multiplier=1.0, steps=10)
SIZE = {"expected_batch_size": 4}


def eta(clip_bound=9.0, temperature=1.5, **terms):
    return BatchTerms(**(SIZE | UNIT | terms)).eta(clip_bound, temperature)


def of(made, **bad):
    """Each bad value of each setting of a function, whose other settings are good."""
    return [(made, name, value) for name, values in bad.items() for value in values]


token_test = partial(batched, PublicTokenTest, noise_scale=0.2, threshold=0.5, **SIZE)
differences = partial(batched, DifferenceTokenMechanism, clip_bound=1.0, temperature=1.2, **SIZE)
means = partial(batched, MeanTokenMechanism, clip_bound=9.0, temperature=1.5, **SIZE)
median = partial(MedianTokenMechanism, clip_bound=6.0, temperature=1.5, **UNIT)
voting = partial(GaussianVoting, noise_std=8.0, iterations=3, votes_per_record=1, **UNIT)
vectors = partial(VectorMean, l2_bounds=[1], dimensions=8, noise_std=0.02, records=100, **UNIT)
EVERYBODY = SecretSampling.capped(probability=1.0, max_occurrences=2)
CLUSTERS = {"public_centres": np.eye(3), "public_counts": np.ones(3), "l2_bound": 1.0}
clustering = partial(SecretClustering, sampling=EVERYBODY, noise_std=1.0, **CLUSTERS)
NOISY = {"count_probabilities": np.array([0.0, 1.0]), "bounds": [(0.1, 0.2)], "steps": 1}
of_dp = partial(posterior_of_dp, delta=0.0, prior=0.1)

REFUSED = [
    *of(partial(privacy_profile, [GAUSSIAN], accountant="tight"), epsilons=[[-0.1], [inf], [nan]]),
    *of(partial(epsilon_of, [GAUSSIAN], accountant="zcdp"), delta=[0.0, 1.0, -1.0, nan]),
    *of(partial(epsilon_of, [GAUSSIAN], delta=1e-6), accountant=["moments"]),
    *of(eta, batches_per_pass=[0], load=[0.5, inf], clip_bound=[0.0], temperature=[inf]),
    *of(eta, expected_batch_size=[0], logit_slack=[-1.0], max_records_per_unit=[0]),
    *of(partial(dp_sgd_noise_multiplier, TRAINING, delta=1e-6), target_epsilon=[0.0]),
    *of(partial(smallest_multiplier, guess=1.0, target=1.0), cost=[lambda _: 2.0]),
    *of(partial(public_support, torch.zeros(3), margin=0.0), k=[0]),
    *of(partial(public_support, torch.zeros(3), k=1), margin=[-1.0, inf]),
    *of(differences, top_k=[0], clip_bound=[0.0]),
    *of(means, public_top_k=[0]),
    *of(token_test, noise_scale=[0.0, inf, nan], threshold=[-inf]),
    *of(median, logit_slack=[-1.0], max_records_per_unit=[0]),
    *of(partial(draw_public_tokens, torch.zeros(1, 3)), temperature=[0.0]),
    *of(partial(PrivateTokenMeter, batches=2), tokens_per_batch=[-1]),
    *of(partial(rounded_up, 1.0), form=["4d"]),
    *of(dp_sgd, l2_bound=[0.0, nan], expected_batch_size=[0.0], noise_multiplier=[0.0]),
    *of(dp_sgd, sampling_probability=[1.1], most_in_company=[-1], gradient_slack=[-1.0, inf]),
    *of(compose_mu, mus=[[nan]]),
    *of(partial(gaussian_delta, epsilon=1.0), mu=[-1.0]),
    *of(partial(gaussian_delta, 1.0), epsilon=[inf]),
    *of(partial(gaussian_mu, delta=1e-6), epsilon=[-1.0]),
    *of(partial(gaussian_epsilon, 1.0), delta=[0.0]),
    *of(partial(renyi.renyi_divergence, GAUSSIAN), order=[1.0, 0.5, nan]),
    *of(partial(renyi.renyi_divergence, order=2.0), event=[SECRET]),
    *of(partial(renyi.epsilon_at_order, 1.0, delta=1e-6), order=[1.0, 0.5, nan]),
    *of(partial(renyi.filter_order, delta=1e-6), epsilon=[0.0, -1.0, inf]),
    *of(partial(NoisyHistogram, noise="gaussian", **UNIT), scale=[0.5, inf]),
    *of(partial(NoisyHistogram, noise="laplace", **UNIT), scale=[0.0]),
    *of(partial(NoisyHistogram, scale=1.0, **UNIT), noise=["cauchy"]),
    *of(voting, noise_std=[0.5, inf], iterations=[0], votes_per_record=[0], relation=["some"]),
    *of(voting, max_records_per_unit=[0], released_before=[-1, 4]),
    *of(Lattice, spacing=[0.0, -0.5, 0.3, nan, inf, 5e-324]),
    *of(Lattice(2.0**-20).steps, l2_bound=[0.0, -1.0, nan, inf, 1e-9, 1e9]),
    *of(partial(Lattice(1.0).clip, l2_bound=5.0), private_vectors=[np.zeros(3)]),
    *of(vectors, l2_bounds=[[], [0.0], [inf], [nan]], noise_std=[0.0, 1e-12, 1e12]),
    *of(vectors, records=[0], relation=["some"], max_records_per_unit=[0]),
    *of(clustering, public_centres=[np.zeros(3), np.full((3, 2), nan)], relation=["some"]),
    *of(clustering, public_counts=[np.ones(2), np.array([1, 0, 1])], l2_bound=[0.0]),
    *of(clustering, noise_std=[0.0, 1e-9], centre_groups=[np.array([0, 1])]),
    *of(partial(secret_noise_std, **NOISY), bounds=[[], [(0.1, 0.1)]], noise_floor=[0]),
    *of(partial(secret_weights, [np.array([0])], records=2), capacities=[[], [0.0]]),
    *of(sampling_probabilities, weights=[np.zeros(3)]),
    *of(partial(SecretSampling.capped, probability=0.1), max_occurrences=[0]),
    *of(partial(SecretSampling.capped, max_occurrences=1), probability=[1.1]),
    *of(partial(gaussian_posterior, prior=0.1), mu=[-1.0]),
    *of(partial(gaussian_posterior, 1.0), prior=[0.0]),
    *of(partial(gaussian_budget, 0.1), posterior=[0.05]),
    *of(partial(of_dp, 1.0), adjacency=["neighbours"]),
    *of(partial(of_dp, adjacency="pairwise"), epsilon=[-1.0]),
    *of(partial(posterior_of_events, [GAUSSIAN], prior=0.1), prior=[1.0], occurrences=[0]),
    *of(poisson_binomial, probabilities=[[0.5, 1.5]]),
    *of(partial(SecretTerms, posterior=0.2), prior=[0.0, 0.3, nan]),
    *of(partial(SecretTerms, prior=0.1), posterior=[0.05, 1.0]),
    *of(partial(SecretTerms, prior=0.1, posterior=0.2), occurrences=[0, 1.5]),
    *of(partial(SecretTerms, prior=0.1, posterior=0.2), others=[((0.3, 0.2),)]),
    *of(secure_bernoulli, probabilities=[np.array([-0.1]), np.array([1.1]), np.array([[0.5]])]),
    *of(partial(gaussian_like, torch.zeros(1)), standard_deviation=[-1.0, nan, inf]),
]


@pytest.mark.parametrize(("made", "name", "value"), REFUSED)
def test_settings_outside_their_domain_are_refused(made, name, value):
    with pytest.raises(ValueError, match=r"Expected|is not a valid") as refusal:
        made(**{name: value})
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("made", [voting, vectors, clustering])
def test_a_mechanism_that_counts_its_releases_is_not_copied_to_release_more(made, duplicate):
    with pytest.raises(TypeError, match="copy"):
        duplicate(made())
