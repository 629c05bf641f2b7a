"""Factors of per-example gradients, which one backward pass leaves of each parameter.

Shape letters: B examples, T or S tokens of one, (m, n) shape of a matrix parameter.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
        coarse: (B,) float64 sums of |left_t| |right_t| over uses and tokens: a bound on what
            cancellation among an example's own tokens can magnify.
        terms: (B,) float64 numbers of tokens, over uses, whose |left_t| |right_t| is not zero: the
            example's own, however far other records pad it.
    """

    products: list[Product] = field(default_factory=list, repr=False)
    lookups: list[Lookup] = field(default_factory=list, repr=False)
    vectors: "torch.Tensor | None" = field(default=None, repr=False)
    kept: "torch.Tensor | None" = field(default=None, repr=False)
    coarse: "torch.Tensor | None" = field(default=None, repr=False)
    terms: "torch.Tensor | None" = field(default=None, repr=False)

    def add_sizes(self, sizes: "torch.Tensor") -> None:
        """Adds the (B, T) float64 sizes |left_t| |right_t| of one more use."""
        coarse, terms = sizes.sum(dim=1), (sizes != 0).sum(dim=1).double()
        self.coarse = coarse if self.coarse is None else self.coarse + coarse
        self.terms = terms if self.terms is None else self.terms + terms

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
