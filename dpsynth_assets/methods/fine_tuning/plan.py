"""Plans a private training from declared facts: how much noise its share of the budget requires."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.fine_tuning.config import PrivateTrainingConfig
from dpsynth_assets.methods.plan_cache import sampled_noise
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.per_example import GRADIENT_SLACK, most_in_company


def noise_parameters(mechanism: DpSgdMechanism) -> Mapping[str, Any]:
    """What the ledger says of a training beside its settings."""
    return {
        "sampling_probability": mechanism.sampling_probability,
        "noise_multiplier": mechanism.noise_multiplier,
        "noise": (
            f"Gaussian of {mechanism.noise_multiplier:.4g} x the clipping bound on each of "
            f"{mechanism.steps} summed gradients, each record drawn with probability "
            f"{mechanism.sampling_probability:.3g}"
        ),
    }


def passes_of(mechanism: DpSgdMechanism) -> Mapping[str, Any]:
    """What the bound on one record's gradient rests on, for the label."""
    if mechanism.most_in_company == 0:
        return {"passes": "alone"}
    return {
        "passes": "shared",
        "gradient_slack": mechanism.slack,
        "most_in_company": mechanism.most_in_company,
    }


@dataclass(frozen=True)
class DeclaredTraining:
    """A training as the dataset file declares it, from which its noise is calibrated.

    Attributes:
        config: Settings of the training.
        terms: Declared facts; `terms.accountant` decides what the noise is calibrated to.
    """

    config: PrivateTrainingConfig
    terms: CohortTerms

    @property
    def sampling_probability(self) -> float | None:
        """q: the given one, or B / declared records, at most 1; None if nothing public gives it.

        **Privacy** Under add/remove the number of records is private: a q computed from it would be
        another mechanism for each neighbour (errata B-002.4). Any public q is sound for any
        records: a step then draws q n of them, a number that is never shown.
        """
        if self.config.sampling_probability is not None:
            return self.config.sampling_probability
        if self.terms.public_records is None:
            return None
        return min(1.0, self.config.expected_batch_size / self.terms.public_records)

    @property
    def batch_denominator(self) -> float:
        """Divisor of noisy sums: B, or all declared records where B would be more."""
        if self.config.sampling_probability is None and self.terms.public_records is not None:
            return float(min(self.config.expected_batch_size, self.terms.public_records))
        return float(self.config.expected_batch_size)

    @property
    def records_in_company(self) -> int:
        """M: the records of a batch up to which several share a pass; 0 where each is alone."""
        if self.config.exact_sums:
            return 0
        chance, known = self.sampling_probability, self.terms.public_records
        drawn = None if chance is None or known is None else chance * known
        most = self.config.expected_batch_size if drawn is None else drawn
        return most_in_company(most, self._slack)

    @property
    def slack_of_shared_passes(self) -> float | None:
        """Share of C that is charged for records sharing a pass; None where each is alone."""
        return None if self.records_in_company == 0 else self._slack

    @property
    def _slack(self) -> float:
        declared = self.config.gradient_slack
        return GRADIENT_SLACK if declared is None else declared

    @property
    def takes_slack_of_float32(self) -> bool:
        """Whether several records share a pass and it is not declared what that may change."""
        return self.config.gradient_slack is None and self.records_in_company > 0

    def planned(self, target_epsilon: float) -> DpSgdMechanism:
        """Finds the least noise at which all steps cost at most `target_epsilon` at δ.

        Calibration takes seconds and is remembered in `DPSYNTH_HOME`; regardless of that value, the
        ledger composes the event itself before it admits a release.

        Raises:
            ValueError: A public fact is missing, or settings that need each other disagree.
        """
        chance = self.sampling_probability
        if chance is None:
            raise ValueError(
                "Expected a declared number of records, from which the probability of drawing a "
                "record is computed, got none. Declare public_facts.records if the number is "
                "public, or give sampling_probability, a constant that does not come from the "
                "records."
            )
        if self.config.trains_in_integers and not self.config.exact_sums:
            raise ValueError(
                "Expected exact_sums: true with frozen_products: int8, got false: with rounding to "
                "int8, one record could change the gradients of the others in its pass. Set "
                "exact_sums: true, or frozen_products: float32."
            )
        noise_multiplier = sampled_noise(
            self.terms,
            sampling_probability=chance,
            steps=self.config.steps,
            target_epsilon=target_epsilon,
        )
        return DpSgdMechanism(
            l2_bound=self.config.clip_bound,
            noise_multiplier=noise_multiplier,
            sampling_probability=chance,
            steps=self.config.steps,
            expected_batch_size=self.batch_denominator,
            relation=self.terms.relation,
            max_records_per_unit=self.terms.unit.max_records,
            most_in_company=self.records_in_company,
            gradient_slack=self.config.gradient_slack,
        )
