"""Upper bounds on the norms of per-example gradients, from their factors.

Shape letters: B examples, T or S tokens of one, (m, n) shape of a matrix parameter.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpsynth_assets.privacy.per_example.arithmetic import (
    COARSE_RATIO,
    Products,
    accumulation_roundoff,
    block_entries,
    gram,
    scaling_error,
    wide_product,
)
from dpsynth_assets.privacy.per_example.uses import Factors, Lookup, Product

if TYPE_CHECKING:
    import torch

NORM_BLOCK = 1024
"""Entries of a kept product whose squares are added up in float32."""


def kept_products(product: Product) -> "torch.Tensor":
    """Computes the (B, m · n) gradients of each example, in float32 or float64."""
    return wide_product(product.left.mT, product.right).flatten(1)


def norm_block(entries: int) -> int:
    """Entries of a product of this many whose squares are added up in float32."""
    return math.gcd(entries, NORM_BLOCK)


def kept_norms(kept: "torch.Tensor") -> "torch.Tensor":
    """Computes (B, k) norms of k blocks of (B, m · n) gradients, right to a share of u a term."""
    import torch

    blocks = kept.view(len(kept), -1, norm_block(kept.shape[1]))
    return torch.linalg.vector_norm(blocks, dim=2)


GHOST_COST = {Products.FLOAT64: 2.5, Products.NATIVE: 1.5}
"""Cost of a multiplication in a Gram matrix beside one in a per-example product, measured."""

ENTRY_COST = 12.0
"""Cost of squaring one entry of a per-example product, in such multiplications, measured."""

KEPT_COST = 24.0
"""Cost of squaring one and of adding it to the sum later, likewise."""

KEPT_SHARE = 4.0
"""Per-example products are kept up to this many times the size of their factors."""


def norm_bounds(factors: list[Factors], rows: int, products: Products) -> "torch.Tensor":
    """Computes (B,) float64 upper bounds on the norms over all parameters together.

    Args:
        factors: Of each parameter.
        rows: B.
        products: Arithmetic, which the bounds make up for.

    Returns:
        The norm, or slightly more; never less than 1/256 of the coarse norm. Not finite where a
        gradient is not.

    **Privacy** A scale of C / bound makes every example's own product, as `bookkeeper` computes it,
    no longer than C.
    """
    import torch

    if not factors:
        return torch.zeros(rows, dtype=torch.float64)
    alike: dict[tuple[object, ...], list[Factors]] = {}
    for each in factors:
        alike.setdefault(each.shapes(), []).append(each)
    numbers = torch.cat([_squared_norms(group, products) for group in alike.values()], dim=1)
    while (half := numbers.shape[1] // 2) > 0:  # by entries, in an order that no batch changes
        added = numbers[:, :half] + numbers[:, half : 2 * half]
        numbers = torch.cat([added, numbers[:, 2 * half :]], dim=1)
    squares, coarse, slack = numbers[:, 0]
    bounds = squares.clamp(min=0.0).sqrt() + slack.sqrt()
    return torch.maximum(bounds, coarse.sqrt() / COARSE_RATIO)


def _squared_norms(group: list[Factors], products: Products) -> "torch.Tensor":
    """Computes (3, P, B) squares of P parameters of the same shapes.

    They are the norms, rounded up, the coarse norms, and what scaling may add to the norms.
    """
    import torch

    uses = zip(*(each.sizes for each in group), strict=True)
    norms = [[torch.stack(each).double() for each in zip(*use, strict=True)] for use in uses]
    sizes = torch.cat([math.prod(each[1:], start=each[0]) for each in norms], dim=2)
    coarse, first = sizes.sum(dim=2), group[0]
    if first.vectors is not None:
        if first.products or first.lookups:
            raise TypeError(
                "Expected a table of relative positions of its own, and parameters of its own in a "
                "layer that Opacus works on, got one that other layers share. Freeze it "
                "(requires_grad=False)."
            )
        vectors = torch.stack([each.vectors for each in group if each.vectors is not None])
        squares = vectors.square().sum(dim=2)
        return torch.stack([squares, coarse.square(), torch.zeros_like(coarse)])
    product = first.products[0] if first.products else None
    lookup = first.lookups[0] if first.lookups else None
    lost = coarse * (0.0 if product is None else scaling_error(product.left, products))
    terms = (sizes != 0).sum(dim=2, dtype=torch.float64)
    squares = _computed_squares(group, products)
    squares = _rounded_up(squares, coarse, terms, product, lookup, products)
    return torch.stack([squares, coarse.square(), lost.square()])


def _computed_squares(group: list[Factors], products: Products) -> "torch.Tensor":
    """Computes (P, B) squared norms of P parameters of the same shapes, as rounding leaves them.

    Gradients that are computed on the way are kept for the sum, where that is cheapest.
    """
    import torch

    norms, squares = [], []
    for each in group:
        product, lookup = each.joined()
        if product is not None and lookup is None and _keeping_is_cheapest(product, products):
            kept = kept_products(product)
            each.keep(kept)
            norms.append(kept_norms(kept))
            continue
        direct = product is not None and _direct_is_cheaper(product, lookup, products)
        found = [
            _direct_squares(*own) if direct else _ghost_squares(*own, products)
            for part in _parts(product, lookup, direct=direct)
            for own in [_slice(product, lookup, part)]
        ]
        squares.append(torch.cat(found))
    return torch.stack(norms).double().square_().sum(dim=2) if norms else torch.stack(squares)


def _rounded_up(
    squares: "torch.Tensor",
    coarse: "torch.Tensor",
    terms: "torch.Tensor",
    product: Product | None,
    lookup: Lookup | None,
    products: Products,
) -> "torch.Tensor":
    """Raises (P, B) squared norms to upper bounds, whichever way they were computed.

    Args:
        squares: (P, B) float64.
        coarse: (P, B) float64 sums of |left_t| |right_t| over uses and tokens.
        terms: (P, B) float64 numbers of tokens, over uses, whose |left_t| |right_t| is not zero:
            the example's own, however far other records pad it.
        product: One of the uses as a matrix.
        lookup: One of the uses as a table.
        products: Arithmetic.

    Of products themselves, an entry is a sum of the example's own terms, so that the whole is off
    by at most terms · u times the coarse norm; rounding may hide some of the norm of a row of
    squares besides. Of Gram matrices, inner products are off by random roundings of as many terms
    as factors are wide (four deviations of it), in float64 by all of them.

    **Privacy** Which way is cheapest follows from how far other records pad an example. What is
    added does not: it is the larger of both, from the example's own tokens, so that no other record
    moves its scale.
    """
    import torch

    one = product.left if product is not None else lookup.right if lookup is not None else None
    if one is None:
        raise RuntimeError("Expected factors of a used parameter, got none.")
    u = accumulation_roundoff(one)
    used = [each for each in (product, lookup) if each is not None]
    row = max(each.right.shape[2] for each in used)
    if product is not None and products is Products.NATIVE:
        row = max(row, norm_block(product.left.shape[2] * product.right.shape[2]))
    norms = squares.clamp(min=0.0).sqrt()
    direct = norms * (1.0 + (row + 2) * u) + coarse * terms * u
    width = sum(each.right.shape[2] for each in used)
    width += 0 if product is None else product.left.shape[2]
    if products is Products.NATIVE:
        share = 4.0 * width**0.5 * 2.0**-24
        ghost = squares + coarse.square() * share
    else:
        ghost = squares + coarse.square() * ((width + terms.square()) * 2.0**-53)
    return torch.maximum(direct.square(), ghost)


def _keeping_is_cheapest(product: Product, products: Products) -> bool:
    """Says whether to take products of each example once, for norm and sum, and not token by token.

    They may be larger than their factors, but not by much. Costs were measured on a processor.
    """
    if products is Products.FLOAT64 or product.left.element_size() < 4:
        return False  # narrow types: keeping rounds otherwise, and padding would decide on it
    tokens, rows, columns = *product.left.shape[1:], product.right.shape[2]
    kept = (tokens + KEPT_COST) * rows * columns
    ghost = GHOST_COST[products] * tokens**2 * (rows + columns)
    direct = (tokens + ENTRY_COST) * rows * columns
    small = rows * columns <= KEPT_SHARE * tokens * (rows + columns)
    return small and kept < min(ghost, direct) + tokens * rows * columns


def _direct_is_cheaper(product: Product, lookup: Lookup | None, products: Products) -> bool:
    tokens, rows, columns = *product.left.shape[1:], product.right.shape[2]
    looked_up = 0 if lookup is None else lookup.index.shape[1]
    direct = (tokens + ENTRY_COST) * rows * columns
    ghost = tokens**2 * (rows + columns) + (2 * tokens + looked_up) * looked_up * columns
    return direct < GHOST_COST[products] * ghost


def _parts(product: Product | None, lookup: Lookup | None, *, direct: bool) -> Iterator[slice]:
    """Yields slices of the examples whose temporary matrices stay small."""
    first = product.right if product is not None else lookup.right if lookup is not None else None
    if first is None:
        return
    if direct and product is not None:
        entries = product.left.shape[2] * product.right.shape[2]
    else:
        sizes = [each.right.shape[1] for each in (product, lookup) if each is not None]
        entries = sum(sizes) ** 2
    step = max(1, block_entries(first) // max(1, entries))
    for start in range(0, len(first), step):
        yield slice(start, start + step)


def _slice(
    product: Product | None, lookup: Lookup | None, part: slice
) -> tuple[Product | None, Lookup | None]:
    return (
        None if product is None else Product(product.left[part], product.right[part]),
        None if lookup is None else Lookup(lookup.index[part], lookup.right[part]),
    )


def _direct_squares(product: Product | None, lookup: Lookup | None) -> "torch.Tensor":
    """|Σ_t left_t ⊗ right_t|² from the (B, m, n) products themselves."""
    import torch

    if product is None:
        raise RuntimeError("Expected a product, got a lookup alone.")
    dense = wide_product(product.left.mT, product.right)
    if lookup is not None:
        count, rows, columns = dense.shape
        offsets = torch.arange(count, device=dense.device)[:, None] * rows
        looked_up = lookup.right.reshape(-1, columns).to(dense.dtype)
        places = (lookup.index + offsets).reshape(-1)
        dense.view(count * rows, columns).index_add_(0, places, looked_up)
    return torch.linalg.vector_norm(dense, dim=2).double().square_().sum(dim=1)


def _ghost_squares(
    product: Product | None, lookup: Lookup | None, products: Products
) -> "torch.Tensor":
    """|Σ_t left_t ⊗ right_t|² = Σ_{t,s} ⟨left_t, left_s⟩ ⟨right_t, right_s⟩, lookups included.

    A lookup is a product whose left rows are unit vectors.
    """
    import torch

    squares: torch.Tensor | float = 0.0
    if product is not None:
        left, right = (gram(each, products) for each in (product.left, product.right))
        squares = left.mul_(right).sum(dim=(1, 2), dtype=torch.float64)
    if lookup is not None:
        same = lookup.index[:, :, None] == lookup.index[:, None, :]
        alike = gram(lookup.right, products).mul_(same)
        squares = squares + alike.sum(dim=(1, 2), dtype=torch.float64)
    if product is not None and lookup is not None:
        squares = squares + 2.0 * _cross_terms(product, lookup, products)
    return torch.as_tensor(squares)


def _cross_terms(product: Product, lookup: Lookup, products: Products) -> "torch.Tensor":
    """Σ_{t,s} left[t, index_s] ⟨right_t, looked-up right_s⟩ of each example."""
    import torch

    places = lookup.index[:, None, :].expand(-1, product.left.shape[1], -1)
    chosen = product.left.gather(2, places)
    if products is Products.FLOAT64:
        inner = product.right.double() @ lookup.right.double().mT
    else:
        inner = product.right.float() @ lookup.right.float().mT
    return inner.mul_(chosen).sum(dim=(1, 2), dtype=torch.float64)
