"""Exact attention over cached keys and values: 8 bits a number, integer sums below 2^24.

Every row has columns of a public constant count. Scores multiply 12-bit queries by 8-bit keys, and
64 such products stay below 2^24. The weights of a softmax, times the scales of the values they
belong to, are rounded to integers that add up to less than 2^24 / 127. So a product of matrices
gives the same bits in whatever order a kernel adds, and columns that are masked, whose weight is
exactly zero, may be many or few.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpsynth_assets.models.exact_decoder.integer_products import EXACT_INTEGERS, LIMIT

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.models.exact_decoder.shapes import LlamaShape


COLUMN_MULTIPLE = 32
"""Attention reads a multiple of this many columns: whole vectors of every kernel."""


def whole_columns(columns: int) -> int:
    """Rounds a number of columns up to what attention reads."""
    return -(-columns // COLUMN_MULTIPLE) * COLUMN_MULTIPLE


class KeyValueCache:
    """Integers and scales of keys (kind 0) and values (kind 1), layer by layer.

    A key or value of one token and head is 8-bit integers times one scale. Columns behind a row's
    position are never attended to.

    Attributes:
        integers: L tensors (R, 2, G, C, D), int8.
        scales: L tensors (R, 2, G, C), float32.
    """

    def __init__(self, shape: "LlamaShape", *, rows: int, columns: int) -> None:
        """Makes room for `rows` contexts of `columns` tokens: 2 L G (D + 4) bytes a token."""
        import torch

        self.rows, self.columns = rows, whole_columns(columns)
        sizes = (rows, 2, shape.groups, self.columns)
        self.integers = [
            torch.zeros((*sizes, shape.depth), dtype=torch.int8) for _ in range(shape.layers)
        ]
        self.scales = [torch.zeros(sizes) for _ in range(shape.layers)]

    def slots(self, rows: "torch.Tensor", positions: "torch.Tensor") -> "torch.Tensor":
        """Places of T tokens' keys and values in a layer's flat tensors: (T * 2 * G,) int64."""
        import torch

        kinds = 2 * self.integers[0].shape[2]
        heads = rows[:, None] * kinds + torch.arange(kinds)
        return (heads * self.columns + positions[:, None]).reshape(-1)

    def write(
        self, layer: int, slots: "torch.Tensor", integers: "torch.Tensor", scales: "torch.Tensor"
    ) -> None:
        """Stores T tokens: integers (T, 2G, D) int8 and scales (T, 2G), keys before values."""
        depth = integers.shape[-1]
        self.integers[layer].view(-1, depth).index_copy_(0, slots, integers.view(-1, depth))
        self.scales[layer].view(-1).index_copy_(0, slots, scales.reshape(-1))

    def copy_prefix(self, source: int, rows: slice, columns: int) -> None:
        """Copies the first columns of one row to other rows, in every layer."""
        for stored in (*self.integers, *self.scales):
            stored[rows, :, :, :columns] = stored[source : source + 1, :, :, :columns].clone()

    def begin_with(self, prefix: "KeyValueCache", columns: int) -> None:
        """Copies the first columns of another cache of one row to every row."""
        for own, read in zip(
            (*self.integers, *self.scales), (*prefix.integers, *prefix.scales), strict=True
        ):
            own[:, :, :, :columns] = read[:, :, :, :columns]

    def keep(self, rows: Sequence[int]) -> None:
        """Drops every row but these, in this order; one layer at a time, so the peak is one."""
        import torch

        index = torch.tensor(rows, dtype=torch.long)
        self.rows = len(index)
        for stored in (self.integers, self.scales):
            for layer in range(len(stored)):
                stored[layer] = stored[layer].index_select(0, index)


WEIGHT_TOTAL = 120_000
"""Integer weights of one query add up to this at most, besides rounding by half a unit each."""
MOST_COLUMNS = 2 * (EXACT_INTEGERS // LIMIT - WEIGHT_TOTAL)
"""Columns for which that rounding cannot lead beyond 2^24 / 127: 24,208."""
_FLOATS = 2**17
"""Keys or values that are turned into floats at a time: half a megabyte stays in the cache."""


def query_limit(depth: int) -> int:
    """Largest integer of a query: `depth` products with a key's stay below 2^24."""
    return min(2047, EXACT_INTEGERS // (LIMIT * depth))


@dataclass(frozen=True)
class Window:
    """The rows and columns that the queries of a pass look at.

    Attributes:
        rows: B rows of the cache, a slice.
        columns: Columns that are read, a multiple of 32.
        queries: n, queries of a row.
        mask: (B, 1, n, columns): 0 where a query may look, else minus infinity.
    """

    rows: slice
    columns: int
    queries: int
    mask: "torch.Tensor"

    @classmethod
    def of(cls, rows: slice, columns: int, positions: "torch.Tensor") -> "Window":
        """Lets each query, at `positions` (B, n), look at its own column and those before."""
        import torch

        hidden = torch.arange(columns) > positions[:, None, :, None]
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
        return cls(rows, columns, positions.shape[1], mask)


def attend(
    shape: "LlamaShape",
    cache: "KeyValueCache",
    layer: int,
    window: Window,
    queries: "torch.Tensor",
    scales: "torch.Tensor",
) -> "torch.Tensor":
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
    import torch

    rows, count, heads, depth = queries.shape
    groups, columns = shape.groups, window.columns
    own = cache.scales[layer][window.rows, :, :, None, :columns]  # (B, 2, G, 1, columns)
    by_group = queries.transpose(1, 2).reshape(rows * groups, -1, depth)
    scores = torch.empty((rows * groups, by_group.shape[1], columns))
    for part, keys in _floats(cache, layer, 0, window):
        torch.bmm(by_group[part], keys.transpose(1, 2), out=scores[part])
    per_group = scores.view(rows, groups, -1, columns).mul_(own[:, 0])
    per_head = per_group.view(rows, heads, count, columns)
    per_head.mul_(scales.transpose(1, 2)[..., None]).add_(window.mask)
    weights = torch.softmax(per_head, -1).view(per_group.shape).mul_(own[:, 1]).round_()
    weights = weights.view(scores.shape)
    attended = torch.empty(by_group.shape)
    for part, values in _floats(cache, layer, 1, window):
        torch.bmm(weights[part], values, out=attended[part])
    by_head = attended.view(rows, heads, count, depth)
    return by_head.transpose(1, 2).reshape(rows, count, heads * depth)


def _floats(
    cache: "KeyValueCache", layer: int, kind: int, window: Window
) -> "Iterator[tuple[slice, torch.Tensor]]":
    """Yields keys (kind 0) or values (kind 1) as floats, few rows at a time, and where they are."""
    import torch

    integers = cache.integers[layer][window.rows, kind, :, : window.columns]
    rows, groups = integers.shape[:2]
    step = max(1, _FLOATS // integers[0].numel())
    buffer = torch.empty((min(step, rows), *integers.shape[1:]))
    for start in range(0, rows, step):
        part = integers[start : start + step]
        floats = buffer[: len(part)].copy_(part)
        yield (
            slice(start * groups, (start + len(part)) * groups),
            floats.view(-1, *floats.shape[2:]),
        )
