"""Prices SecPE from declared facts: the noise that keeps every kind of secret at its (p, r)."""

import math
from dataclasses import dataclass
from typing import Any

from dpsynth_assets.datasets.secrets import incidence_digest
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.evolution.secret_clusters import (
    ClusterReleases,
    capped_sampling,
    largest_probability,
    promise_of,
)
from dpsynth_assets.methods.evolution.secret_config import SecPeConfig
from dpsynth_assets.methods.evolution.secret_incidence import (
    read_public_incidence,
    solved_sampling,
)
from dpsynth_assets.methods.plan_cache import remembered
from dpsynth_assets.privacy.blow_up import ROUND_UP
from dpsynth_assets.privacy.calibration import training_noise_multiplier
from dpsynth_assets.privacy.secret_noise import SecretPromise, joint_factor, shared_noise_std
from dpsynth_assets.privacy.secret_protection import gaussian_budget, gaussian_posterior
from dpsynth_assets.privacy.units import NeighboringRelation


@dataclass(frozen=True, kw_only=True)
class SecretCalibration:
    """Finds the least noise that every kind's (p, r) allows, and records' ε where it is asked for.

    **Privacy** Noise, sampling and event follow from declared numbers alone: the records' secrets
    are private, and a rate computed from them would be another mechanism for each neighbour
    (errata B-004.7).

    **Source** SecPE, Algorithm 1, with the exact mixture and one noise for counts and centres
    together (errata B-004.1, .6).
    """

    config: SecPeConfig
    terms: CohortTerms

    @property
    def share(self) -> float:
        """Share of the secrets' bound that is used: the cohort's division, else the declared."""
        if self.terms.secret_share is not None:
            return self.terms.secret_share
        return 1.0 if self.config.secret_share is None else self.config.secret_share

    def mechanism(self, target_epsilon: float) -> ClusterReleases:
        """Finds the law of sampled records and the noise; both are kept between processes.

        Args:
            target_epsilon: ε that the releases may cost where records are protected too.

        Raises:
            IncidenceError: If the declared public incidence cannot be used.
        """
        found = remembered(self._cache_key(), self._calibrated)
        noise_std = float(found["noise_std"])
        if self.config.record_level:
            noise_std = max(noise_std, self._noise_for_records(target_epsilon))
        return ClusterReleases(
            config=self.config,
            terms=self.terms,
            noise_std=noise_std,
            count_probabilities=tuple(found["count_probabilities"]),
        )

    def _cache_key(self) -> dict[str, Any]:
        promise = promise_of(self.terms)
        return {
            "calibration": "secrets",
            "bounds": shared_bounds(promise, self.share),
            "kinds": [vars(budget) for budget in promise.budgets],
            "relation": str(promise.relation),
            "incidence": incidence_digest(promise),
            "sampling_probability": self.config.sampling_probability,
            "releases": self.config.releases,
            "noise_floor": self.config.noise_floor,
        }

    def _calibrated(self) -> dict[str, Any]:
        promise = promise_of(self.terms)
        sampling = (
            solved_sampling(read_public_incidence(promise), promise)
            if promise.public_incidence
            else capped_sampling(self.config, promise)
        )
        noise_std = shared_noise_std(
            count_probabilities=sampling.count_probabilities,
            bounds=shared_bounds(promise, self.share),
            steps=self.config.releases,
            relation=promise.relation,
            noise_floor=self.config.noise_floor,
        )
        return {
            "noise_std": noise_std,
            "count_probabilities": sampling.count_probabilities.tolist(),
        }

    def _noise_for_records(self, target_epsilon: float) -> float:
        """Finds σ at which the releases cost at most `target_epsilon` as DP releases."""
        terms = self.terms
        settings: dict[str, Any] = {
            "sampling_probability": largest_probability(self.config, promise_of(terms)),
            "steps": self.config.releases,
            "target_epsilon": target_epsilon,
            "budget_epsilon": terms.epsilon,
            "delta": terms.delta,
            "accountant": terms.accountant,
            "max_records_per_unit": terms.unit.max_records,
            "replaced": terms.relation is NeighboringRelation.REPLACE_ONE,
        }
        multiplier = remembered(
            {"calibration": "records beside secrets", **settings},
            lambda: training_noise_multiplier(**settings),
        )
        return float(multiplier) * joint_factor(NeighboringRelation.ADD_REMOVE) * ROUND_UP


def shared_bounds(promise: SecretPromise, share: float) -> list[tuple[float, float]]:
    """Computes (p, r) of each kind where a share of its squared μ may be used.

    **Privacy** A planning aid: the ledger composes the pairs of all releases and compares what
    comes out with the declared (p, r) itself.
    """
    return [
        (prior, gaussian_posterior(math.sqrt(share) * gaussian_budget(prior, posterior), prior))
        if share < 1
        else (prior, posterior)
        for prior, posterior in promise.bounds
    ]
