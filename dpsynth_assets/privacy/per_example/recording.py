"""Hooks that keep the factors of per-example gradients during one forward and backward pass.

Shape letters: B examples, T tokens of one, d features in, p features out.

While a booked module runs, its own parameters ask for no gradient, so that autograd computes none
of theirs; a parameter that something else reads directly still gets one, and gives that away.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpsynth_assets.privacy.per_example.arithmetic import Products, row_norms, token_sums
from dpsynth_assets.privacy.per_example.support import (
    ModuleKind,
    normalized,
    rms_norm_epsilon,
)
from dpsynth_assets.privacy.per_example.uses import Factors, Lookup, Product

if TYPE_CHECKING:
    import torch
    from torch.overrides import TorchFunctionMode


@dataclass
class ModuleUse:
    """One call of a module: what went in, and the gradient of what came out."""

    module: "torch.nn.Module"
    kind: ModuleKind
    inputs: "torch.Tensor" = field(repr=False)
    gradient: "torch.Tensor | None" = field(default=None, repr=False)

    def keep(self, gradient: "torch.Tensor") -> None:
        """Keeps the gradient that arrives in the backward pass; a tensor hook."""
        self.gradient = gradient.detach()


@dataclass
class Recording:
    """Every call of a booked module during one forward pass of B examples."""

    examples: int = field(repr=False)
    products: Products
    uses: list[ModuleUse] = field(default_factory=list, repr=False)
    flags: dict[int, list[bool]] = field(default_factory=dict, repr=False)

    def before(self, module: "torch.nn.Module", _inputs: Any) -> None:
        """Stops the module's own parameters from asking for gradients; a pre-forward hook."""
        own = list(module.parameters(recurse=False))
        self.flags[id(module)] = [each.requires_grad for each in own]
        for each in own:
            each.requires_grad_(False)

    def restore(self, module: "torch.nn.Module") -> None:
        """Undoes `before`."""
        flags = self.flags.pop(id(module), None)
        if flags is not None:
            for each, flag in zip(module.parameters(recurse=False), flags, strict=True):
                each.requires_grad_(flag)

    def watch(
        self, module: "torch.nn.Module", kind: ModuleKind, inputs: Any, output: Any
    ) -> "torch.Tensor":
        """Keeps one call, and returns an output that leads autograd back to it."""
        import torch

        if not torch.is_grad_enabled():
            return output
        use = ModuleUse(module, kind, inputs.detach())
        if not output.requires_grad:  # nothing trainable before: start the graph here
            output = output.detach().requires_grad_().clone()
        output.register_hook(use.keep)
        self.uses.append(use)
        return output

    def take(self) -> dict[int, Factors]:
        """Turns the calls into factors by parameter (its `id`), and forgets them."""
        found: dict[int, Factors] = {}
        while self.uses:
            use = self.uses.pop()
            if use.gradient is not None:
                _book(use, found, self.examples, self.products)
        return found


@contextmanager
def recording(
    modules: "Sequence[tuple[torch.nn.Module, ModuleKind]]",
    examples: int,
    products: Products = Products.NATIVE,
) -> Iterator[Recording]:
    """Records forward passes of `examples` examples inside the `with` block."""
    record = Recording(examples, products)
    handles = []
    for module, kind in modules:
        hooks = _Hooks(record, kind)
        handles.append(module.register_forward_pre_hook(hooks.before))
        handles.append(module.register_forward_hook(hooks.after))
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()
        for module, _ in modules:
            record.restore(module)


class _Hooks:
    """The two forward hooks of one module."""

    def __init__(self, record: Recording, kind: ModuleKind) -> None:
        self._record = record
        self._kind = kind
        self._catcher: TorchFunctionMode | None = None

    def before(self, module: "torch.nn.Module", inputs: Any) -> None:
        """Pre-forward hook."""
        self._record.before(module, inputs)
        if self._kind is ModuleKind.EMBEDDING:
            self._catcher = lookup_catcher(module, self._record)
            self._catcher.__enter__()

    def after(self, module: "torch.nn.Module", inputs: Any, output: Any) -> Any:
        """Forward hook; what it returns replaces the output."""
        self._record.restore(module)
        if self._catcher is not None:
            self._catcher.__exit__(None, None, None)
            self._catcher = None
            return output
        return self._record.watch(module, self._kind, inputs[0], output)


def lookup_catcher(module: Any, record: Recording) -> "TorchFunctionMode":
    """Makes a mode that records the table look-up inside an embedding, offset and scale aside.

    Learned positions are looked up once for the whole batch; they are repeated for every example,
    so that each has a gradient of its own.
    """
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    class Catcher(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            output = func(*args, **(kwargs or {}))
            if func is not functional.embedding or args[1] is not module.weight:
                return output
            index = args[0]
            if record.examples != 1 and (index.dim() == 1 or len(index) == 1):
                shape = (record.examples, index.shape[-1])
                index = index.reshape(1, -1).expand(shape)
                output = output.reshape(1, *output.shape[-2:]).expand(*shape, -1)
            return record.watch(module, ModuleKind.EMBEDDING, index, output)

    return Catcher()


def _book(use: ModuleUse, found: dict[int, Factors], examples: int, products: Products) -> None:
    """Adds one call to the factors of the parameters it used."""
    gradient = _by_example(use.gradient, examples, use.module)
    weight, bias = use.module.weight, getattr(use.module, "bias", None)
    if use.kind is ModuleKind.EMBEDDING:
        if weight.requires_grad:
            lookup = _lookup(use, gradient)
            own = _factors(found, weight)
            own.lookups.append(lookup)
            own.add_coarse(row_norms(lookup.right).sum(dim=1))
        return
    inputs = _by_example(use.inputs, examples, use.module)
    sizes = row_norms(gradient)
    if bias is not None and bias.requires_grad:
        _add_vectors(_factors(found, bias), gradient, sizes, products)
    if not weight.requires_grad:
        return
    own = _factors(found, weight)
    if use.kind in (ModuleKind.LINEAR, ModuleKind.TRANSPOSED_LINEAR):
        inputs = inputs.to(gradient.dtype)  # as autocast did
        pair = (gradient, inputs) if use.kind is ModuleKind.LINEAR else (inputs, gradient)
        own.products.append(Product(*pair))
        own.add_coarse((sizes * row_norms(inputs)).sum(dim=1))
    else:
        epsilon = getattr(use.module, "eps", None) or rms_norm_epsilon(use.module)
        scaled = gradient * normalized(inputs, use.kind, epsilon)
        _add_vectors(own, scaled, row_norms(scaled), products)


def _factors(found: dict[int, Factors], parameter: Any) -> Factors:
    return found.setdefault(id(parameter), Factors())


def _add_vectors(
    own: Factors, rows: "torch.Tensor", sizes: "torch.Tensor", products: Products
) -> None:
    """Adds the sums over tokens of (B, T, k) rows, whose norms are (B, T) sizes."""
    own.add_vectors(token_sums(rows, products))
    own.add_coarse(sizes.sum(dim=1))


def _lookup(use: ModuleUse, gradient: "torch.Tensor") -> Lookup:
    """A table look-up; the padding row has no gradient, as in autograd."""
    index = use.inputs.reshape(gradient.shape[:2])
    padding: Any = use.module.padding_idx
    if padding is not None:
        gradient = gradient.masked_fill((index == padding)[:, :, None], 0.0)
    return Lookup(index, gradient)


def _by_example(rows: Any, examples: int, module: "torch.nn.Module") -> "torch.Tensor":
    """Brings (B, …, k) to (B, T, k).

    Raises:
        TypeError: If the first axis does not count the examples: tokens of several may be mixed.
    """
    if rows.dim() < 2 or len(rows) != examples:
        raise TypeError(
            "Expected every booked layer to see one row of tokens for each example, got another "
            f"first axis in a {type(module).__name__}. Freeze it, or pass batches unflattened."
        )
    if rows.dim() == 2:
        return rows[:, None]
    return rows if rows.dim() == 3 else rows.flatten(1, -2)
