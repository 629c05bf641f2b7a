"""The way in: a model's clipped gradient sum over a batch, by one backward pass a part.

Shape letters: B examples of one part, N of a batch.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from dpsynth_assets.privacy.per_example.arithmetic import Products
from dpsynth_assets.privacy.per_example.norms import norm_bounds
from dpsynth_assets.privacy.per_example.recording import recording
from dpsynth_assets.privacy.per_example.sums import add_weighted
from dpsynth_assets.privacy.per_example.support import booked_modules, trainable_parameters
from dpsynth_assets.privacy.per_example.uses import Factors

if TYPE_CHECKING:
    import torch


class LossOfPart(NamedTuple):
    """A part of a batch that is passed through the model at once.

    Attributes:
        examples: B >= 1.
        losses: Runs the model on them and returns (B,) losses, the i-th of example i alone: never
            divided by anything that depends on other examples.
    """

    examples: int
    losses: "Callable[[], torch.Tensor]"


class PerExampleGradients:
    """Per-example clipping of all trainable parameters of a model, by book-keeping.

    **Privacy** There is no method that returns a gradient without clipping. The clipped sum goes
    to `DpSgdMechanism.private_gradient_of_losses` alone, which adds the noise.

    **Source** Bu et al. 2023, Algorithm 1; tied uses are added before the norm is taken.
    """

    def __init__(self, model: "torch.nn.Module", products: Products = Products.NATIVE) -> None:
        """Checks that every trainable parameter of the model can be booked.

        Args:
            model: Made of linear, embedding and norm layers, shared or not; adapters too. Its
                layers must keep examples apart. It is not changed.
            products: Arithmetic of the sums.

        Raises:
            TypeError: If it has a trainable parameter of another layer.
        """
        self._modules = booked_modules(model)
        self._products = Products(products)
        self.names = tuple(trainable_parameters(model))
        self.parameters = tuple(trainable_parameters(model).values())

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
        rounding: `Products.clip_margin`.
        """
        import torch

        sums = [
            torch.zeros(each.shape, dtype=torch.float64, device=each.device)
            for each in self.parameters
        ]
        rows = 0
        for part in private_parts:
            factors = self._factors(part)
            self._add_clipped(sums, factors, part.examples, l2_bound)
            rows += part.examples
        return sums, rows

    def _factors(self, part: LossOfPart) -> list[Factors | None]:
        """One forward and backward pass; the factors of each parameter, None where unused."""
        import torch

        for parameter in self.parameters:
            parameter.grad = None
        with torch.enable_grad(), recording(self._modules, part.examples) as record:
            losses = part.losses()
            if losses.shape != (part.examples,):
                raise ValueError(
                    f"Expected one loss for each of {part.examples} examples, got shape "
                    f"{tuple(losses.shape)}. Return (B,) losses."
                )
            if losses.requires_grad:
                losses.sum().backward()
        self._refuse_other_readers()
        with torch.no_grad():
            found = record.take()
        return [found.pop(id(parameter), None) for parameter in self.parameters]

    def _refuse_other_readers(self) -> None:
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if parameter.grad is not None:
                parameter.grad = None
                raise TypeError(
                    f"Expected {name} to be read by its own layer alone, got another reader, whose "
                    "gradient nobody clips. Freeze it, or call the layer."
                )

    def _add_clipped(
        self,
        sums: "list[torch.Tensor]",
        factors: list[Factors | None],
        rows: int,
        l2_bound: float,
    ) -> None:
        """Scales each example to the bound and adds it to the sums."""
        import torch

        used = [each for each in factors if each is not None]
        if not used:
            return
        with torch.no_grad(), torch.autocast(sums[0].device.type, enabled=False):
            bounds = norm_bounds(used, rows, self._products)
            usable = torch.isfinite(bounds)
            if not usable.all():
                for each in used:
                    each.silence(usable)
            target = l2_bound * (1.0 - self._products.clip_margin)
            scales = (target / bounds).clamp_(max=1.0).where(usable, 0.0)
            used.clear()
            for index, total in enumerate(sums):
                own, factors[index] = factors[index], None  # its activations go with it
                if own is not None:
                    add_weighted(total, own, scales, self._products)
