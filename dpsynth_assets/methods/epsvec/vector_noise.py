"""Mechanism of the dataset vectors: one joint noisy mean over labels and layers, and its price."""

from dataclasses import dataclass

from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import Event, GaussianEvent, PoissonGaussianEvent
from dpsynth_assets.privacy.units import NeighboringRelation
from dpsynth_assets.privacy.vector_mean import VectorMean, stacked_l2_sensitivity

_UP = 1.0 + 2.0**-40
"""Covers the roundings between a multiplier and the noise it becomes."""


@dataclass(frozen=True, kw_only=True)
class VectorNoise:
    """Noise of the dataset vectors, and its price.

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
        """Prices the release."""
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
