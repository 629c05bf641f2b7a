"""A model's clipped gradient sum over a batch, by one backward pass a micro-batch.

A `Bookkeeper` sums some parts in one thread; `PerExampleGradients` shares a batch among them.

Shape letters: N examples of a batch, B of one micro-batch, T or S tokens of one, (m, n) shape of a
matrix parameter.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from dpsynth_assets.privacy.cpu import one_thread_each, shares_weights, useful_threads
from dpsynth_assets.privacy.per_example.arithmetic import (
    Products,
    SumLattice,
    column_blocks,
    wide_product,
)
from dpsynth_assets.privacy.per_example.norms import norm_bounds
from dpsynth_assets.privacy.per_example.opacus_layers import refuse_unfit
from dpsynth_assets.privacy.per_example.recording import recording
from dpsynth_assets.privacy.per_example.support import (
    ModuleKind,
    booked_modules,
    trainable_parameters,
)
from dpsynth_assets.privacy.per_example.uses import Factors, Product

if TYPE_CHECKING:
    import torch


def add_weighted(
    private_sum: "torch.Tensor",
    factors: Factors,
    scales: "torch.Tensor",
    lattice: SumLattice | None = None,
    single: "torch.Tensor | None" = None,
) -> None:
    """Adds Σ_i scales_i · G_i to the sum of one parameter.

    Args:
        private_sum: (*shape) float64, changed in place.
        factors: Of the parameter.
        scales: (B,) float64 in [0, 1].
        lattice: Where products are taken in float64 and sums are exact; None: `Products.NATIVE`.
        single: The scales in float32, where many parameters share them.
    """
    if lattice is not None:
        _add_exactly(private_sum, factors, scales, lattice)
        return
    if factors.vectors is not None:
        private_sum.view(-1).add_(scales @ factors.vectors)
    single = scales.float() if single is None else single
    if factors.kept is not None:
        own = single if factors.kept.dtype == single.dtype else scales
        private_sum.view(-1).add_(own @ factors.kept)
    for product in factors.products:
        _add_product(private_sum, product, single)
    for lookup in factors.lookups:
        rows = lookup.right.double() * scales[:, None, None]
        private_sum.index_add_(0, lookup.index.reshape(-1), rows.flatten(0, 1))


def _add_product(private_sum: "torch.Tensor", product: Product, scales: "torch.Tensor") -> None:
    """One product over all examples and tokens; the narrower factor carries the scales."""
    left, right, total = _wider_first(product, private_sum)
    # The type of the wider of both, then once rounded.
    scaled = (right * scales[:, None, None]).to(right.dtype).flatten(0, 1)
    rows = left.flatten(0, 1)
    for block in column_blocks(rows, max(len(rows), scaled.shape[1])):
        total[block].add_(wide_product(rows[:, block].mT, scaled))


def _add_exactly(
    private_sum: "torch.Tensor", factors: Factors, scales: "torch.Tensor", lattice: SumLattice
) -> None:
    """What each example adds is placed on the lattice by itself; such numbers add up exactly."""
    if factors.vectors is not None:
        vectors = lattice.placed(factors.vectors.double() * scales[:, None]).sum(dim=0)
        lattice.add(lambda: private_sum.view(-1).add_(vectors))
    for product in factors.products:
        left, right, total = _wider_first(product, private_sum)
        for own, other, scale in zip(left, right, scales, strict=True):
            scaled = other.double() * scale
            for block in column_blocks(own, max(len(own), scaled.shape[1])):
                added = lattice.placed(own[:, block].mT.double() @ scaled)
                lattice.add(partial(total[block].add_, added))
    for lookup in factors.lookups:
        rows = lattice.placed(lookup.right.double() * scales[:, None, None]).flatten(0, 1)
        lattice.add(partial(private_sum.index_add_, 0, lookup.index.reshape(-1), rows))


def _wider_first(
    product: Product, private_sum: "torch.Tensor"
) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
    """Both factors, and the sum as a matrix of the wider one's columns by the narrower one's."""
    left, right = product.left, product.right
    if left.shape[2] < right.shape[2]:
        return right, left, private_sum.mT
    return left, right, private_sum


FEW_ROWS = 64
"""Rows from which the operations of a large model are shared among threads, or four a thread. Fewer
than a dozen, cut in two, are multiplied by code that rounds ten times as much (MKL on AMD)."""


class LossOfPart(NamedTuple):
    """A part of a batch that is passed through the model at once.

    Attributes:
        examples: B >= 1.
        losses: Runs the model it is given on them and returns (B,) losses, the i-th of example i
            alone: never divided by anything that depends on other examples.
        rows: Rows of its longest products, B times the tokens of the longest; 0: not counted.
    """

    examples: int
    losses: "Callable[[torch.nn.Module], torch.Tensor]"
    rows: int = 0


class Bookkeeper:
    """Runs parts through one model and adds up their clipped gradients.

    **Source** Bu et al. 2023, Algorithm 1; tied uses are added before the norm is taken.
    """

    def __init__(self, model: "torch.nn.Module", products: Products) -> None:
        """Checks that every trainable parameter of the model can be booked.

        Raises:
            TypeError: If it has a trainable layer that can neither be booked nor left to Opacus.
        """
        self._model = model
        self._modules = booked_modules(model)
        for module, kind in self._modules:
            if kind is ModuleKind.OPACUS:
                refuse_unfit(module)
        self._products = products
        self.names = tuple(trainable_parameters(model))
        self.parameters = tuple(trainable_parameters(model).values())

    def zeros(self) -> "list[torch.Tensor]":
        """Sums of nothing, float64."""
        import torch

        return [
            torch.zeros(each.shape, dtype=torch.float64, device=each.device)
            for each in self.parameters
        ]

    def add_clipped(
        self,
        private_sums: "list[torch.Tensor]",
        private_parts: Iterable[LossOfPart],
        l2_bound: float,
        lattice: SumLattice | None,
    ) -> int:
        """Adds the clipped gradients of all examples to sums; returns how many there were."""
        rows = 0
        for part in private_parts:
            factors = self.factors(part)
            self._add_clipped(private_sums, factors, part.examples, l2_bound, lattice)
            rows += part.examples
        return rows

    def factors(self, part: LossOfPart) -> list[Factors | None]:
        """One forward and backward pass; the factors of each parameter, None where unused."""
        import torch

        for parameter in self.parameters:
            parameter.grad = None
        before = self._buffers()
        booked = recording(self._model, self._modules, part.examples, self._products)
        with torch.enable_grad(), booked as record:
            losses = part.losses(self._model)
            if losses.shape != (part.examples,):
                raise ValueError(
                    f"Expected one loss for each of {part.examples} examples, got shape "
                    f"{tuple(losses.shape)}. Return (B,) losses."
                )
            if losses.requires_grad:
                losses.sum().backward()
        self._refuse_other_readers()
        self._refuse_changed_buffers(before)
        with torch.no_grad():
            found = record.take()
        return [found.pop(id(parameter), None) for parameter in self.parameters]

    def _refuse_other_readers(self) -> None:
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if parameter.grad is not None:
                parameter.grad = None
                raise TypeError(
                    f"Expected {name} to be read by its own layer alone, got another reader, whose "
                    "gradient is not clipped. Freeze it, or call the layer."
                )

    def _buffers(self) -> dict[str, tuple[int, int]]:
        """Which tensor each buffer of the model is, and how often it was written to."""
        return {name: (id(each), each._version) for name, each in self._model.named_buffers()}

    def _refuse_changed_buffers(self, before: dict[str, tuple[int, int]]) -> None:
        """Refuses what a pass leaves behind in the model: it would be released without noise."""
        now = self._buffers()
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                raise TypeError(
                    f"Expected buffers that no forward pass changes, got {name}, which would "
                    "keep traces of records. Take layers without running statistics."
                )

    def _add_clipped(
        self,
        sums: "list[torch.Tensor]",
        factors: list[Factors | None],
        rows: int,
        l2_bound: float,
        lattice: SumLattice | None,
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
            single = scales.float()
            used.clear()
            for index, total in enumerate(sums):
                own, factors[index] = factors[index], None  # its activations go with it
                if own is not None:
                    add_weighted(total, own, scales, lattice, single)


class PerExampleGradients:
    """Per-example clipping of all trainable parameters of a model, by book-keeping.

    Layers that book-keeping does not know have their per-example gradients computed by Opacus.

    **Privacy** There is no method that returns a gradient without clipping. The clipped sum goes
    to `DpSgdMechanism` alone, which adds the noise: to the whole of it, or once to the sum of what
    workers have clipped.

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
        self.products = Products(products)
        first = Bookkeeper(model, self.products)
        self.names, self.parameters = first.names, first.parameters
        exact = self.products is Products.FLOAT64
        copies = range(1, useful_threads(self.parameters, threads, one_sum=exact))
        self._bookkeepers = [
            first,
            *(Bookkeeper(shares_weights(model), self.products) for _ in copies),
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
        rounding: `Products.clip_margin`. Threads change nothing of that: each micro-batch goes to
        exactly one of them, which clips its examples before anything is added. Where sums are exact
        the threads share them, and every pass has one thread of its own, so that what a record adds
        follows neither from how many threads there are nor from the other records; else each thread
        has float64 sums, which are added in the order of the threads. N counts every micro-batch
        once, so that a micro-batch lost or taken twice is refused with its gradient
        (`StepMeter.release`).
        """
        import torch

        exact = self.products is Products.FLOAT64
        lattice = SumLattice.of(l2_bound) if exact else None
        first = self._bookkeepers[0]
        on_device = first.parameters[0].device.type != "cpu"
        if self.threads == 1 and (not exact or on_device):
            sums, examples = first.zeros(), 0
            with one_thread_each(1) as alone:
                for part in private_parts:
                    add = partial(first.add_clipped, sums, [part], l2_bound, lattice)
                    few = part.rows < max(FEW_ROWS, 4 * torch.get_num_threads())
                    examples += alone.submit(add).result() if few and not on_device else add()
            return sums, examples
        parts = list(private_parts)
        shared = first.zeros()
        own_sums = [shared if exact or own == 0 else first.zeros() for own in range(self.threads)]
        with one_thread_each(self.threads) as executor:
            running = [
                executor.submit(
                    each.add_clipped, sums, parts[own :: self.threads], l2_bound, lattice
                )
                for own, (each, sums) in enumerate(zip(self._bookkeepers, own_sums, strict=True))
            ]
            rows = sum(each.result() for each in running)
        for others in [] if exact else own_sums[1:]:
            for total, other in zip(shared, others, strict=True):
                total.add_(other)
        return shared, rows
