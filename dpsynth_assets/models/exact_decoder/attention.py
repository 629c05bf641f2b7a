"""Exact attention over cached keys and values: integer sums below 2^24.

Every row has columns of a public constant count. Scores multiply 12-bit queries by 8-bit keys, and
64 such products stay below 2^24. The weights of a softmax, times the scales of the values they
belong to, are rounded to integers that add up to less than 2^24 / 127. So a product of matrices
gives the same bits in any order a kernel adds, and columns that are masked, whose weight is
exactly zero, may be many or few.

A step has one query a head, and a product of so few rows costs more to set up than to compute.
Where it is faster, a step adds up weighted rows of bytes instead, which PyTorch does for tables of
embeddings ("bags"): the channels of a row's keys for scores, the columns of its values after them.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache as computed_once
from typing import TYPE_CHECKING, NamedTuple

import torch

from dpsynth_assets.models.exact_decoder.integer_products import EXACT_INTEGERS, LIMIT, ZERO_POINT

if TYPE_CHECKING:
    from dpsynth_assets.models.exact_decoder.weights import LlamaShape

COLUMN_MULTIPLE = 64
"""Attention reads a multiple of this many columns: whole vectors of every kernel."""
TAIL = 8
"""Bytes after each row of a table: its scale 1 and its bias -128, float32."""


def whole_columns(columns: int) -> int:
    """Rounds a number of columns up to what attention reads."""
    return -(-columns // COLUMN_MULTIPLE) * COLUMN_MULTIPLE


class Stored(NamedTuple):
    """Keys and values of one layer: bytes with 128 added, rows with the tail of a table.

    Attributes:
        keys: (R, G, D, C + 8) uint8.
        values: (R, G, C, D + 8) uint8.
        scales: (R, 2, G, C) float32, of keys and values.
    """

    keys: torch.Tensor
    values: torch.Tensor
    scales: torch.Tensor

    def first(self, columns: int) -> "Stored":
        """Views of the first columns."""
        return Stored(
            self.keys[..., :columns], self.values[:, :, :columns], self.scales[..., :columns]
        )


class KeyValueCache:
    """Integers and scales of keys and values, layer by layer.

    A key or value of one token and head is 8-bit integers times one scale. Columns behind a row's
    position are never attended to.

    Attributes:
        rows: R contexts.
        columns: C of each, all of which attention reads.
        layers: L layers.
    """

    def __init__(self, shape: "LlamaShape", *, rows: int, columns: int) -> None:
        """Makes room for `rows` contexts of `columns` tokens: some 2 L G (D + 8) bytes a token."""
        self.rows, self.columns, self._shape = rows, whole_columns(columns), shape
        self.layers = [self._empty() for _ in range(shape.layers)]

    def _empty(self) -> Stored:
        rows, groups, depth = self.rows, self._shape.groups, self._shape.depth
        tail = torch.tensor([1.0, -ZERO_POINT]).view(torch.uint8)
        keys = torch.zeros((rows, groups, depth, self.columns + TAIL), dtype=torch.uint8)
        values = torch.zeros((rows, groups, self.columns, depth + TAIL), dtype=torch.uint8)
        keys[..., -TAIL:] = values[..., -TAIL:] = tail
        return Stored(keys, values, torch.zeros((rows, 2, groups, self.columns)))

    def widen(self, columns: int) -> None:
        """Makes room for this many columns, layer by layer, where there is less."""
        before, self.columns = self.columns, max(self.columns, whole_columns(columns))
        if self.columns > before:
            for index, stored in enumerate(self.layers):
                self.layers[index] = self._empty()
                views = zip(stored.first(before), self.layers[index].first(before), strict=True)
                for read, written in views:
                    written.copy_(read)

    def write(
        self,
        layer: int,
        rows: torch.Tensor,
        positions: torch.Tensor,
        integers: torch.Tensor,
        scales: torch.Tensor,
    ) -> None:
        """Stores T tokens of `rows` at `positions`, (T,) each.

        Args:
            layer: Which layer's.
            rows: Row of the cache of each token.
            positions: Its column.
            integers: Bytes (T, 2G, D), keys before values.
            scales: (T, 2G).
        """
        own, groups, depth = self.layers[layer], self._shape.groups, self._shape.depth
        own.keys[rows, :, :, positions] = integers[:, :groups]
        own.values[rows, :, positions, :depth] = integers[:, groups:]
        own.scales[rows, :, :, positions] = scales.view(-1, 2, groups)

    def copy_prefix(self, read: "KeyValueCache", source: int, rows: slice, columns: int) -> None:
        """Copies the first columns of one row of a cache to rows of this one, in every layer."""
        for own, other in zip(self.layers, read.layers, strict=True):
            for written, stored in zip(own.first(columns), other.first(columns), strict=True):
                written[rows] = stored[source : source + 1].clone()

    def keep(self, rows: Sequence[int]) -> None:
        """Drops every row but these, in this order; one layer at a time, so the peak is one."""
        self.rows = len(rows)
        for layer, stored in enumerate(self.layers):
            index = torch.tensor(rows, dtype=torch.long, device=stored.scales.device)
            self.layers[layer] = type(stored)(*(each.index_select(0, index) for each in stored))


WEIGHT_TOTAL = 120_000
"""Integer weights of one query add up to this at most, besides rounding by half a unit each."""
MOST_COLUMNS = 2 * ((EXACT_INTEGERS - WEIGHT_TOTAL) // LIMIT - WEIGHT_TOTAL)
"""Columns for which that rounding cannot lead beyond 2^24, a bias of -128 in front: 22,316."""
_FLOATS = 2**17
"""Keys or values that are turned into floats at a time: half a megabyte stays in the cache."""


def query_limit(depth: int) -> int:
    """Largest integer of a query: `depth` products with a key's, and one bias, stay below 2^24."""
    return min(2047, EXACT_INTEGERS // (LIMIT * depth + 1))


class Bags(NamedTuple):
    """Rows of the tables that a step's queries add up, one line a query of a row and head.

    Attributes:
        keys: (B * H, D) int32.
        values: (B * H, C) int32.
    """

    keys: torch.Tensor
    values: torch.Tensor

    @classmethod
    def of(cls, shape: "LlamaShape", rows: int, columns: int) -> "Bags":
        """Bags of one query in each of B rows."""
        heads = torch.arange(rows * shape.heads, dtype=torch.int32)[:, None]
        tables = heads // (shape.heads // shape.groups)
        return cls(
            *(tables * n + torch.arange(n, dtype=torch.int32) for n in (shape.depth, columns))
        )


@dataclass(frozen=True)
class Window:
    """The rows and columns that the queries of a pass look at.

    Attributes:
        rows: B rows of the cache, a slice.
        columns: Columns that are read, a multiple of 64.
        queries: n, queries of a row.
        mask: (B, 1, n, columns): 0 where a query may look, else minus infinity.
        bags: What one query a row adds up; None where matrices are multiplied.
    """

    rows: slice
    columns: int
    queries: int
    mask: torch.Tensor
    bags: Bags | None = None

    @classmethod
    def of(
        cls, shape: "LlamaShape", cache: KeyValueCache, rows: slice, positions: torch.Tensor
    ) -> "Window":
        """Lets each query, at `positions` (B, n), look at its own column and those before."""
        if positions.shape[1] > 1 or not _bags_pay(shape):
            return cls._of(rows, whole_columns(int(positions.max()) + 1), positions)
        bags = Bags.of(shape, len(positions), cache.columns)
        return replace(cls._of(rows, cache.columns, positions), bags=bags)

    @classmethod
    def _of(cls, rows: slice, columns: int, positions: torch.Tensor) -> "Window":
        hidden = torch.arange(columns) > positions[:, None, :, None]
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
        return cls(rows, columns, positions.shape[1], mask)


def attend(
    shape: "LlamaShape",
    cache: KeyValueCache,
    layer: int,
    window: Window,
    queries: torch.Tensor,
    scales: torch.Tensor,
) -> torch.Tensor:
    """Attends from n queries in each of B rows.

    Args:
        shape: Numbers of the model.
        cache: Keys and values, those of the queries' own tokens included.
        layer: Which layer's.
        window: What the queries see.
        queries: Integers as float32, (B, n, H, D).
        scales: Scales of the queries, 1/sqrt(D) included, (B, n, H).

    Returns:
        (B, n, H * D) float32, in units of the layer's value scale.
    """
    rows, count, heads, depth = queries.shape
    groups, columns = shape.groups, window.columns
    stored = Stored(*(each[window.rows] for each in cache.layers[layer]))
    by_group = queries.transpose(1, 2).reshape(rows, groups, -1, depth)
    own = stored.scales[:, :, :, None, :columns]  # (B, 2, G, 1, columns)
    scores = _scores(stored.keys, window, by_group).mul_(own[:, 0])
    per_head = scores.view(rows, heads, count, columns)
    by_query = scales.transpose(1, 2)[..., None]
    torch.addcmul(window.mask, per_head, by_query, out=per_head)
    weights = torch.softmax(per_head, -1).view(scores.shape).mul_(own[:, 1]).round_()
    attended = _sums(stored.values, window, weights).view(rows, heads, count, depth)
    return attended.transpose(1, 2).reshape(rows, count, heads * depth)


def _scores(keys: torch.Tensor, window: Window, queries: torch.Tensor) -> torch.Tensor:
    """Products of queries (B, G, m, D) and keys, (B, G, m, columns)."""
    if window.bags is not None:
        return _bagged(keys, window.bags.keys, queries)
    return _multiplied(queries, keys[..., : window.columns])


def _sums(values: torch.Tensor, window: Window, weights: torch.Tensor) -> torch.Tensor:
    """Values weighted by (B, G, m, columns), (B, G, m, D)."""
    if window.bags is not None:
        return _bagged(values, window.bags.values, weights)
    return _multiplied(weights, values[:, :, : window.columns, :-TAIL])


def _bagged(table: torch.Tensor, bags: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Adds up weighted rows (B, G, k, j + 8): weights (B, G, m, k) to (B, G, m, j)."""
    sums = torch.ops.quantized.embedding_bag_byte_rowwise_offsets(
        table.view(-1, table.shape[-1]), bags, None, False, 0, False, weights.reshape(bags.shape)
    )
    return sums.view(*weights.shape[:-1], -1)


def _multiplied(left: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    """Multiplies (B, G, m, k) by bytes (B, G, k, j), few rows at a time: (B, G, m, j)."""
    rows, groups, inner, outer = stored.shape
    out = torch.empty((*left.shape[:-1], outer))
    step = max(1, _FLOATS // (groups * inner * outer))
    buffer = torch.empty((min(step, rows), *stored.shape[1:]))
    for start in range(0, rows, step):
        part = slice(start, start + step)
        floats = buffer[: rows - start].copy_(stored[part]).sub_(ZERO_POINT)
        torch.bmm(left[part].flatten(0, 1), floats.flatten(0, 1), out=out[part].flatten(0, 1))
    return out


_TRIED_ROWS, _TRIED_COLUMNS, _REPETITIONS = 8, 128, 3


@computed_once
def _bags_pay(shape: "LlamaShape") -> bool:
    """Whether bags give the bits of matrices here, and sooner; tried once a process."""
    generator = torch.Generator().manual_seed(0)
    cache = KeyValueCache(replace(shape, layers=1), rows=_TRIED_ROWS, columns=_TRIED_COLUMNS)
    keys, values, scales = cache.layers[0]
    keys[..., :-TAIL].random_(1, 256, generator=generator)
    values[..., :-TAIL].random_(1, 256, generator=generator)
    keys[0, ..., :-TAIL] = values[0, ..., :-TAIL] = ZERO_POINT + LIMIT  # the largest sums
    scales[:, 0], scales[:, 1] = 1e-6, WEIGHT_TOTAL
    limit = query_limit(shape.depth)
    queries = torch.randint(
        -limit, limit + 1, (_TRIED_ROWS, 1, shape.heads, shape.depth), generator=generator
    ).float()
    queries[0] = limit
    window = Window._of(slice(None), cache.columns, torch.full((_TRIED_ROWS, 1), cache.columns - 9))
    bags = replace(window, bags=Bags.of(shape, _TRIED_ROWS, cache.columns))

    def timed(own: Window) -> tuple[float, torch.Tensor]:
        started = time.perf_counter()
        out = attend(shape, cache, 0, own, queries, torch.full(queries.shape[:3], 0.01))
        return time.perf_counter() - started, out

    try:
        by_matrices, by_bags = ([timed(own) for _ in range(_REPETITIONS)] for own in (window, bags))
    except (RuntimeError, AttributeError):  # An operation that this build of PyTorch lacks.
        return False
    if not torch.equal(by_bags[0][1], by_matrices[0][1]):
        return False
    return min(seconds for seconds, _ in by_bags) < min(seconds for seconds, _ in by_matrices)
