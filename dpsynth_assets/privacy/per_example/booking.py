"""Adds what one call of a module contributes to the factors of its parameters.

Shape letters: B examples, T tokens of one, d features in, p features out.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpsynth_assets.privacy.per_example.arithmetic import Products, row_norms, token_sums
from dpsynth_assets.privacy.per_example.opacus_layers import Call, example_gradients
from dpsynth_assets.privacy.per_example.relative_bias import bucket_sums
from dpsynth_assets.privacy.per_example.support import (
    ModuleKind,
    normalized,
    rms_norm_epsilon,
)
from dpsynth_assets.privacy.per_example.uses import Factors, Lookup, Product

if TYPE_CHECKING:
    import torch


@dataclass
class ModuleUse:
    """One call of a module: what went in, and the gradient of what came out.

    Attributes:
        module: The module.
        kind: How it uses its parameters.
        inputs: What went in: a tensor, or a `Call` of a layer that is left to Opacus.
        gradient: Of what came out.
    """

    module: "torch.nn.Module"
    kind: ModuleKind
    inputs: Any = field(repr=False)
    gradient: "torch.Tensor | None" = field(default=None, repr=False)

    def keep(self, gradient: "torch.Tensor") -> None:
        """Keeps the gradient that arrives in the backward pass; a tensor hook."""
        self.gradient = gradient.detach()


def book(use: ModuleUse, found: dict[int, Factors], examples: int, products: Products) -> None:
    """Adds one call to the factors of the parameters it used."""
    if use.kind is ModuleKind.RELATIVE_BIAS:
        _add_relative_bias(use, found)
        return
    if use.kind is ModuleKind.OPACUS:
        _add_opacus(use, found)
        return
    gradient = _by_example(use.gradient, examples, use.module)
    weight, bias = use.module.weight, getattr(use.module, "bias", None)
    if use.kind is ModuleKind.EMBEDDING:
        if weight.requires_grad:
            lookup = _lookup(use, gradient)
            own = _factors(found, weight)
            own.lookups.append(lookup)
            own.add_sizes(row_norms(lookup.right))
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
        own.add_sizes(sizes * row_norms(inputs))
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
    own.add_sizes(sizes)


def _add_relative_bias(use: ModuleUse, found: dict[int, Factors]) -> None:
    """Adds what a table of relative positions received through each example's own bias."""
    table: Any = use.module
    if use.gradient is not None and table.weight.requires_grad:
        own = _factors(found, table.weight)
        sums, coarse = bucket_sums(use.inputs, use.gradient, len(table.weight))
        own.add_vectors(sums)
        own.add_sizes(coarse[:, None])


def _add_opacus(use: ModuleUse, found: dict[int, Factors]) -> None:
    """Adds gradients from Opacus; nothing cancels between their norms and their sum."""
    if use.gradient is None or not isinstance(use.inputs, Call):
        return
    for parameter, gradients in example_gradients(use.module, use.inputs, use.gradient):
        own = _factors(found, parameter)
        own.add_vectors(gradients)
        own.add_sizes(gradients.norm(dim=1, keepdim=True))


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
