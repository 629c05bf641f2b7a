"""Factors of per-example gradients, which one backward pass leaves of each parameter.

Each call of a module adds what it contributes to the factors of its parameters (`book`).

Shape letters: B examples, T or S tokens of one, (m, n) shape of a matrix parameter.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpsynth_assets.privacy.per_example.arithmetic import Products, row_norms, token_sums
from dpsynth_assets.privacy.per_example.opacus_layers import Call, example_gradients
from dpsynth_assets.privacy.per_example.support import (
    ModuleKind,
    bucket_sums,
    normalized,
    rms_norm_epsilon,
)

if TYPE_CHECKING:
    import torch


@dataclass
class Product:
    """Gradients G_i = Σ_t left[i, t] ⊗ right[i, t] of an (m, n) matrix.

    Attributes:
        left: (B, T, m).
        right: (B, T, n), of the same type.
    """

    left: "torch.Tensor" = field(repr=False)
    right: "torch.Tensor" = field(repr=False)


@dataclass
class Lookup:
    """Gradients that add row right[i, s] at place index[i, s] of an (m, n) table.

    Attributes:
        index: (B, S) int64 in [0, m).
        right: (B, S, n).
    """

    index: "torch.Tensor" = field(repr=False)
    right: "torch.Tensor" = field(repr=False)


@dataclass
class Factors:
    """All uses of one parameter in one forward pass; their gradients add up.

    Attributes:
        products: Uses as a matrix.
        lookups: Uses as a table, of the same parameter where embeddings are tied.
        vectors: (B, n) float64 gradients of a vector parameter, summed over its uses.
        kept: (B, m · n) float32 gradients themselves, in place of products, once they were needed.
        sizes: Of each use, (B, T) norms |left_t|, and |right_t| where it is a product: what they
            come to bounds what cancellation among an example's own tokens can magnify.
    """

    products: list[Product] = field(default_factory=list, repr=False)
    lookups: list[Lookup] = field(default_factory=list, repr=False)
    vectors: "torch.Tensor | None" = field(default=None, repr=False)
    kept: "torch.Tensor | None" = field(default=None, repr=False)
    sizes: "list[tuple[torch.Tensor, ...]]" = field(default_factory=list, repr=False)

    def add_sizes(self, *norms: "torch.Tensor") -> None:
        """Adds the (B, T) norms of one more use, whose product is |left_t| |right_t|."""
        self.sizes.append(norms)

    def shapes(self) -> tuple[object, ...]:
        """What is the same of parameters whose norms are computed side by side."""
        rows = [each for use in self.products for each in (use.left, use.right)]
        rows += [use.right for use in self.lookups]
        rows += [] if self.vectors is None else [self.vectors]
        norms = tuple(each.shape for use in self.sizes for each in use)
        return len(self.products), tuple((each.shape, each.dtype) for each in rows), norms

    def keep(self, gradients: "torch.Tensor") -> None:
        """Holds (B, m · n) gradients in place of the products that they were made of."""
        self.kept = gradients
        self.products.clear()

    def add_vectors(self, vectors: "torch.Tensor") -> None:
        """Adds (B, n) gradients of one more use."""
        self.vectors = vectors if self.vectors is None else self.vectors + vectors

    def joined(self) -> "tuple[Product | None, Lookup | None]":
        """Joins uses along their tokens: two uses are one use of more tokens."""
        import torch

        product = self.products[0] if self.products else None
        if len(self.products) > 1:
            left = torch.cat([each.left for each in self.products], dim=1)
            product = Product(left, torch.cat([each.right for each in self.products], dim=1))
        lookup = self.lookups[0] if self.lookups else None
        if len(self.lookups) > 1:
            index = torch.cat([each.index for each in self.lookups], dim=1)
            lookup = Lookup(index, torch.cat([each.right for each in self.lookups], dim=1))
        return product, lookup

    def silence(self, usable: "torch.Tensor") -> None:
        """Sets the factors of examples whose (B,) `usable` is False to zero: 0 · ∞ is NaN."""
        for product in self.products:
            product.left = _silenced(product.left, usable)
            product.right = _silenced(product.right, usable)
        for lookup in self.lookups:
            lookup.right = _silenced(lookup.right, usable)
        if self.vectors is not None:
            self.vectors = _silenced(self.vectors, usable)
        if self.kept is not None:
            self.kept = _silenced(self.kept, usable)


def _silenced(rows: "torch.Tensor", usable: "torch.Tensor") -> "torch.Tensor":
    return rows.where(usable.view(-1, *[1] * (rows.dim() - 1)), 0.0)


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
        own.add_sizes(sizes, row_norms(inputs))
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
