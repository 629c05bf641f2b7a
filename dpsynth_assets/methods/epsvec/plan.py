"""Prices EPSVec from declared facts: one histogram of whole counts, one joint noisy mean."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpsynth_assets.methods.base import CohortTerms, MethodPlan
from dpsynth_assets.methods.epsvec.config import EpsVecConfig
from dpsynth_assets.methods.epsvec.feasibility import refusal_of, sampling_probability_of
from dpsynth_assets.methods.plan_cache import remembered
from dpsynth_assets.privacy.accounting import epsilon_of, zcdp_epsilon, zcdp_rho
from dpsynth_assets.privacy.calibration import dp_sgd_noise_multiplier, integer_noise_std
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import (
    POST_PROCESSING,
    ComposedEvent,
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
)
from dpsynth_assets.privacy.gaussian_dp import gaussian_mu
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.histogram import histogram_event, l2_sensitivity
from dpsynth_assets.privacy.monotone_search import MIXED_TOLERANCE, least_noise
from dpsynth_assets.privacy.rests_on import STATES
from dpsynth_assets.privacy.share_calibration import training_noise_multiplier
from dpsynth_assets.privacy.units import NeighboringRelation
from dpsynth_assets.privacy.vector_mean import VectorMean, stacked_l2_sensitivity

SHOTS = "fixed_shots"
VECTORS = "dataset_vectors"

_BELOW = 1.0 - 1e-9
"""Keeps two parts of a budget from overspending by a rounding error."""

_UP = 1.0 + 2.0**-40
"""Covers the roundings between a multiplier and the noise it becomes."""


@dataclass(frozen=True, kw_only=True)
class VectorNoise:
    """How much noise the dataset vectors get, and what they cost.

    Attributes:
        noise_multiplier: σ over what one unit moves the stacked mean; under sampling over what one
            record moves it, as the event of a sampled release counts units itself.
        sampling_probability: q in (0, 1] with which each record is drawn.
        relation: Declared neighbouring relation.
        max_records_per_unit: Records one unit may contribute.

    **Privacy** A record's difference stands in the blocks of its own label, layer by layer, each
    clipped to the (public) bound that the block is measured in. So the stack over labels and
    layers moves by √L for a record that enters or leaves, whatever its label: labels are disjoint
    and share one price under every relation. A replaced record that also changes its label moves
    two labels by √L each, √(2L) together, within the 2√L that replacing within a label is
    charged (errata B-003.5). The divisor is public and never a count. With q < 1 every record
    tosses its own coin, so that the sampled release is one step of a Poisson-sampled Gaussian;
    the paper's subset of fixed size amplifies (ε, δ) under replace-one only (Theorem 4.2).

    **Source** EPSVec, Theorems 4.1 and 4.2; docs/privacy.md for the joint release.
    """

    noise_multiplier: float
    sampling_probability: float
    relation: NeighboringRelation
    max_records_per_unit: int

    def event(self) -> Event:
        """What the ledger is charged."""
        if self.sampling_probability == 1:
            return GaussianEvent(noise_multiplier=self.noise_multiplier)
        return PoissonGaussianEvent(
            sampling_probability=self.sampling_probability,
            noise_multiplier=self.noise_multiplier,
            steps=1,
            max_records_per_unit=self.max_records_per_unit,
            replaced=self.relation is NeighboringRelation.REPLACE_ONE,
        )

    def mean(self, *, layers: int, dimensions: int, records: int) -> VectorMean:
        """Opens the mechanism: blocks of bound 1, with at least the noise that is charged.

        Args:
            layers: L.
            dimensions: Entries of one block, Y d.
            records: Public number that sums are divided by.

        Raises:
            UnaccountedReleaseError: If the mechanism would add less noise than is charged.
        """
        mean = VectorMean(
            l2_bounds=(1.0,) * layers,
            dimensions=dimensions,
            noise_std=self.noise_std(layers=layers, records=records),
            records=records,
            relation=self.relation,
            max_records_per_unit=self.max_records_per_unit,
        )
        if mean.event().noise_multiplier < self._of_a_unit:
            raise UnaccountedReleaseError(
                "Expected at least the noise that was charged, got less. Plan again."
            )
        return mean

    def noise_std(self, *, layers: int, records: int) -> float:
        """Standard deviation of the noise on each entry of the mean, in clip bounds."""
        moved = stacked_l2_sensitivity(
            l2_bounds=(1.0,) * layers,
            records=records,
            relation=self.relation,
            max_records_per_unit=self.max_records_per_unit,
        )
        return self._of_a_unit * moved * _UP

    @property
    def _of_a_unit(self) -> float:
        """σ over what one unit moves the stack, sampling forgotten."""
        if self.sampling_probability == 1:
            return self.noise_multiplier
        return self.noise_multiplier / (self.relation.records_changed * self.max_records_per_unit)


def vector_noise(plan: MethodPlan, terms: CohortTerms) -> VectorNoise:
    """Reads the noise of the vectors off a plan.

    Raises:
        UnaccountedReleaseError: If the plan's event does not price it.
    """
    noise = VectorNoise(
        noise_multiplier=float(plan.parameters["vector_noise_multiplier"]),
        sampling_probability=float(plan.parameters["sampling_probability"]),
        relation=terms.relation,
        max_records_per_unit=terms.unit.max_records,
    )
    if noise.event() != plan.stages.get(VECTORS):
        raise UnaccountedReleaseError(
            "Expected the plan's event to price the vectors, got another. Plan again."
        )
    return noise


def plan_epsvec(config: EpsVecConfig, terms: CohortTerms, target_epsilon: float) -> MethodPlan:
    """Plans both releases with the least noise that fits `target_epsilon` together.

    Args:
        config: Settings; `shots_share` says how the two share it.
        terms: Declared facts; `terms.accountant` decides what the noise is calibrated to.
        target_epsilon: ε the method may cost alone at δ.

    **Source** EPSVec, Algorithm 2 and section 4.5, which adds ε by basic composition; μ² of two
    Gaussian releases adds up (errata B-003.2), but for what whole counts add to the histogram's.
    """
    parameters: dict[str, Any] = config.model_dump(mode="json")
    refusal = refusal_of(config, terms, target_epsilon)
    if refusal is not None:
        return MethodPlan.refused(GuaranteeType.DP, parameters, refusal)
    stages: dict[str, Event] = {}
    words = []
    room = _squared_mu(target_epsilon, terms) * _BELOW
    if config.noisy_shots:
        std = shots_noise_std(config, terms, target_epsilon, room)
        stages[SHOTS] = shots_event(std, terms)
        parameters["shots_noise_std"] = std
        words.append(f"discrete Gaussian of standard deviation {std:.3g} on each candidate's count")
    if config.use_vectors:
        noise = _planned_noise(config, terms, target_epsilon, room, stages.get(SHOTS))
        stages[VECTORS] = noise.event()
        parameters["vector_noise_multiplier"] = noise.noise_multiplier
        parameters["sampling_probability"] = noise.sampling_probability
        words.append(_words(noise))
    event = ComposedEvent(events=tuple(stages.values())) if stages else POST_PROCESSING
    return MethodPlan(
        guarantee=GuaranteeType.DP,
        event=event,
        stages=stages,
        parameters=parameters | {"noise": "; ".join(words)},
        epsilon=_epsilon(event, parameters, terms) if stages else 0.0,
        rows_estimate=config.rows,
        rests_on={VECTORS: {STATES: {"passes": "alone"}}} if VECTORS in stages else {},
    )


def _epsilon(event: Event, parameters: Mapping[str, Any], terms: CohortTerms) -> float:
    """ε of both releases, for people who plan; the ledger composes the event itself."""
    noise = ("shots_noise_std", "vector_noise_multiplier", "sampling_probability")
    key = {
        "epsilon": "epsvec",
        "noise": [parameters.get(name) for name in noise],
        "delta": terms.delta,
        "accountant": terms.accountant,
        "relation": str(terms.relation),
        "max_records_per_unit": terms.unit.max_records,
    }
    return float(remembered(key, lambda: epsilon_of([event], terms.delta, terms.accountant)))


def shots_event(noise_std: float, terms: CohortTerms) -> Event:
    """Prices the histogram of candidates: a record moves one bin, of its own label, by one."""
    return histogram_event(
        noise="gaussian",
        scale=noise_std,
        relation=terms.relation,
        max_records_per_unit=terms.unit.max_records,
    )


def shots_noise_std(
    config: EpsVecConfig, terms: CohortTerms, target_epsilon: float, room: float
) -> float:
    """Standard deviation of a count's noise (records), at least 1.

    Alone it takes the target; beside vectors its share of μ² = `room`, as continuous noise would.
    """
    if not config.use_vectors and terms.accountant == "tight":
        return integer_noise_std(
            lambda noise_std: [shots_event(noise_std, terms)],
            target_epsilon=target_epsilon,
            delta=terms.delta,
            accountant=terms.accountant,
        )
    share = config.shots_share if config.use_vectors else 1.0
    moved = l2_sensitivity(terms.relation, terms.unit.max_records)
    return max(1.0, moved / math.sqrt(room * share))


def _planned_noise(
    config: EpsVecConfig,
    terms: CohortTerms,
    target_epsilon: float,
    room: float,
    shots: Event | None,
) -> VectorNoise:
    """The least noise of the vectors beside the histogram."""
    left = room - (2.0 * float(shots.rho) if shots is not None else 0.0)
    chance = sampling_probability_of(config, terms)
    multiplier = 1.0 / math.sqrt(left)
    if chance == 1 and shots is not None and terms.accountant == "tight":
        multiplier = remembered(
            _cache_key(terms, chance, target_epsilon, left),
            lambda: _multiplier_beside(shots, multiplier, target_epsilon, terms.delta),
        )
    if chance < 1:
        multiplier = remembered(
            _cache_key(terms, chance, target_epsilon, left),
            lambda: _sampled_multiplier(terms, chance, target_epsilon, left, shots),
        )
    return VectorNoise(
        noise_multiplier=multiplier,
        sampling_probability=chance,
        relation=terms.relation,
        max_records_per_unit=terms.unit.max_records,
    )


def _multiplier_beside(
    shots: Event, continuous: float, target_epsilon: float, delta: float
) -> float:
    """The least multiplier beside integer noise: a little above the one beside continuous noise."""

    def fits(multiplier: float) -> bool:
        events = [shots, GaussianEvent(noise_multiplier=multiplier)]
        return epsilon_of(events, delta, "tight") <= target_epsilon

    return least_noise(fits, continuous, tolerance=MIXED_TOLERANCE)


def _sampled_multiplier(
    terms: CohortTerms, chance: float, target_epsilon: float, left: float, shots: Event | None
) -> float:
    replaced = terms.relation is NeighboringRelation.REPLACE_ONE
    if terms.accountant == "tight":
        return dp_sgd_noise_multiplier(
            sampling_probability=chance,
            steps=1,
            target_epsilon=target_epsilon,
            delta=terms.delta,
            other_events=() if shots is None else (shots,),
            max_records_per_unit=terms.unit.max_records,
            replaced=replaced,
        )
    return training_noise_multiplier(
        sampling_probability=chance,
        steps=1,
        target_epsilon=zcdp_epsilon(left / 2.0, terms.delta),
        budget_epsilon=terms.epsilon,
        delta=terms.delta,
        accountant=terms.accountant,
        max_records_per_unit=terms.unit.max_records,
        replaced=replaced,
    )


def _squared_mu(target_epsilon: float, terms: CohortTerms) -> float:
    """μ² of Gaussian releases that cost ε together: exact, or 2 ρ under the filter."""
    if terms.accountant == "tight":
        key = {"calibration": "mu", "target_epsilon": target_epsilon, "delta": terms.delta}
        return float(remembered(key, lambda: gaussian_mu(target_epsilon, terms.delta))) ** 2
    return 2.0 * zcdp_rho(target_epsilon, terms.delta)


def _cache_key(
    terms: CohortTerms, chance: float, target_epsilon: float, left: float
) -> dict[str, Any]:
    return {
        "calibration": "sampled vectors",
        "sampling_probability": chance,
        "target_epsilon": target_epsilon,
        "left": left,
        "budget_epsilon": terms.epsilon if terms.accountant == "zcdp" else None,
        "delta": terms.delta,
        "accountant": terms.accountant,
        "relation": str(terms.relation),
        "max_records_per_unit": terms.unit.max_records,
    }


def _words(noise: VectorNoise) -> str:
    sampled = (
        f", each record drawn with probability {noise.sampling_probability:.3g}"
        if noise.sampling_probability < 1
        else ""
    )
    return (
        f"discrete Gaussian of {noise.noise_multiplier:.4g} x what one unit moves, on the clipped "
        f"means of all layers together{sampled}"
    )
