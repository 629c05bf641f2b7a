"""The way in: a model's clipped gradient sum over a batch, by one backward pass a part.

Shape letters: B examples of one part, N of a batch.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dpsynth_assets.privacy.cpu_threads import one_thread_each, shares_weights, useful_threads
from dpsynth_assets.privacy.per_example.arithmetic import Products
from dpsynth_assets.privacy.per_example.bookkeeper import Bookkeeper, LossOfPart

if TYPE_CHECKING:
    import torch


class PerExampleGradients:
    """Per-example clipping of all trainable parameters of a model, by book-keeping.

    Layers that book-keeping does not know have their per-example gradients computed by Opacus.

    **Privacy** There is no method that returns a gradient without clipping. The clipped sum goes
    to `DpSgdMechanism.private_gradient_of_losses` alone, which adds the noise.

    **Source** Bu et al. 2023, Algorithm 1; tied uses are added before the norm is taken.
    """

    def __init__(
        self, model: "torch.nn.Module", products: Products = Products.NATIVE, threads: int = 1
    ) -> None:
        """Checks that every trainable parameter of the model can be booked.

        Args:
            model: Made of linear, embedding and norm layers, shared or not, adapters too; and of
                layers of one tensor in and one out that Opacus can work on, not shared with others.
                Its layers must keep examples apart. It is not changed.
            products: Arithmetic of the sums.
            threads: CPU threads that may work on parts side by side; one takes all where the model
                is on a device, or large enough for its operations to be shared instead.

        Raises:
            TypeError: If it has a trainable layer that neither can work on.
        """
        first = Bookkeeper(model, Products(products))
        self.names, self.parameters = first.names, first.parameters
        copies = range(1, useful_threads(self.parameters, threads))
        self._bookkeepers = [
            first,
            *(Bookkeeper(shares_weights(model), Products(products)) for _ in copies),
        ]

    @property
    def threads(self) -> int:
        """Parts that are worked on side by side."""
        return len(self._bookkeepers)

    def private_clipped_sums(
        self, private_parts: Iterable[LossOfPart], l2_bound: float
    ) -> "tuple[list[torch.Tensor], int]":
        """Sums the clipped gradients of all examples. Private: without noise.

        Args:
            private_parts: Disjoint parts of one batch; lazy, or empty.
            l2_bound: C > 0.

        Returns:
            For each of `parameters` a float64 sum, and N. An example whose gradient is not finite
            adds zero.

        Raises:
            TypeError: If a layer mixes examples, or something reads a parameter past its layer.
            ValueError: If losses are not one for each example.

        **Privacy** One example moves the sums by at most C, over all parameters together, up to
        rounding: `Products.clip_margin`. Threads change nothing of that: each part goes to exactly
        one of them, which clips its examples before anything is added, and the float64 sums of the
        threads are added in the order of the threads. N counts every part once, so that a part
        lost or taken twice is refused with its gradient (`StepMeter.release`).
        """
        if self.threads == 1:
            return self._bookkeepers[0].private_clipped_sums(private_parts, l2_bound)
        parts = list(private_parts)
        with one_thread_each(self.threads) as executor:
            running = [
                executor.submit(each.private_clipped_sums, parts[own :: self.threads], l2_bound)
                for own, each in enumerate(self._bookkeepers)
            ]
            found = [each.result() for each in running]
        sums, rows = found[0]
        for others, count in found[1:]:
            for total, other in zip(sums, others, strict=True):
                total.add_(other)
            rows += count
        return sums, rows
