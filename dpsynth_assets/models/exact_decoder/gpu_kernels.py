"""Triton kernels of the exact decoder on a CUDA device; imported only where one is used.

Every program computes one row, head or block of queries, in blocks of a size that follows the model
alone, and no argument that varies with the rows at hand is compiled in. Sums over columns are of
integers. Products and sums of floats are not contracted (`OPTIONS`), so that two kernels, and two
block sizes of one, round alike.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ERA001, N803, N806, PLR0913

import triton
import triton.language as tl

OPTIONS = {"enable_fp_fusion": False}
COLUMNS = tl.constexpr(64)
"""Columns of keys and values that are read at a time."""
_MAGIC = tl.constexpr(12_582_912.0)
_MAGIC_BITS = tl.constexpr(1_262_485_504)
"""1.5 * 2^23, and its bits: a float to which it is added is rounded, in its low bits."""
_SMALLEST = tl.constexpr(1e-30)
_LIMIT = tl.constexpr(127.0)
_UNIT = tl.constexpr(16_777_216.0)
"""2^24: the shares of a softmax are summed in units of its inverse, 64 of which fit 31 bits."""
_FINER = tl.constexpr(16.0)
"""Weights of values are this much finer than `WEIGHT_TOTAL`: below 2^21, three digits of 7 bits."""


@triton.jit
def _rounded(x):
    """Nearest integers of |x| < 2^22, int32."""
    return (x + _MAGIC).to(tl.int32, bitcast=True) - _MAGIC_BITS


@triton.jit
def _round_row(x, out, t, i, N: tl.constexpr):
    """Stores a row as integers in [-127, 127], zeros behind it; returns its largest magnitude."""
    largest = tl.maximum(tl.max(tl.abs(x), 0), _SMALLEST)
    tl.store(out + t * N + i, _rounded(x * (_LIMIT / largest)).to(tl.int8), mask=i < N)
    return largest


@triton.jit
def add_norm_round(
    stream, sums, channels, scales, balance, out, out_scales, epsilon,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """Adds a product to a row of the stream, if any; normalises and rounds the row."""
    t = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    inside = i < WIDTH
    x = tl.load(stream + t * WIDTH + i, mask=inside, other=0.0)
    if ADDS:
        added = tl.load(sums + t * PADDED + i, mask=inside, other=0).to(tl.float32)
        added = added * tl.load(channels + i, mask=inside, other=0.0)
        x = x + added * tl.load(scales + t)
        tl.store(stream + t * WIDTH + i, x, mask=inside)
    length = tl.sum(x * x, 0) + epsilon
    x = x * tl.load(balance + i, mask=inside, other=0.0)
    largest = _round_row(x, out, t, i, PADDED)
    tl.store(out_scales + t, largest / tl.sqrt(length))


@triton.jit
def round_rows(x, out, scales, WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr):
    """Rounds a row to integers and keeps its largest magnitude."""
    t = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    row = tl.load(x + t * WIDTH + i, mask=i < WIDTH, other=0.0)
    tl.store(scales + t, _round_row(row, out, t, i, PADDED))


@triton.jit
def gate_round(
    sums, channels, scales, out, out_scales,
    HIDDEN: tl.constexpr, STRIDE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up of a row, rounded; the row's scale of `up` joins that of the rounding."""
    t = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    inside = i < HIDDEN
    scale = tl.load(scales + t)
    gate = tl.load(sums + t * STRIDE + i, mask=inside, other=0).to(tl.float32)
    gate = gate * tl.load(channels + i, mask=inside, other=0.0) * scale
    up = tl.load(sums + t * STRIDE + HIDDEN + i, mask=inside, other=0).to(tl.float32)
    up = up * tl.load(channels + HIDDEN + i, mask=inside, other=0.0)
    hidden = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_scales + t, _round_row(hidden, out, t, i, PADDED) * scale)


@triton.jit
def scale_sums(
    sums, channels, scales, out, N: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr
):
    """Turns sums of a product into floats."""
    t = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(sums + t * STRIDE + i, mask=i < N, other=0).to(tl.float32)
    x = x * tl.load(channels + i, mask=i < N, other=0.0) * tl.load(scales + t)
    tl.store(out + t * N + i, x, mask=i < N)


@triton.jit(do_not_specialize=["blocks"])
def turn_round_store(
    sums, channels, scales, cosines, sines, limits, head_scales, scale_limits, positions, rows,
    queries, query_scales, keys, values, stored_scales, blocks,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, DEPTH: tl.constexpr, STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One head of one token: turned by its position and rounded; keys and values are cached.

    Queries are stored as two digits, high * 64 + low, of 8 bits each.
    """
    t = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1)
    columns = blocks * COLUMNS
    position, row = tl.load(positions + t), tl.load(rows + t)
    d = tl.arange(0, BLOCK)
    inside = d < DEPTH
    scale = tl.load(scales + t)
    own = j * DEPTH + d
    x = tl.load(sums + t * STRIDE + own, mask=inside, other=0).to(tl.float32)
    x = x * tl.load(channels + own, mask=inside, other=0.0) * scale
    if j < HEADS + GROUPS:
        other = j * DEPTH + (d + DEPTH // 2) % DEPTH
        y = tl.load(sums + t * STRIDE + other, mask=inside, other=0).to(tl.float32)
        y = y * tl.load(channels + other, mask=inside, other=0.0) * scale
        angle = position * DEPTH + d
        x = x * tl.load(cosines + angle, mask=inside, other=0.0)
        x = x + y * tl.load(sines + angle, mask=inside, other=0.0)
    largest = tl.maximum(tl.max(tl.abs(x), 0), _SMALLEST)
    n = _rounded(x * (tl.load(limits + j) / largest))
    head_scale = tl.minimum(largest * tl.load(head_scales + j), tl.load(scale_limits + j))
    if j < HEADS:
        high = (n + 32) >> 6
        place = queries + (t * HEADS + j) * 2 * DEPTH + d
        tl.store(place, high.to(tl.int8), mask=inside)
        tl.store(place + DEPTH, (n - high * 64).to(tl.int8), mask=inside)
        tl.store(query_scales + t * HEADS + j, head_scale)
    else:
        kind = (j - HEADS) // GROUPS
        group = (j - HEADS) % GROUPS
        base = (row * GROUPS + group) * DEPTH * columns
        if kind == 0:
            tl.store(keys + base + position * DEPTH + d, n.to(tl.int8), mask=inside)
        else:
            tl.store(values + base + d * columns + position, n.to(tl.int8), mask=inside)
        tl.store(
            stored_scales + ((row * 2 + kind) * GROUPS + group) * columns + position, head_scale
        )


@triton.jit
def _scores(
    high, low, scale, keys, key_scales, c, position, DEPTH: tl.constexpr, DEEP: tl.constexpr
):
    """Scores of queries (M, DEEP) and columns c (COLUMNS,); minus infinity where hidden."""
    d = tl.arange(0, DEEP)
    # (DEEP, COLUMNS)
    key = tl.load(keys + c[None, :] * DEPTH + d[:, None], mask=(d < DEPTH)[:, None], other=0)
    dots = tl.dot(high, key, out_dtype=tl.int32) * 64 + tl.dot(low, key, out_dtype=tl.int32)
    scores = dots.to(tl.float32) * tl.load(key_scales + c)[None, :] * scale[:, None]
    return tl.where(c[None, :] <= position[:, None], scores, float("-inf"))


@triton.jit(do_not_specialize=["blocks"])
def attend(
    queries, query_scales, keys, values, stored_scales, positions, starts, counts, owners, out,
    blocks,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, DEPTH: tl.constexpr, DEEP: tl.constexpr,
    TOKENS: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Attention of up to TOKENS consecutive tokens of a row, for the heads that share a group.

    Two walks over the columns: the largest score, then shares of the softmax in units of 2^-24 and
    values weighted by integers of three digits, whose sums are exact.
    """
    i, group = tl.program_id(0), tl.program_id(1)
    start, count, row = tl.load(starts + i), tl.load(counts + i), tl.load(owners + i)
    columns = blocks * COLUMNS
    m = tl.arange(0, TOKENS * SHARED)
    PER_GROUP: tl.constexpr = HEADS // GROUPS
    live = (m // SHARED < count) & (m % SHARED < PER_GROUP)
    head = (start + m // SHARED) * HEADS + group * PER_GROUP + m % SHARED
    d = tl.arange(0, DEEP)
    real = live[:, None] & (d < DEPTH)[None, :]
    place = queries + head[:, None] * 2 * DEPTH + d[None, :]
    high = tl.load(place, mask=real, other=0)
    low = tl.load(place + DEPTH, mask=real, other=0)
    scale = tl.load(query_scales + head, mask=live, other=0.0)
    position = tl.load(positions + start + m // SHARED, mask=live, other=0)
    last = tl.load(positions + start + count - 1)
    seen = (last // COLUMNS + 1).to(tl.int32)
    keys += (row * GROUPS + group) * DEPTH * columns
    values += (row * GROUPS + group) * DEPTH * columns
    key_scales = stored_scales + (row * 2 * GROUPS + group) * columns
    value_scales = key_scales + GROUPS * columns
    top = tl.full([TOKENS * SHARED], float("-inf"), tl.float32)
    for block in range(seen):
        c = block * COLUMNS + tl.arange(0, COLUMNS)
        scores = _scores(high, low, scale, keys, key_scales, c, position, DEPTH, DEEP)
        top = tl.maximum(top, tl.max(scores, 1))
    total = tl.zeros([TOKENS * SHARED], tl.int64)
    sums_0 = tl.zeros([TOKENS * SHARED, DEEP], tl.int32)
    sums_1 = tl.zeros([TOKENS * SHARED, DEEP], tl.int32)
    sums_2 = tl.zeros([TOKENS * SHARED, DEEP], tl.int32)
    for block in range(seen):
        c = block * COLUMNS + tl.arange(0, COLUMNS)
        scores = _scores(high, low, scale, keys, key_scales, c, position, DEPTH, DEEP)
        share = tl.exp(scores - top[:, None])
        total += tl.sum((share * _UNIT).to(tl.int32), 1).to(tl.int64)
        weight = (share * tl.load(value_scales + c)[None, :] * _FINER + 0.5).to(tl.int32)
        # (COLUMNS, DEEP)
        value = tl.load(
            values + d[None, :] * columns + c[:, None], mask=(d < DEPTH)[None, :], other=0
        )
        sums_0 += tl.dot((weight & 127).to(tl.int8), value, out_dtype=tl.int32)
        sums_1 += tl.dot(((weight >> 7) & 127).to(tl.int8), value, out_dtype=tl.int32)
        sums_2 += tl.dot((weight >> 14).to(tl.int8), value, out_dtype=tl.int32)
    summed = sums_0.to(tl.float32) + sums_1.to(tl.float32) * 128.0
    summed = summed + sums_2.to(tl.float32) * 16384.0
    shares = total.to(tl.float32) * (_FINER / _UNIT)
    tl.store(out + head[:, None] * DEPTH + d[None, :], summed / shares[:, None], mask=real)
