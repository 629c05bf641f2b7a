"""Weighted sums of per-example gradients, from their factors.

Shape letters: B examples, T or S tokens of one, (m, n) shape of a matrix parameter.
"""

from typing import TYPE_CHECKING

from dpsynth_assets.privacy.per_example.arithmetic import Products, column_blocks, wide_product
from dpsynth_assets.privacy.per_example.uses import Factors, Lookup, Product

if TYPE_CHECKING:
    import torch


def add_weighted(
    private_sum: "torch.Tensor", factors: Factors, scales: "torch.Tensor", products: Products
) -> None:
    """Adds Σ_i scales_i · G_i to the sum of one parameter.

    Args:
        private_sum: (*shape) float64, changed in place.
        factors: Of the parameter.
        scales: (B,) float64 in [0, 1].
        products: Arithmetic.
    """
    if factors.vectors is not None:
        private_sum.view(-1).add_(scales @ factors.vectors)
    if factors.kept is not None:
        private_sum.view(-1).add_(scales.to(factors.kept.dtype) @ factors.kept)
    for product in factors.products:
        _add_product(private_sum, product, scales, products)
    for lookup in factors.lookups:
        _add_lookup(private_sum, lookup, scales)


def _add_product(
    private_sum: "torch.Tensor", product: Product, scales: "torch.Tensor", products: Products
) -> None:
    """One product over all examples and tokens; the narrower factor carries the scales."""
    import torch

    left, right = product.left, product.right
    total = private_sum
    if left.shape[2] < right.shape[2]:
        left, right, total = right, left, private_sum.mT
    double = products is Products.FLOAT64
    factor = scales[:, None, None].to(torch.float64 if double else torch.float32)
    # The type of the wider of both, then once rounded.
    scaled = (right * factor).to(factor.dtype if double else right.dtype).flatten(0, 1)
    rows = left.flatten(0, 1)
    for block in column_blocks(rows, max(len(rows), scaled.shape[1])):
        part = rows[:, block].mT
        if double:
            total[block].addmm_(part.double(), scaled)
        else:
            total[block].add_(wide_product(part, scaled))


def _add_lookup(private_sum: "torch.Tensor", lookup: Lookup, scales: "torch.Tensor") -> None:
    rows = lookup.right.double() * scales[:, None, None]
    private_sum.index_add_(0, lookup.index.reshape(-1), rows.flatten(0, 1))
