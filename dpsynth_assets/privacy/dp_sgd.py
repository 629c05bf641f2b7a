"""DP-SGD: true Poisson batches, per-example clipping, noise from operating-system entropy.

Shape letters: n private records, B records of one batch, T steps.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.privacy.errors import UndeclaredPublicFactError
from dpsynth_assets.privacy.events import PoissonGaussianEvent, TruncatedPoissonGaussianEvent
from dpsynth_assets.privacy.gradient_clipping import add_clipped
from dpsynth_assets.privacy.noise import gaussian_like
from dpsynth_assets.privacy.poisson_sampling import StepMeter, poisson_sample
from dpsynth_assets.privacy.units import NeighboringRelation

if TYPE_CHECKING:
    import torch


def dp_sgd_event(
    *,
    sampling_probability: float,
    noise_multiplier: float,
    steps: int,
    relation: NeighboringRelation,
    max_records_per_unit: int = 1,
    max_batch_size: int | None = None,
    records: int | None = None,
) -> PoissonGaussianEvent | TruncatedPoissonGaussianEvent:
    """Prices T noisy gradients, each of a fresh Poisson sample of the records.

    Args:
        sampling_probability: q in (0, 1] of every record in every step.
        noise_multiplier: σ / clip bound of one record, whatever the relation.
        steps: T >= 0, all of them, also those a run may not reach.
        relation: Declared neighbouring relation.
        max_records_per_unit: Records one unit may contribute; each is sampled on its own.
        max_batch_size: Cut larger samples to a random subset of this size; None never cuts.
        records: n with the unit's record, which cut samples depend on; it must be declared
            public.

    Raises:
        UndeclaredPublicFactError: If samples are cut and `records` is not given.
        ValueError: If an argument is outside its domain, or samples are cut under replace-one or
            for units of several records, for which no accounting is known.

    **Privacy** Each gradient is a subsampled Gaussian; the sampling differs between neighbours
    by the unit's records alone, because every record tosses its own coin and sums are divided by
    a fixed number. Shuffled epochs have no such event: they must not be priced here.

    **Source** CTCL, section 4.1 and appendix A; its code trains on shuffled epochs but accounts
    for Poisson samples (errata B-002.1).
    """
    relation = NeighboringRelation(relation)
    replaced = relation is NeighboringRelation.REPLACE_ONE
    if max_batch_size is None:
        return PoissonGaussianEvent(
            sampling_probability=sampling_probability,
            noise_multiplier=noise_multiplier,
            steps=steps,
            max_records_per_unit=max_records_per_unit,
            replaced=replaced,
        )
    if records is None:
        raise UndeclaredPublicFactError(
            "Expected the number of records to be declared public where max_batch_size cuts "
            "samples, got none. Declare it public, or drop max_batch_size."
        )
    if replaced or max_records_per_unit != 1:
        raise ValueError(
            "Expected add-remove or zero-out of single records where max_batch_size cuts samples, "
            f"got {relation} of {max_records_per_unit}. Drop max_batch_size."
        )
    return TruncatedPoissonGaussianEvent(
        records=records,
        sampling_probability=sampling_probability,
        max_batch_size=max_batch_size,
        noise_multiplier=noise_multiplier,
        steps=steps,
    )


@dataclass(frozen=True, kw_only=True)
class DpSgdMechanism:
    """One training run: T Poisson batches, and one noisy clipped gradient of each.

    Attributes:
        l2_bound: C > 0, bound on the L2 norm of one record's gradient over all parameters.
        noise_multiplier: σ / C, whatever the relation.
        sampling_probability: q in (0, 1].
        steps: T.
        expected_batch_size: What every sum is divided by: a public constant such as
            q · (public number of records), never the size of the batch.
        relation: Declared neighbouring relation.
        max_records_per_unit: Records one unit may contribute.
        max_batch_size: Cut larger samples to a random subset; needs `records`.
        records: Number of records, declared public; only cut samples use it.

    **Privacy** The clipped sum moves by at most C for each record that enters or leaves
    (`add_clipped`). The cost is `event()`, charged for all T steps before the first batch is
    drawn; a run that stops early has paid for all of them. What optimizers make of the gradients
    is post-processing. Sums and noise meet in float64: unlike integer noise this is Gaussian up
    to rounding, see `gaussian_like`.

    **Source** CTCL, section 3.3 and appendix A (DP-Adam), with Poisson batches as its accounting
    assumes but its code does not draw (errata B-002.1), and without a seed (B-002.2).
    """

    l2_bound: float
    noise_multiplier: float
    sampling_probability: float
    steps: int
    expected_batch_size: float
    relation: NeighboringRelation
    max_records_per_unit: int = 1
    max_batch_size: int | None = None
    records: int | None = None
    _meter: StepMeter = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuses settings without an event, and opens the meter."""
        self.event()
        for name in ("l2_bound", "expected_batch_size"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"Expected 0 < {name} < inf, got {value}.")
        object.__setattr__(self, "_meter", StepMeter(self.steps))

    def event(self) -> PoissonGaussianEvent | TruncatedPoissonGaussianEvent:
        """Prices the whole run."""
        return dp_sgd_event(
            sampling_probability=self.sampling_probability,
            noise_multiplier=self.noise_multiplier,
            steps=self.steps,
            relation=self.relation,
            max_records_per_unit=self.max_records_per_unit,
            max_batch_size=self.max_batch_size,
            records=self.records,
        )

    def batches(self, private_records: int) -> Iterator[np.ndarray]:
        """Yields the run's remaining batches, (B,) int64 record indices each, B >= 0.

        Empty batches are yielded too and need their gradient: skipping one would reveal it.

        Args:
            private_records: n, the records there are.

        Raises:
            UnaccountedReleaseError: If all T batches were drawn before.
            ValueError: If samples are cut and n is not the declared number.
        """
        if self.max_batch_size is not None and private_records != self.records:
            raise ValueError(
                f"Expected the {self.records} records that are declared public, got another "
                "number. Correct the declaration."
            )
        self._meter.check()
        return self._batches(private_records)

    def _batches(self, private_records: int) -> Iterator[np.ndarray]:
        while self._meter.left:
            batch = poisson_sample(private_records, self.sampling_probability, self.max_batch_size)
            self._meter.draw(len(batch))
            yield batch

    def private_gradient(self, private_gradients: Sequence["torch.Tensor"]) -> list["torch.Tensor"]:
        """Releases the noisy mean gradient of the oldest batch that has none yet.

        Args:
            private_gradients: For each parameter (B, *shape) gradients of the loss of one record
                each (not of their mean), floating-point, on any device with float64.

        Returns:
            For each parameter a (*shape) tensor of the gradients' type and device: the clipped
            sum plus N(0, (σ C)²), over `expected_batch_size`.

        Raises:
            UnaccountedReleaseError: If no batch waits for its gradient, or there is not one row
                for each record of the batch.
            ValueError: If shapes disagree.
        """
        parameters = [gradients.new_empty(gradients.shape[1:]) for gradients in private_gradients]
        return self.private_gradient_of_parts([private_gradients], parameters)

    def private_gradient_of_parts(
        self,
        private_parts: Iterable[Sequence["torch.Tensor"]],
        parameters: Sequence["torch.Tensor"],
    ) -> list["torch.Tensor"]:
        """As `private_gradient`, for a batch whose gradients do not fit in memory at once.

        Args:
            private_parts: Gradients of disjoint parts of the batch, each as `private_gradient`
                takes them; may be lazy, and without parts where the batch is empty.
            parameters: (*shape) tensors that give shape, type and device of the results.
        """
        import torch

        sums = [
            torch.zeros(each.shape, dtype=torch.float64, device=each.device) for each in parameters
        ]
        rows = sum(add_clipped(sums, part, self.l2_bound) for part in private_parts)
        self._meter.release(rows)
        noise_std = self.noise_multiplier * self.l2_bound
        for each in sums:  # [ctcl S3.3]
            each.add_(gaussian_like(each, noise_std)).div_(self.expected_batch_size)
        return [each.to(parameter.dtype) for each, parameter in zip(sums, parameters, strict=True)]
