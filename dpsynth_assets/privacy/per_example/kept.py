"""Per-example products of small matrices, which norm and sum both need.

Shape letters: B examples, T tokens of one, (m, n) shape of a matrix parameter.
"""

import math
from typing import TYPE_CHECKING

from dpsynth_assets.privacy.per_example.arithmetic import accumulation_roundoff

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.privacy.per_example.uses import Product

NORM_BLOCK = 1024
"""Entries of a kept product whose squares are added up in float32."""


def kept_products(product: "Product") -> "torch.Tensor":
    """Computes the (B, m · n) gradients of each example from float32 or float64 factors."""
    return (product.left.mT @ product.right).flatten(1)


def kept_norms(kept: "torch.Tensor") -> "torch.Tensor":
    """Computes (B,) float64 norms of (B, m · n) gradients, rounded up."""
    import torch

    width = math.gcd(kept.shape[1], NORM_BLOCK)
    norms = torch.linalg.vector_norm(kept.view(len(kept), -1, width), dim=2).double()
    rounding = 1.0 + (width + 2) * accumulation_roundoff(kept)
    return norms.square_().sum(dim=1).sqrt_().mul_(rounding)
