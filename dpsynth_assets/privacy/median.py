"""Private tokens drawn from the softmax of component-wise medians, with their realised cost.

The guarantee is ex-post: a bound on the log-likelihood ratio that depends on the data and on the
drawn tokens. It is not (ε, δ)-DP and the bound itself must stay internal.
Shape letters: R rows, n rows of one batch, V vocabulary, A allowed tokens, G active batches.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.privacy.bounded_range import context_changes
from dpsynth_assets.privacy.clipping import (
    ClipLattice,
    block_columns,
    block_entries,
    clip_logits,
    lower_floor,
)
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.order_statistics import order_statistics, rows_where
from dpsynth_assets.privacy.token_meter import PrivateTokenMeter
from dpsynth_assets.privacy.token_selection import (
    allowed_tokens,
    check_shapes,
    draw_tokens,
    rows_by_batch,
)
from dpsynth_assets.privacy.units import NeighboringRelation

if TYPE_CHECKING:
    import torch

_SCORES_TOGETHER = 1 << 17
"""Scores of how many batches are drawn from in one operation: what stays in a cache."""

_SAMPLED_COLUMNS = 256
"""Columns that are looked at before deciding whether leaving columns out pays."""


@dataclass(frozen=True, kw_only=True)
class MedianTokenMechanism:
    """Draws x ~ softmax(median_z clip_c(z) / τ) for each batch and bounds what the draw cost.

    Attributes:
        clip_bound: c > 0.
        temperature: τ > 0.
        relation: Declared neighbouring relation.
        max_records_per_unit: Records one privacy unit may contribute.
        logit_slack: Largest move of a row's logits when other rows of its batch change.
        contexts_changed: `toggle` or `replace` (`context_changes`).

    **Privacy** K logit vectors that enter or leave move the rank of the median by at most K/2
    (proof in `rank_window`), so each coordinate of a neighbour's median lies in [left, right].
    γ(Z, x) is the exact supremum of |log P(x) − log P'(x)| over that box: never above the
    paper's Definition 4 for the same box, and right where the paper's is not: even |Z| under
    replace-one, and |Z| < 3 (errata B-000.4 and B-000.5).

    **Source** Amin et al. 2025, Eq. (3), Definitions 3 and 4, Theorem 2.
    """

    clip_bound: float
    temperature: float
    relation: NeighboringRelation
    max_records_per_unit: int = 1
    logit_slack: float = 0.0
    contexts_changed: str = "toggle"

    guarantee = GuaranteeType.EX_POST

    def __post_init__(self) -> None:
        """Refuses settings outside their domain."""
        for name in ("clip_bound", "temperature"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"Expected 0 < {name} < inf, got {value}.")
        if not (self.logit_slack >= 0 and math.isfinite(self.logit_slack)):
            raise ValueError(f"Expected 0 <= logit_slack < inf, got {self.logit_slack}.")
        _ = self.changes

    @property
    def changes(self) -> int:
        """Logit vectors that may enter or leave when one unit changes."""
        return context_changes(self.relation, self.max_records_per_unit, self.contexts_changed)

    @property
    def batches_touched(self) -> int:
        """Batches that one unit's change may touch: a replaced record may change its batch."""
        return NeighboringRelation(self.relation).records_changed * self.max_records_per_unit

    def realised_epsilon(self, gamma_by_batch: np.ndarray) -> float:
        """Combines per-batch sums of γ over their tokens into the run's ex-post bound.

        Args:
            gamma_by_batch: (batches,) for every batch, the empty ones too: a neighbour may add
                a record there.

        Returns:
            The sum of the `batches_touched` largest entries; for add/remove the maximum, as in
            Theorem 2. Private and not sanitised.
        """
        largest = np.sort(np.asarray(gamma_by_batch, dtype=np.float64))[::-1]
        return float(largest[: self.batches_touched].sum())

    def select(
        self,
        private_logits: "torch.Tensor",
        batch_of_row: "torch.Tensor",
        active: np.ndarray,
        meter: PrivateTokenMeter,
        allowed: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws one token for each active batch.

        Arguments are those of `MeanTokenMechanism.select`; a row without a finite maximum takes
        no part, and a batch without rows has median zero.

        Returns:
            (G,) int64 token ids and (G,) float64 realised γ >= 0, aligned with `active`. γ is a
            function of private data and must not be released.

        Raises:
            UnaccountedReleaseError: If a batch has no private token left.
            ValueError: If shapes disagree or no token is allowed.
        """
        meter.spend(active)
        check_shapes(private_logits, batch_of_row, active, allowed)
        columns = allowed_tokens(private_logits, allowed)
        width = private_logits.shape[1] if columns is None else len(columns)
        rows_of = rows_by_batch(batch_of_row, active)
        drawn = [
            self._draw(private_logits, rows_of[start : start + together], columns)
            for together in [max(1, _SCORES_TOGETHER // width)]
            for start in range(0, len(rows_of), together)
        ]
        tokens = np.concatenate([each[0] for each in drawn] or [np.zeros(0, dtype=np.int64)])
        gamma = np.concatenate([each[1] for each in drawn] or [np.zeros(0)])
        # A numerical move of 2·slack in every clipped entry moves score and normaliser each.
        gamma += 4.0 * self.logit_slack / self.temperature
        return (tokens if columns is None else columns.cpu().numpy()[tokens]), gamma

    def _draw(
        self,
        private_logits: "torch.Tensor",
        rows_of: "Sequence[torch.Tensor | slice]",
        columns: "torch.Tensor | None",
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws (g,) tokens of some batches and bounds (g,) γ, without the slack's part."""
        import torch

        boxes = torch.stack([self._private_box(private_logits, each, columns) for each in rows_of])
        boxes /= self.temperature
        tokens = draw_tokens(boxes[:, 1].clone())  # [amin2025 A1:L8]
        return tokens, _gamma_of(boxes, torch.from_numpy(tokens).to(boxes.device)).cpu().numpy()

    def _private_box(
        self,
        private_logits: "torch.Tensor",
        rows: "torch.Tensor | slice",
        columns: "torch.Tensor | None",
    ) -> "torch.Tensor":
        """Computes (3, A) float64 left bound, median and right bound of one batch's rows."""
        import torch

        own = _rows_of(private_logits, rows, columns)
        maximum = own.amax(dim=1).to(torch.float64)
        usable = torch.isfinite(maximum)
        if not bool(usable.all()):
            own, maximum = own[usable], maximum[usable]
        box = maximum.new_empty((3, own.shape[1]))
        width = block_columns(len(own), own.device.type)
        for start in range(0, own.shape[1], width):
            part = slice(start, start + width)
            box[:, part] = self._box_of_block(own[:, part], maximum)
        return box

    def _box_of_block(self, block: "torch.Tensor", maximum: "torch.Tensor") -> "torch.Tensor":
        """Computes (3, C) of (n, C) logits; columns of which all three are the floor go unsorted."""
        _, highest, padding = rank_window(len(block), self.changes)
        needed = len(block) + padding - highest
        # [amin2025 A1:L7] all three are the floor unless `needed` entries exceed it
        floor = lower_floor(maximum, self.clip_bound) if len(block) else maximum.unsqueeze(1)
        sample = block[:, :: max(1, block.shape[1] // _SAMPLED_COLUMNS)]
        if float((rows_where(sample > floor) >= needed).double().mean()) > 0.5:
            return self._box_of_columns(block, maximum)
        kept = (rows_where(block > floor) >= needed).nonzero().squeeze(1)
        box = maximum.new_full((3, block.shape[1]), -self.clip_bound)
        box[:, kept] = self._box_of_columns(block.T.index_select(0, kept).T, maximum)
        return box

    def _box_of_columns(self, block: "torch.Tensor", maximum: "torch.Tensor") -> "torch.Tensor":
        """Reads (3, C) off the order statistics of (n, C) logits on the lattice."""
        lattice = ClipLattice(self.clip_bound)
        first, count = _ranks_inside(len(block), self.changes)
        if not count:
            return _box_of_statistics(
                maximum.new_empty((0, block.shape[1])), 0, len(block), self.clip_bound, self.changes
            )
        keys = _keys(block, lattice, maximum)
        found = order_statistics(
            keys, first, count, lowest=lattice.lowest_key, span=lattice.span
        )
        return _box_of_statistics(
            lattice.values(found), first, len(block), self.clip_bound, self.changes
        )

    def peak_extra_bytes(self, rows: int, vocabulary: int, batches: int) -> int:
        """Bounds memory beyond the logits: 160·(V + S) + 16·E + 32·R + 16·G bytes.

        Batches are worked on one after another in blocks of E = `block_entries` logits, which have
        two float32 copies at most; S bounds the scores that are drawn from together.
        """
        block = 16 * min(rows * vocabulary, max(block_entries(), rows))
        scores = 160 * (vocabulary + min(batches * vocabulary, _SCORES_TOGETHER))
        return scores + block + 32 * rows + 16 * batches


def rank_window(rows: int, changes: int) -> tuple[int, int, int]:
    """Finds which order statistics bound the median of a neighbour.

    Args:
        rows: n >= 0 values.
        changes: K >= 1 values that may enter or leave.

    Returns:
        Zero-based lowest and highest rank among the n values with p copies of −c and p of +c
        put around them, and p itself. Padding leaves the median as it is and gives n = 0 the
        median 0.

    **Privacy** Let the median sit at rank (N − 1)/2 of N sorted values, half ranks meaning the
    mean of two neighbours. It grows with every value, so it falls most when values that enter
    are −c and values that leave are the largest; each then moves it by half a rank. Hence K
    changes keep it between ranks (N − 1 − K)/2 and (N − 1 + K)/2. For replace-one, K = 2.
    """
    padding = changes // 2 + 1
    total = rows + 2 * padding
    return (total - 1 - changes) // 2, (total + changes) // 2, padding


def _ranks_inside(rows: int, changes: int) -> tuple[int, int]:
    """Finds the first of the n values' ranks that the three medians read, and how many they read."""
    lowest, highest, padding = rank_window(rows, changes)
    first, last = max(0, lowest - padding), min(rows - 1, highest - padding)
    return first, max(0, last - first + 1)


def _rows_of(
    private_logits: "torch.Tensor", rows: "torch.Tensor | slice", columns: "torch.Tensor | None"
) -> "torch.Tensor":
    """Takes (n, A) logits of one batch: a view where rows stand side by side."""
    own = private_logits[rows if isinstance(rows, slice) else rows.to(private_logits.device)]
    return own if columns is None else own.index_select(1, columns)


def _keys(
    block: "torch.Tensor", lattice: ClipLattice, maximum: "torch.Tensor"
) -> "torch.Tensor":
    """Turns (n, C) logits into int32 that order as the clipped logits do.

    On a CPU a column's entries become adjacent in memory and the clip waits until order statistics
    are found: it keeps the order.
    """
    import torch

    shift = lattice.shift_of(maximum)
    if block.device.type != "cpu":
        return lattice.placed(block, shift).view(torch.int32)
    columns = torch.from_numpy(np.array(block.float().numpy().T, order="C"))
    return columns.add_(shift).view(torch.int32).T


def _box_of_statistics(
    values: "torch.Tensor", first: int, rows: int, clip_bound: float, changes: int
) -> "torch.Tensor":
    """Reads (3, C) left bound, median and right bound off the (count, C) values from rank first."""
    import torch

    _, _, padding = rank_window(rows, changes)
    total = rows + 2 * padding

    def at(rank: int) -> "torch.Tensor":
        inside = rank - padding
        if 0 <= inside < rows:
            return values[inside - first]
        return values.new_full(values.shape[1:], clip_bound if inside >= 0 else -clip_bound)

    # [amin2025 D3] half ranks: rank r/2 is the mean of ranks ⌊r/2⌋ and ⌈r/2⌉
    halves = (total - 1 - changes, total - 1, total - 1 + changes)
    return torch.stack([(at(half // 2) + at((half + 1) // 2)) / 2 for half in halves])


def _gamma_of(boxes: "torch.Tensor", tokens: "torch.Tensor") -> "torch.Tensor":
    """Bounds |log P(x) − log P'(x)| for the drawn x over all medians in (g, 3, A) scaled boxes.

    [amin2025 D4] P'(x) is largest with x at its right bound and all others at their left, and
    smallest the other way round. Overwrites the boxes.
    """
    import torch

    at = tokens[:, None, None].expand(-1, 3, 1)
    own = boxes.gather(2, at)  # left, median, right of the drawn token
    own = own[:, [2, 1, 0]]
    boxes.scatter_(2, at, own)
    logs = own.squeeze(2) - torch.logsumexp(boxes, dim=2)  # of highest P', P, lowest P'
    gamma = torch.maximum(logs[:, 0] - logs[:, 1], logs[:, 1] - logs[:, 2])
    return gamma.clamp_(min=0.0)


def median_oracle(
    private_logits: np.ndarray, *, clip_bound: float, temperature: float, changes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Computes (V,) scores median/τ and (V,) γ of each token, from (n, V) logits, n >= 0.

    The plain NumPy float64 form that the tensor code is tested against.
    """
    clipped = [clip_logits(row, clip_bound) for row in private_logits if np.isfinite(row.max())]
    padding = rank_window(len(clipped), changes)[2]
    edge = np.full((padding, private_logits.shape[1]), clip_bound)
    ordered = np.sort(np.vstack([-edge, *clipped, edge]), axis=0)
    halves = len(ordered) - 1 + changes * np.arange(-1, 2)
    box = (ordered[halves // 2] + ordered[(halves + 1) // 2]) / (2 * temperature)
    gamma = [_gamma_oracle(box[0], box[1], box[2], token) for token in range(box.shape[1])]
    return box[1], np.array(gamma)


def _gamma_oracle(left: np.ndarray, median: np.ndarray, right: np.ndarray, token: int) -> float:
    others = np.arange(len(median)) != token

    def log_probability(own: float, rest: np.ndarray) -> float:
        return float(-np.logaddexp.reduce(np.append(rest[others] - own, 0.0)))

    score = log_probability(median[token], median)
    return max(
        log_probability(right[token], left) - score,
        score - log_probability(left[token], right),
        0.0,
    )
