"""Private tokens drawn from the softmax of the mean clipped logits of each batch.

Shape letters: R rows (prompts of all batches), V vocabulary, A allowed tokens, G active batches.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.privacy.bounded_range import bounded_range_eta
from dpsynth_assets.privacy.clipping import ClipLattice, block_entries, clip_logits, usable_rows
from dpsynth_assets.privacy.events import BoundedRangeEvent
from dpsynth_assets.privacy.noise import secure_uniform
from dpsynth_assets.privacy.token_meter import PrivateTokenMeter
from dpsynth_assets.privacy.units import NeighboringRelation

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class MeanTokenMechanism:
    """Draws x ~ softmax(Σ_z clip_c(z) / (s τ)) for each batch; s is public and fixed.

    Attributes:
        clip_bound: c > 0.
        temperature: τ > 0.
        expected_batch_size: s >= 1; the denominator whatever the private number of rows is.
        relation: Declared neighbouring relation.
        max_records_per_unit: Records one privacy unit may contribute.
        logit_slack: Largest move of a row's logits when other rows change (`bounded_range_eta`).
        contexts_changed: `toggle` or `replace` (`context_changes`).

    **Privacy** Each draw is η-bounded-range (`bounded_range_eta`); r draws of every batch cost
    `event(r)`, because a record sits in one batch and η counts every logit vector of a unit.

    **Source** Amin et al. 2024, Algorithm 1, lines 14-16. Amin et al. 2025, Eq. (1) divides by
    the private |Z|, which doubles the range and leaks |Z|; we keep the fixed s (errata B-000.3).
    """

    clip_bound: float
    temperature: float
    expected_batch_size: int
    relation: NeighboringRelation
    max_records_per_unit: int = 1
    logit_slack: float = 0.0
    contexts_changed: str = "toggle"

    def __post_init__(self) -> None:
        """Refuses settings without a finite η."""
        self.event(0)

    @property
    def eta(self) -> float:
        """Bounded range of one draw."""
        return bounded_range_eta(
            clip_bound=self.clip_bound,
            expected_batch_size=self.expected_batch_size,
            temperature=self.temperature,
            relation=self.relation,
            max_records_per_unit=self.max_records_per_unit,
            logit_slack=self.logit_slack,
            contexts_changed=self.contexts_changed,
        )

    def event(self, count: int) -> BoundedRangeEvent:
        """Prices `count` private tokens of every batch."""
        return BoundedRangeEvent(eta=self.eta, count=count)

    def select(
        self,
        private_logits: "torch.Tensor",
        batch_of_row: "torch.Tensor",
        active: np.ndarray,
        meter: PrivateTokenMeter,
        allowed: np.ndarray | None = None,
    ) -> np.ndarray:
        """Draws one token for each active batch.

        Args:
            private_logits: (R, V) next-token logits, any floating type, on any device with
                float64. A row with NaN or without a finite maximum contributes zeros.
            batch_of_row: (R,) int64 batch index of each row; rows of other batches are ignored.
            active: (G,) distinct batch indices to draw for. A batch without rows has mean zero:
                its token is uniform. Skipping it would reveal that it is empty.
            meter: Pays for the draws before any logit is read.
            allowed: (V,) bool mask of tokens from public facts only; None allows all.

        Returns:
            (G,) int64 token ids, aligned with `active`.

        Raises:
            UnaccountedReleaseError: If a batch has no private token left.
            ValueError: If shapes disagree or no token is allowed.
        """
        meter.spend(active)
        check_shapes(private_logits, batch_of_row, active, allowed)
        columns = allowed_tokens(private_logits, allowed)
        private_scores = self.private_scores(private_logits, batch_of_row, active, columns)
        tokens = draw_tokens(private_scores)  # [amin2024 A1:L15] [amin2025 A1:L8]
        return tokens if columns is None else columns.cpu().numpy()[tokens]

    def private_scores(
        self,
        private_logits: "torch.Tensor",
        batch_of_row: "torch.Tensor",
        active: np.ndarray,
        columns: "torch.Tensor | None" = None,
    ) -> "torch.Tensor":
        """Computes (G, A) float64 scores z̄/τ. Private: only a draw from them may leave.

        Clipped logits are summed as integers on a lattice (`ClipLattice`): exactly, in any order.
        """
        import torch

        lattice, device = ClipLattice(self.clip_bound), private_logits.device
        tokens = private_logits.shape[1] if columns is None else len(columns)
        units = torch.zeros((len(active), tokens), dtype=torch.int64, device=device)
        counts = torch.zeros((len(active), 1), dtype=torch.float64)
        placed = None
        for batch, rows in enumerate(rows_by_batch(batch_of_row, active)):
            # [amin2024 A1:L14] [amin2025 A1:L7]
            for block, maximum in usable_rows(private_logits, columns, rows):
                reused = placed if placed is not None and placed.shape == block.shape else None
                placed = lattice.placed(block, lattice.shift_of(maximum), out=reused)
                units[batch] += lattice.sum_units(placed)
                counts[batch] += len(block)
        sums = units.to(torch.float64).mul_(lattice.unit)
        sums.sub_(counts.to(device), alpha=self.clip_bound)
        return sums.div_(self.expected_batch_size * self.temperature)

    def peak_extra_bytes(self, rows: int, vocabulary: int, batches: int) -> int:
        """Bounds memory beyond the logits: 16·G·V + 16·V + 8·E + 32·R bytes.

        E = `block_entries`, or one row where that is more: two float32 copies of a block exist at
        most, and no float64 one.
        """
        block = 8 * min(rows * vocabulary, max(block_entries(), vocabulary))
        return 16 * (batches + 1) * vocabulary + block + 32 * rows


def mean_scores_oracle(
    private_logits: np.ndarray, *, clip_bound: float, expected_batch_size: int, temperature: float
) -> np.ndarray:
    """Computes (V,) scores z̄/τ of one batch of (n, V) logits in NumPy float64, n >= 0.

    The plain form that the tensor code is tested against.
    """
    private_logits = np.asarray(private_logits, dtype=np.float64)
    total = np.zeros(private_logits.shape[1])
    for row in private_logits:
        if np.isfinite(row.max()):
            total += clip_logits(row, clip_bound)
    return total / (expected_batch_size * temperature)


def check_shapes(
    private_logits: "torch.Tensor",
    batch_of_row: "torch.Tensor",
    active: np.ndarray,
    allowed: np.ndarray | None,
) -> None:
    """Refuses shapes that disagree. Messages show shapes only."""
    rows, vocabulary = private_logits.shape
    if tuple(batch_of_row.shape) != (rows,):
        raise ValueError(
            f"Expected batch_of_row of shape ({rows},), got {tuple(batch_of_row.shape)}."
        )
    if np.unique(active).size != np.size(active):
        raise ValueError("Expected distinct active batches, got a batch twice.")
    if allowed is not None and (np.shape(allowed) != (vocabulary,) or not np.any(allowed)):
        raise ValueError(
            f"Expected allowed of shape ({vocabulary},) with a token allowed, "
            f"got shape {np.shape(allowed)} with {int(np.sum(allowed))} allowed."
        )


def allowed_tokens(
    private_logits: "torch.Tensor", allowed: np.ndarray | None
) -> "torch.Tensor | None":
    """Lists the allowed token ids (A,) on the logits' device, or None for all."""
    import torch

    if allowed is None or bool(np.all(allowed)):
        return None
    return torch.from_numpy(np.flatnonzero(allowed)).to(private_logits.device)


def batch_slots(
    batch_of_row: "torch.Tensor", active: np.ndarray, usable: "torch.Tensor | None" = None
) -> "torch.Tensor":
    """Maps each row to the position of its batch in `active`, or to G where it takes no part."""
    import torch

    device = batch_of_row.device
    order = torch.from_numpy(np.argsort(np.asarray(active, dtype=np.int64))).to(device)
    batches = torch.from_numpy(np.asarray(active, dtype=np.int64)).to(device)
    if not len(batches):
        return torch.zeros_like(batch_of_row)
    place = torch.searchsorted(batches[order], batch_of_row).clamp_(max=len(batches) - 1)
    slots = order[place]
    taken = batches[slots] == batch_of_row
    if usable is not None:
        taken &= usable.to(device)
    return torch.where(taken, slots, len(batches))


def rows_by_batch(
    batch_of_row: "torch.Tensor", active: np.ndarray, usable: "torch.Tensor | None" = None
) -> "list[torch.Tensor | slice]":
    """Lists for each active batch its n >= 0 usable rows in ascending order; None: all are usable.

    Rows that stand side by side come as a slice, which is read without a copy; others as (n,)
    int64 indices.
    """
    slots = batch_slots(batch_of_row, active, usable)
    order = slots.argsort(stable=True)
    counts = slots.bincount(minlength=len(active) + 1).tolist()
    return [_sliced(rows) for rows in order.split(counts)[: len(active)]]


def _sliced(rows: "torch.Tensor") -> "torch.Tensor | slice":
    """Turns ascending distinct rows without a gap into a slice."""
    if not len(rows):
        return slice(0, 0)
    first, stop = int(rows[0]), int(rows[-1]) + 1
    return slice(first, stop) if stop - first == len(rows) else rows


def draw_tokens(private_scores: "torch.Tensor") -> np.ndarray:
    """Draws (G,) indices from softmax of each row of (G, A) float64 scores, which it overwrites.

    Inverse CDF with one operating-system uniform a row; see `noise` for the rounding error.
    """
    import torch

    uniforms = torch.from_numpy(secure_uniform.random(private_scores.shape[0]).copy())
    private_scores -= private_scores.amax(dim=1, keepdim=True)
    cumulative = torch.cumsum(private_scores.exp_(), dim=1, out=private_scores)
    targets = uniforms.to(cumulative.device).unsqueeze(1) * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, targets, right=True).squeeze(1)
    return drawn.clamp_(max=cumulative.shape[1] - 1).cpu().numpy()
