"""The logit clip of both papers, on a lattice of float32: re-centre to maximum c, floor at −c.

Shape letters: R rows (prompts), n rows of one batch, V vocabulary, A allowed tokens, C tokens of
one block. Works in blocks, so that no float64 copy of an (R, V) tensor ever exists.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

BLOCK_ENTRIES = 1 << 23
"""Logits worked on at a time: few kernel launches for a vocabulary of 256,000."""

DEVICE_ENTRIES = 1 << 26
"""The same on a CUDA device: 256 contexts of that vocabulary at once, in half a gigabyte."""

CACHED_ENTRIES = 1 << 17
"""The same on a CPU: two blocks of 512 KiB stay in a core's own cache between operations."""

ROWS_PER_SUM = 128
"""Rows whose lattice units are added in int32: 128 times 2^23 stays below 2^31."""


def clip_logits(logits: np.ndarray, clip_bound: float) -> np.ndarray:
    """Clips each row: clip_c(z)_i = max(−c, z_i − max_j z_j + c), on the lattice.

    The NumPy form of what the mechanisms compute, to the last bit: see `ClipLattice`.

    Args:
        logits: (..., V).
        clip_bound: c > 0.

    Returns:
        (..., V) float64 in [−c, c]; a row without a finite maximum becomes 0, and NaN cannot
        spread.

    **Privacy** A function of one row alone, hence of one record alone.

    **Source** Amin et al. 2024, Eq. (1); Amin et al. 2025, below Eq. (1).
    """
    lattice = ClipLattice(float(clip_bound))
    logits = np.asarray(logits, dtype=np.float64)
    maximum = logits.max(axis=-1, keepdims=True)
    usable = np.isfinite(maximum)
    with np.errstate(over="ignore"):
        shift = np.where(usable, lattice.highest - maximum, 0.0).astype(np.float32)
        placed = np.where(usable, logits, 0.0).astype(np.float32) + shift
    placed = np.clip(placed, lattice.lowest, lattice.highest).astype(np.float64)
    return np.where(usable, placed - lattice.lowest - clip_bound, 0.0)


def block_columns(rows: int, device: str | None = None) -> int:
    """Tokens of one block for `rows` rows on a type of device; see `block_entries`."""
    return max(1, block_entries(device) // max(1, rows))


def block_entries(device: str | None = None) -> int:
    """Logits of one block on a type of device; without one, of any but a CUDA device."""
    if device == "cuda":
        return DEVICE_ENTRIES
    return min(BLOCK_ENTRIES, CACHED_ENTRIES) if device == "cpu" else BLOCK_ENTRIES


def column_blocks(
    private_logits: "torch.Tensor", allowed: "torch.Tensor | None"
) -> Iterator[tuple[slice, "torch.Tensor"]]:
    """Yields (slice into the A allowed tokens, (n, C) logits as stored) block by block.

    Args:
        private_logits: (n, V) of any floating type.
        allowed: (A,) int64 token ids, or None for all V tokens, whose blocks are views.
    """
    tokens = private_logits.shape[1] if allowed is None else len(allowed)
    width = block_columns(len(private_logits), private_logits.device.type)
    for start in range(0, tokens, width):
        part = slice(start, min(start + width, tokens))
        if allowed is None:
            yield part, private_logits[:, part]
        else:
            yield part, private_logits.index_select(1, allowed[part])


def usable_rows(
    private_logits: "torch.Tensor",
    allowed: "torch.Tensor | None",
    rows: "torch.Tensor | slice",
) -> Iterator[tuple["torch.Tensor", "torch.Tensor"]]:
    """Yields ((n, A) logits as stored, (n,) float64 maxima) of a batch's rows, some at a time.

    Rows with NaN or without a finite maximum over the allowed tokens are left out. Blocks of a
    slice of rows are views; nothing may write into them.

    Args:
        private_logits: (R, V) of any floating type.
        allowed: (A,) int64 token ids, or None for all V tokens.
        rows: (n,) int64 rows to take, or a slice of rows.
    """
    import torch

    for block in row_blocks(private_logits, allowed, rows):
        maximum = block.amax(dim=1).to(torch.float64)
        usable = torch.isfinite(maximum)
        if bool(usable.all()):
            yield block, maximum
        elif bool(usable.any()):
            yield block[usable], maximum[usable]


def row_blocks(
    private_logits: "torch.Tensor",
    allowed: "torch.Tensor | None",
    rows: "torch.Tensor | slice",
) -> "Iterator[torch.Tensor]":
    """Yields (n, A) logits as stored: whole rows, as many as make a block."""
    tokens = private_logits.shape[1] if allowed is None else len(allowed)
    count = max(1, block_entries(private_logits.device.type) // max(1, tokens))
    if isinstance(rows, slice):
        blocks = iter(private_logits[rows].split(count))
    else:
        blocks = (private_logits[part.to(private_logits.device)] for part in rows.split(count))
    for block in blocks:
        if len(block):
            yield block if allowed is None else block.index_select(1, allowed)


def exponent_above(bound: float) -> int:
    """The least e with 2^e >= a bound > 0."""
    mantissa, exponent = math.frexp(bound)
    return exponent - (mantissa == 0.5)


@dataclass(frozen=True)
class ClipLattice:
    """Clipped logits as whole units of a public lattice over [−c, c].

    A clipped logit of `units` units is `units · unit − c`. Adding 2^(k+1) − max to a logit, where
    2^k is the first power of two not below 2c, puts it into one binade of float32 (or on its upper
    edge), where the float's own bits count units of 2^(k−23): one addition re-centres and rounds,
    and the integers behind the floats are compared and summed exactly, in any order.

    Attributes:
        clip_bound: c > 0.

    **Privacy** Units are a function of one row alone and are in [0, span] with span · unit <= 2c,
    so one row moves a sum by at most 2c, without rounding that other rows could steer. Rounding to
    the lattice moves a clipped logit by at most half a unit, 2^-20 for c = 6.

    **Source** The clip: Amin et al. 2024, Eq. (1). The lattice is ours.
    """

    clip_bound: float

    @cached_property
    def unit(self) -> float:
        """Width of one unit: a power of two, at least 2c / 2^23."""
        return math.ldexp(1.0, self._exponent - 23)

    @cached_property
    def span(self) -> int:
        """Units of the largest clipped logit; at most 2^23."""
        return math.floor(2.0 * self.clip_bound / self.unit)

    @cached_property
    def _exponent(self) -> int:
        return exponent_above(2.0 * self.clip_bound)

    @cached_property
    def highest(self) -> float:
        """The place of a row's maximum."""
        return math.ldexp(1.0, self._exponent + 1)

    @cached_property
    def lowest(self) -> float:
        """The place of the floor: `highest` less `span` units."""
        return self.highest - self.span * self.unit

    @cached_property
    def lowest_key(self) -> int:
        """The bits of `lowest` as an integer."""
        return int(np.float32(self.lowest).view(np.int32))

    def shift_of(self, maximum: "torch.Tensor") -> "torch.Tensor":
        """Computes the (n,) float32 that `placed` adds to each row of finite maximum."""
        import torch

        return (self.highest - maximum).to(torch.float32)

    def shift(self, maximum: np.ndarray) -> np.ndarray:
        """Computes what `shift_of` does, to the last bit, of (n,) float32 maxima."""
        return (self.highest - maximum.astype(np.float64)).astype(np.float32)

    def placed(
        self, block: "torch.Tensor", shift: "torch.Tensor", out: "torch.Tensor | None" = None
    ) -> "torch.Tensor":
        """Computes (n, A) float32 in [lowest, highest]; `units` reads the units off them."""
        import torch

        block = block.float() if block.dtype == torch.float64 else block
        moved = torch.add(block, shift.unsqueeze(1), out=out)
        return moved.clamp_(self.lowest, self.highest)

    def sum_units(self, placed: "torch.Tensor") -> "torch.Tensor":
        """Adds up the units of (n, A) placed logits over rows: (A,) int64, exact."""
        import torch

        total = torch.zeros(placed.shape[1], dtype=torch.int64, device=placed.device)
        for part in placed.view(torch.int32).split(ROWS_PER_SUM):
            bits = torch.sum(part, dim=0, dtype=torch.int32)
            total += bits.sub_(_wrapped(len(part) * self.lowest_key))
        return total

    def units_of_bits(self, bits: np.ndarray, rows: int) -> np.ndarray:
        """Turns (A,) int32 sums of the bits of at most ROWS_PER_SUM rows into sums of their units.

        int32 wraps, and wraps back when the constant is taken away: the rest fits.
        """
        return np.subtract(bits, np.int32(_wrapped(rows * self.lowest_key)), out=bits)

    def values(self, keys: "torch.Tensor") -> "torch.Tensor":
        """Turns bits of placed or merely shifted logits into float64 clipped logits."""
        import torch

        units = keys.clamp(self.lowest_key, self.lowest_key + self.span) - self.lowest_key
        return units.to(torch.float64).mul_(self.unit).sub_(self.clip_bound)

    def values_of_bits(self, keys: np.ndarray) -> np.ndarray:
        """Does what `values` does with int32 keys in an array, which it overwrites."""
        keys = np.maximum(keys, np.int32(self.lowest_key), out=keys)  # twice as fast as np.clip
        keys = np.minimum(keys, np.int32(self.lowest_key + self.span), out=keys)
        keys -= np.int32(self.lowest_key)
        values = keys * self.unit
        values -= self.clip_bound
        return values


def _wrapped(value: int) -> int:
    """Reduces an integer to the int32 with the same low 32 bits."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def lower_floor(maximum: "torch.Tensor", clip_bound: float) -> "torch.Tensor":
    """Computes (n, 1) float32 thresholds: a logit not above its row's clips to the floor.

    They are lower than max − 2c by more than rounding, so some logits above them clip as well.
    """
    import torch

    exact = maximum - 2.0 * clip_bound
    lowered = exact - 2.0**-18 * (maximum.abs() + 2.0 * clip_bound)
    return lowered.to(torch.float32).unsqueeze(1)
