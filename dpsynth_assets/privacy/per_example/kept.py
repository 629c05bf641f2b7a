"""Per-example products of small matrices, which norm and sum both need.

Shape letters: B examples, T tokens of one, (m, n) shape of a matrix parameter.
"""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.privacy.per_example.uses import Product

NORM_BLOCK = 1024
"""Entries of a kept product whose squares are added up in float32."""


def kept_products(product: "Product") -> "torch.Tensor":
    """Computes the (B, m · n) gradients of each example from float32 or float64 factors."""
    return (product.left.mT @ product.right).flatten(1)


def norm_block(entries: int) -> int:
    """Entries of a product of so many whose squares are added up in float32."""
    return math.gcd(entries, NORM_BLOCK)


def kept_squares(kept: "torch.Tensor") -> "torch.Tensor":
    """Computes (B,) float64 squared norms of (B, m · n) gradients, right to a share of u a term."""
    import torch

    width = norm_block(kept.shape[1])
    norms = torch.linalg.vector_norm(kept.view(len(kept), -1, width), dim=2).double()
    return norms.square_().sum(dim=1)
