"""Batches whose records lie with several workers: each draws and clips its own, one adds noise.

A worker tosses the coins of its own records with entropy of its own operating system, and returns
the clipped sum of those that were drawn. The process that holds the charge adds the sums up and
adds the noise, once (`DpSgdMechanism.private_gradient_of_workers`).

Shape letters: n records of one worker, P numbers of all parameters together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.per_example.arithmetic import Products, SumLattice
from dpsynth_assets.privacy.poisson_sampling import poisson_sample

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.privacy.per_example import LossOfPart, PerExampleGradients


@dataclass(frozen=True, kw_only=True)
class SampledSum:
    """What a worker does with its records in one step; public values.

    Attributes:
        sampling_probability: q in (0, 1] of every record.
        l2_bound: Bound on the norm of one record's gradient over all parameters.

    **Privacy** Every record tosses a coin of its own, whoever holds it, and lies with one worker:
    so the union of what the workers draw is a Poisson sample of all records, as `event` prices it,
    for any division of the records. Records of one unit toss one coin each, as the event says.
    Which were drawn is known to that worker's memory alone, and how many is part of the private
    sum. Sums are whole units of one public lattice (`SumLattice`), so that the total is the sum one
    process would have, bit for bit.
    """

    sampling_probability: float
    l2_bound: float

    def drawn(self, records: int) -> np.ndarray:
        """Draws (B,) int64 ascending indices of n records; private."""
        return poisson_sample(records, self.sampling_probability)

    def counted(
        self, gradients: "PerExampleGradients", private_parts: "Sequence[LossOfPart]"
    ) -> np.ndarray:
        """Clips and adds up the records that were drawn.

        Args:
            gradients: Of a model at this step's weights, with exact sums.
            private_parts: One record each.

        Returns:
            (P + 1,) int64: units of the sums of all parameters, and the number of records. Private:
            it has no noise yet.

        Raises:
            ValueError: Sums would not be exact.
            UnaccountedReleaseError: Records share a pass, or one was lost or taken twice.
        """
        import torch

        if gradients.products is not Products.FLOAT64:
            raise ValueError(
                "Expected exact sums of gradients where workers share a batch, got sums in "
                f"{gradients.products}. Set exact_sums: true."
            )
        if any(part.examples != 1 for part in private_parts):
            raise UnaccountedReleaseError(
                "Expected each record in a pass of its own, got parts of several records. Cut the "
                "batch into parts of one."
            )
        sums, rows = gradients.private_clipped_sums(private_parts, self.l2_bound)
        if rows != len(private_parts):
            raise UnaccountedReleaseError(
                "Expected one gradient row for each record that was drawn, got another number."
            )
        lattice = SumLattice.of(self.l2_bound)
        flat = torch.cat([lattice.units(each).flatten().cpu() for each in sums])
        return np.append(flat.numpy(), np.int64(rows))

    def sums_of(
        self, counted: np.ndarray, parameters: "Sequence[torch.Tensor]"
    ) -> "tuple[list[torch.Tensor], int]":
        """Turns the total of all workers into float64 sums by parameter, and the number of records.

        Raises:
            ValueError: It is not of these parameters.
        """
        import torch

        expected = sum(each.numel() for each in parameters) + 1
        if counted.shape != (expected,) or counted.dtype != np.int64:
            raise ValueError(
                f"Expected {expected} whole numbers from the workers, got shape {counted.shape} of "
                f"{counted.dtype}. Use one version of dpsynth-assets on every node."
            )
        sizes = [each.numel() for each in parameters]
        parts = torch.from_numpy(counted[:-1]).split(sizes)
        lattice = SumLattice.of(self.l2_bound)
        sums = [
            lattice.sums(part).view(each.shape).to(each.device)
            for part, each in zip(parts, parameters, strict=True)
        ]
        return sums, int(counted[-1])
