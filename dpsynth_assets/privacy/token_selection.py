"""Private tokens drawn from the softmax of the mean clipped logits of each batch, and their meter.

Shape letters: R rows (prompts of all batches), V vocabulary, A allowed tokens, G active batches.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.clipping import ClipLattice, usable_rows
from dpsynth_assets.privacy.cpu import is_plain, largest_tokens, maxima, sums_of_clipped
from dpsynth_assets.privacy.errors import UnaccountedReleaseError, check_at_least
from dpsynth_assets.privacy.events import BoundedRangeEvent
from dpsynth_assets.privacy.softmax_draws import draw_tokens

if TYPE_CHECKING:
    import torch


class PrivateTokenMeter:
    """Allows each batch exactly `tokens_per_batch` private tokens.

    The published algorithm tests its counter between texts only, and so overshoots by a text
    (errata B-001.1). Here the selection mechanisms spend from the meter before they look at a
    logit, so r cannot be overrun however the generation loop is written.

    **Source** Amin et al. 2024, Algorithm 1, lines 5, 6 and 16, tested before every token.
    """

    def __init__(self, tokens_per_batch: int, batches: int) -> None:
        """Opens a meter for `batches` batches of `tokens_per_batch` = r tokens each.

        Raises:
            ValueError: If either number is negative.
        """
        check_at_least(0, tokens_per_batch=tokens_per_batch, batches=batches)
        self.tokens_per_batch = int(tokens_per_batch)
        self._spent = np.zeros(int(batches), dtype=np.int64)  # [amin2024 A1:L5]

    @property
    def spent(self) -> np.ndarray:
        """(batches,) int64, private tokens drawn so far."""
        return self._spent.copy()

    @property
    def exhausted(self) -> np.ndarray:
        """(batches,) bool, True where no private token is left."""
        return self._spent >= self.tokens_per_batch

    def spend(self, batch_indices: np.ndarray) -> None:
        """Counts one private token for each listed batch; all or nothing.

        Args:
            batch_indices: (G,) batch indices; an index that comes twice counts twice.

        Raises:
            UnaccountedReleaseError: Before anything is counted, if a batch has no token left or
                does not exist.
        """
        indices = np.asarray(batch_indices, dtype=np.int64).reshape(-1)
        if indices.size and (indices.min() < 0 or indices.max() >= self._spent.size):
            raise UnaccountedReleaseError(
                f"Expected batch indices in [0, {self._spent.size}), got {indices.min()} to "
                f"{indices.max()}. Open the meter for every batch of the plan."
            )
        following = self._spent + np.bincount(indices, minlength=self._spent.size)
        if (following > self.tokens_per_batch).any():  # [amin2024 A1:L6]
            raise UnaccountedReleaseError(
                f"Expected at most {self.tokens_per_batch} private tokens a batch, got one more. "
                "Stop at `exhausted`, or plan more tokens."
            )
        self._spent = following  # [amin2024 A1:L16]


@dataclass(frozen=True, eq=False)
class NextLogits:
    """What active batches draw their next tokens from.

    Attributes:
        private: (R, V) next-token logits, any floating type, on any device with float64.
        batch_of_row: (R,) int64 batch index of each row; rows of other batches are ignored.
        active: (G,) distinct batch indices to draw for, batches without rows included: to skip one
            would reveal that it is empty.
        public: (G, V) logits of each active batch's public prompt after its released text, aligned
            with `active`; −inf forbids a token. They come from a forward pass without private rows:
            what is made of them has to be the same for neighbours, to the last bit. None where
            nothing is compared with public text.
        allowed: (V,) bool mask, of public facts and released tokens only; None allows all.
    """

    private: "torch.Tensor" = field(repr=False)
    batch_of_row: "torch.Tensor" = field(repr=False)
    active: np.ndarray
    public: "torch.Tensor | None" = field(repr=False, default=None)
    allowed: np.ndarray | None = field(repr=False, default=None)

    def check(self) -> None:
        """Refuses shapes that disagree, and a mask that allows nothing. Messages show shapes only.

        Raises:
            ValueError: It is so.
        """
        rows, vocabulary = self.private.shape
        if tuple(self.batch_of_row.shape) != (rows,):
            raise ValueError(
                f"Expected batch_of_row of shape ({rows},), got {tuple(self.batch_of_row.shape)}."
            )
        if np.unique(self.active).size != np.size(self.active):
            raise ValueError("Expected distinct active batches, got a batch twice.")
        allowed = self.allowed
        if allowed is not None and (np.shape(allowed) != (vocabulary,) or not np.any(allowed)):
            raise ValueError(
                f"Expected allowed of shape ({vocabulary},) with a token allowed, "
                f"got shape {np.shape(allowed)} with {int(np.sum(allowed))} allowed."
            )

    @cached_property
    def compared(self) -> "torch.Tensor":
        """The public logits, (G, V) on the private logits' device; checked once.

        Raises:
            ValueError: There are none, or they are no (G, V) distributions. Messages show shapes
                only.
        """
        public, expected = self.public, (len(self.active), self.private.shape[1])
        if public is None:
            raise ValueError(
                "Expected public logits, got none. Pass those of the public prompt of each active "
                "batch."
            )
        if tuple(public.shape) != expected:
            raise ValueError(f"Expected public logits {expected}, got {tuple(public.shape)}.")
        if expected[0]:
            plain = is_plain(public)
            largest = maxima(public.numpy()) if plain else public.amax(dim=1).double().cpu()
            if not np.isfinite(largest).all():
                raise ValueError("Expected public logits with finite maxima, got NaN or infinity.")
        return public.to(self.private.device)


@dataclass(frozen=True, kw_only=True)
class SoftmaxOfSums:
    """Draws tokens from the softmax of sums over a batch's rows, divided by s τ; s is public.

    Attributes:
        batch: Facts that η depends on; its s is the denominator for any private number of
            rows.
        clip_bound: c > 0.
        temperature: τ > 0.
    """

    batch: BatchTerms
    clip_bound: float
    temperature: float

    @property
    def eta(self) -> float:
        """Bounded range of one draw."""
        return self.batch.eta(self.clip_bound, self.temperature)

    @cached_property
    def _divisor(self) -> Fraction:
        """The divisor that turns sums into scores."""
        return self.batch.expected_batch_size * Fraction(self.temperature)

    def event(self, count: int) -> BoundedRangeEvent:
        """Prices `count` private tokens of every batch."""
        return BoundedRangeEvent(eta=self.eta, count=count)


@dataclass(frozen=True, kw_only=True)
class MeanTokenMechanism(SoftmaxOfSums):
    """Draws x ~ softmax(Σ_z clip_c(z) / (s τ)) for each batch; s is public and fixed.

    Attributes:
        public_top_k: Draws among the k tokens of largest public logit only; None for all tokens.

    **Privacy** Each draw is η-bounded-range (`BatchTerms.eta`); r draws of every batch cost
    `event(r)`, because a record sits in one batch and η counts every logit vector of a unit. The
    support of `public_top_k` is a function of the public prompt and of released tokens, so it is
    the same for neighbours; a row is clipped on it alone, into [−c, c]^k, and the argument for η
    runs over k coordinates instead of V. It costs nothing, and no token outside can be drawn.

    **Source** Amin et al. 2024, Algorithm 1, lines 14-16. Amin et al. 2025, Eq. (1) divides by
    the private |Z|, which doubles the range and leaks |Z|; we keep the fixed s (errata B-000.3).
    Amin et al. 2024 restrict to the public top 1,024 at τ = 2.25, where the tail would exceed the
    text.
    """

    public_top_k: int | None = None

    def __post_init__(self) -> None:
        """Refuses settings without a finite η or an empty support."""
        self.event(0)
        if self.public_top_k is not None and self.public_top_k < 1:
            raise ValueError(f"Expected public_top_k >= 1 or None, got {self.public_top_k}.")

    def select(self, logits: NextLogits, meter: PrivateTokenMeter) -> np.ndarray:
        """Draws one token for each active batch.

        Args:
            logits: A row with NaN or without a finite maximum contributes zeros; a batch without
                rows has mean zero: its token is uniform. The public ones are read with
                `public_top_k` only.
            meter: Pays for the draws before any logit is read.

        Returns:
            (G,) int64 token ids, aligned with `active`.

        Raises:
            UnaccountedReleaseError: If a batch has no private token left.
            ValueError: If shapes disagree, no token is allowed, or `public_top_k` lacks logits.
        """
        meter.spend(logits.active)
        logits.check()
        columns = allowed_tokens(logits.private, logits.allowed)
        if self.public_top_k is not None:
            columns = _support(logits.compared, self.public_top_k, columns)
        private_sums, _ = self._private_sums(
            logits.private, logits.batch_of_row, logits.active, columns
        )
        # [amin2024 A1:L15] [amin2024 A2:L4] [amin2025 A1:L8]
        drawn = draw_tokens(private_sums, self._divisor)
        if columns is None:
            return drawn
        tokens: np.ndarray = columns.expand(len(drawn), -1).cpu().numpy()
        return tokens[np.arange(len(drawn)), drawn]

    def private_scores(
        self,
        private_logits: "torch.Tensor",
        batch_of_row: "torch.Tensor",
        active: np.ndarray,
        columns: "torch.Tensor | None" = None,
    ) -> "torch.Tensor":
        """Computes (G, A) float64 scores z̄/τ, rounded. Private: only a draw from them may leave.

        `columns` are the allowed tokens, (A,) for all batches or (G, A) for each; None for all V.
        """
        import torch

        sums, rows = self._private_sums(private_logits, batch_of_row, active, columns)
        offsets = torch.from_numpy(rows * self.clip_bound).to(sums.device)
        sums -= offsets.unsqueeze(1)
        return sums.div_(self.batch.expected_batch_size * self.temperature)

    def _private_sums(
        self,
        private_logits: "torch.Tensor",
        batch_of_row: "torch.Tensor",
        active: np.ndarray,
        columns: "torch.Tensor | None",
    ) -> "tuple[torch.Tensor, np.ndarray]":
        """Computes (G, A) float64 Σ (clip_c(z) + c) of each batch, and of how many rows each.

        Clipped logits are summed as integers on a lattice (`ClipLattice`): exactly, in any order.
        The constant c of a row is in the sums of all its tokens, hence not in the softmax.
        """
        import torch

        lattice, rows_of = ClipLattice(self.clip_bound), rows_by_batch(batch_of_row, active)
        per_batch = columns is not None and columns.ndim > 1
        own = list(columns) if columns is not None and per_batch else [columns] * len(rows_of)
        # [amin2024 A1:L14] [amin2024 A2:L3] [amin2025 A1:L7]
        if is_plain(private_logits):
            tokens = [each if each is None else each.numpy() for each in own]
            sums, used = sums_of_clipped(lattice, private_logits.numpy(), tokens, rows_of)
            return torch.from_numpy(sums), used
        width = private_logits.shape[1] if columns is None else columns.shape[-1]
        totals = private_logits.new_empty((len(rows_of), width), dtype=torch.float64)
        counts = [
            _sum_of_clipped(private_logits, rows, allowed_here, lattice, out=total)
            for total, rows, allowed_here in zip(totals, rows_of, own, strict=True)
        ]
        return totals, np.array(counts, dtype=np.int64)


def _support(public: "torch.Tensor", k: int, columns: "torch.Tensor | None") -> "torch.Tensor":
    """Lists (G, k) int64 tokens of largest public logit among the allowed, in order of memory."""
    public = public if columns is None else public.index_select(1, columns)
    top = largest_tokens(public, min(k, public.shape[1]))
    return top if columns is None else columns[top]


def _sum_of_clipped(
    private_logits: "torch.Tensor",
    rows: "torch.Tensor | slice",
    columns: "torch.Tensor | None",
    lattice: ClipLattice,
    out: "torch.Tensor",
) -> int:
    """Adds up a batch's clipped logits plus c into (A,) float64, exact; returns of how many rows.

    For any type on any device.
    """
    out.zero_()
    used, placed = 0, None
    for block, maximum in usable_rows(private_logits, columns, rows):
        reused = placed if placed is not None and placed.shape == block.shape else None
        placed = lattice.placed(block, lattice.shift_of(maximum), out=reused)
        out += lattice.sum_units(placed)  # whole numbers below 2^53: exact
        used += len(block)
    out *= lattice.unit
    return used


def allowed_tokens(logits: "torch.Tensor", allowed: np.ndarray | None) -> "torch.Tensor | None":
    """Lists the allowed token ids (A,) on the logits' device, or None for all."""
    import torch

    if allowed is None or bool(np.all(allowed)):
        return None
    return torch.from_numpy(np.flatnonzero(allowed)).to(logits.device)


def rows_by_batch(batch_of_row: "torch.Tensor", active: np.ndarray) -> "list[torch.Tensor | slice]":
    """Lists for each active batch its n >= 0 rows in ascending order.

    Rows that stand side by side come as a slice, which is read without a copy; others as (n,)
    int64 indices.
    """
    owners = batch_of_row.cpu().numpy()
    order = np.argsort(owners, kind="stable")
    owners = owners[order]
    bounds = (np.searchsorted(owners, active, side=side).tolist() for side in ("left", "right"))
    return [_sliced(order[first:stop]) for first, stop in zip(*bounds, strict=True)]


def _sliced(rows: np.ndarray) -> "torch.Tensor | slice":
    """Turns ascending distinct rows without a gap into a slice."""
    import torch

    if not len(rows):
        return slice(0, 0)
    first, stop = int(rows[0]), int(rows[-1]) + 1
    return slice(first, stop) if stop - first == len(rows) else torch.from_numpy(rows)
