"""One-token attention on a CUDA device: each row's cache is read once, by one program a head group.

Products of matrices with one or two rows reach a fraction of a card's bandwidth, and scores that
are written, capped, masked and normalised in kernels of their own take as long again. Here a
program keeps the scores of a block of columns in registers (Dao et al. 2022, FlashAttention,
algorithm 1). Its arithmetic follows from its own row alone, regardless of the other rows.

Blocks of columns that a row may not look at are not read, so one graph serves a whole document.
"""
# ruff: noqa: ANN001, ANN202, N803, PLR0913  a kernel's arguments have no types, constants capitals

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_LEAST_QUERIES = 16
"""Rows of the smallest matrix that tensor cores multiply."""
_COLUMNS = {2: 64, 4: 32}
"""Columns of a block, by bytes of a number: keys and values of two blocks fit shared memory."""
WIDEST = 256
"""Width of a head at most."""
_HIDDEN = -60_000.0
"""Less than this is added to the score of a column that is hidden, in float16 too."""

_SCANNED = 512
"""Columns of the mask that are looked at together."""


def attend(
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    mask: "torch.Tensor",
    scaling: float,
    softcap: float | None,
) -> "torch.Tensor":
    """Attends from one query a row.

    Args:
        query: (R, H, 1, D).
        key: (R, G, n, D); may be a view of a longer cache.
        value: Same shape.
        mask: (R, 1, 1, n), added to the scores.
        scaling: Factor of the scores.
        softcap: Scores are softcap·tanh(score / softcap); None leaves them as they are.

    Returns:
        (R, H, 1, D).
    """
    import torch
    import triton

    rows, heads, _, width = query.shape
    groups, columns = key.shape[1], key.shape[2]
    queries = query.contiguous()
    out = torch.empty_like(queries)
    shared = heads // groups
    with torch.cuda.device_of(query):  # Triton launches on the current device.
        _kernel()[rows, groups](
            queries, key, value, mask, out, scaling, softcap or 1.0, columns,
            key.stride(0), key.stride(1), key.stride(2),
            value.stride(0), value.stride(1), value.stride(2),
            mask.stride(0), mask.stride(3),
            SHARED=shared,
            QUERIES=max(_LEAST_QUERIES, triton.next_power_of_2(shared)),
            WIDTH=width,
            BLOCK=max(_LEAST_QUERIES, triton.next_power_of_2(width)),
            COLUMNS=_COLUMNS[query.element_size()],
            CAPPED=softcap is not None,
            HIDDEN=_HIDDEN,
            SCANNED=_SCANNED,
            num_warps=4, num_stages=2,
        )  # fmt: skip
    return out


@cache
def _kernel() -> Any:
    """Defined at the first use: triton comes with builds of PyTorch for CUDA only."""
    import triton
    import triton.language as tl

    @triton.jit
    def attend_row(  # type: ignore[no-untyped-def]
        query, key, value, mask, out, scaling, softcap, columns,
        key_row, key_group, key_column, value_row, value_group, value_column, mask_row, mask_column,
        SHARED: tl.constexpr, QUERIES: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
        COLUMNS: tl.constexpr, CAPPED: tl.constexpr, HIDDEN: tl.constexpr, SCANNED: tl.constexpr,
    ):  # fmt: skip
        row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
        own, depth = tl.arange(0, QUERIES), tl.arange(0, BLOCK)
        first = (row * tl.num_programs(1) + group) * SHARED  # its queries lie side by side
        places = (first + own[:, None]) * WIDTH + depth[None, :]
        real = (own[:, None] < SHARED) & (depth[None, :] < WIDTH)
        asked = tl.load(query + places, mask=real, other=0.0)
        keys = key + row * key_row + group * key_group
        values = value + row * value_row + group * value_group
        largest = tl.full([QUERIES], float("-inf"), tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        attended = tl.zeros([QUERIES, BLOCK], tl.float32)
        begin, end = columns, 0  # of what the row may look at
        for start in range(0, columns, SCANNED):
            column = start + tl.arange(0, SCANNED)
            added = tl.load(
                mask + row * mask_row + column * mask_column,
                mask=column < columns, other=float("-inf"),
            )  # fmt: skip
            seen = added.to(tl.float32) > HIDDEN
            begin = tl.minimum(begin, tl.min(tl.where(seen, column, columns), 0))
            end = tl.maximum(end, tl.max(tl.where(seen, column + 1, 0), 0))
        for start in range(begin // COLUMNS * COLUMNS, end, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            inside = column < end
            added = tl.load(
                mask + row * mask_row + column * mask_column, mask=inside, other=float("-inf")
            )
            block = tl.load(
                keys + column[None, :] * key_column + depth[:, None],
                mask=inside[None, :] & (depth[:, None] < WIDTH), other=0.0,
            )  # fmt: skip
            scores = tl.dot(asked, block, input_precision="ieee") * scaling
            if CAPPED:
                scores = softcap * (2 * tl.sigmoid(2 * scores / softcap) - 1)
            scores += added.to(tl.float32)[None, :]
            higher = tl.maximum(largest, tl.max(scores, 1))
            weights = tl.exp(scores - higher[:, None])
            kept = tl.exp(largest - higher)
            total = total * kept + tl.sum(weights, 1)
            block = tl.load(
                values + column[:, None] * value_column + depth[None, :],
                mask=inside[:, None] & (depth[None, :] < WIDTH), other=0.0,
            )  # fmt: skip
            summed = tl.dot(weights.to(block.dtype), block, input_precision="ieee")
            attended = attended * kept[:, None] + summed
            largest = higher
        result = (attended / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + places, result, mask=real)

    return attend_row
