"""Kernels of a CUDA device: attention from one token a row, and root-mean-square norms.

**Attention** Each row's cache is read once, by one program a head group. Products of matrices with
one or two rows reach a fraction of a card's bandwidth, and scores that are written, capped, masked
and normalised in kernels of their own take as long again. Here a program keeps the scores of a
block of columns in registers (Dao et al. 2022, FlashAttention, algorithm 1). Blocks of columns that
a row may not look at are not read, so one graph serves a whole document.

**Norms** One program a row instead of nine kernels: a decoding step of 26 layers has a hundred
norms of a few hundred rows, and what takes long is starting their kernels. Where gradients are
asked for, the model's own code computes.

The arithmetic of a row follows from that row alone, regardless of the others.
"""
# ruff: noqa: ANN001, ANN202, N803, PLR0913  a kernel's arguments have no types, constants capitals

from functools import cache, partial
from importlib.util import find_spec
from typing import Any
from weakref import ref

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
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scaling: float,
    softcap: float | None,
) -> torch.Tensor:
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
    import triton

    rows, heads, _, width = query.shape
    groups, columns = key.shape[1], key.shape[2]
    queries = query.contiguous()
    out = torch.empty_like(queries)
    shared = heads // groups
    with torch.cuda.device_of(query):  # Triton launches on the current device.
        _attention_kernel()[rows, groups](
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
def _attention_kernel() -> Any:
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


_TRIED_ROWS = 3
_WIDEST_NORM = 1 << 14


def fuse_norms(model: Any) -> None:
    """Gives a model's norms on a CUDA device the fused kernel, once; leaves other layers alone.

    A norm is taken for what its class says, and is left alone where the kernel differs from it by
    more than rounding on random rows.
    """
    if find_spec("triton") is None:
        return
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm") and "forward" not in vars(module):
            add = _added_to_weight(module)
            if add is not None:
                module.forward = partial(_fused_norm, ref(module), add)  # no cycle holds weights


def _added_to_weight(module: Any) -> int | None:
    """Whether a norm scales by its weight (0) or by one more (1, Gemma); None: by neither."""
    weight = getattr(module, "weight", None)
    if weight is None or not weight.is_cuda or weight.dim() != 1 or len(weight) > _WIDEST_NORM:
        return None
    if _epsilon(module) is None:
        return None
    rows = torch.randn(_TRIED_ROWS, len(weight), device=weight.device, dtype=weight.dtype)
    with torch.no_grad():
        expected = module(rows).float()
        most = 8 * torch.finfo(weight.dtype).eps * expected.abs().max().clamp_min(1.0)
        for add in (0, 1):
            try:
                found = normalized(rows, weight, _epsilon(module), add).float()
            except Exception:  # noqa: BLE001  no compiler here: the model's own code computes
                return None
            if (found - expected).abs().max() <= most:
                return add
    return None


def _epsilon(module: Any) -> float | None:
    found: float | None = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return found


def _fused_norm(module_of: Any, add: int, rows: torch.Tensor) -> torch.Tensor:
    module = module_of()
    if torch.is_grad_enabled() or not rows.is_cuda or rows.dtype != module.weight.dtype:
        own: torch.Tensor = type(module).forward(module, rows)
        return own
    return normalized(rows, module.weight, _epsilon(module), add)


def normalized(
    rows: torch.Tensor, weight: torch.Tensor, epsilon: float | None, add: int
) -> torch.Tensor:
    """Divides rows (…, d) by their root mean square and scales them by weight + add, (d,)."""
    import triton

    rows = rows.contiguous()
    out, width = torch.empty_like(rows), rows.shape[-1]
    grid = (rows.numel() // width,)
    with torch.cuda.device_of(rows):  # Triton launches on the current device.
        _norm_kernel()[grid](
            rows, weight, out, epsilon, WIDTH=width, BLOCK=triton.next_power_of_2(width), ADD=add
        )
    return out


@cache
def _norm_kernel() -> Any:
    """Defined at the first use: triton comes with builds of PyTorch for CUDA only."""
    import triton
    import triton.language as tl

    @triton.jit
    def normalize(  # type: ignore[no-untyped-def]
        rows, weight, out, epsilon, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr
    ):
        place = tl.arange(0, BLOCK)
        first, inside = tl.program_id(0).to(tl.int64) * WIDTH, place < WIDTH
        stored = tl.load(rows + first + place, mask=inside, other=0.0)
        row = stored.to(tl.float32)
        row = row * (1 / tl.sqrt(tl.sum(row * row, 0) / WIDTH + epsilon))
        scale = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
        if ADD:  # a constant: one branch is compiled
            row *= ADD + scale
        else:
            row = row.to(stored.dtype).to(tl.float32) * scale
        tl.store(out + first + place, row.to(stored.dtype), mask=inside)

    return normalize
