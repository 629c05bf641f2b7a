"""Private tokens drawn from the softmax of component-wise medians, with their realised cost.

The guarantee is ex-post: a bound on the log-likelihood ratio that depends on the data and on the
drawn tokens. It is not (ε, δ)-DP and the bound itself must stay internal.
Shape letters: R rows, n rows of one batch, V vocabulary, A allowed tokens, G active batches.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.privacy.bounded_range import context_changes
from dpsynth_assets.privacy.clipping import (
    block_columns,
    clip_block,
    clip_logits,
    column_blocks,
    lower_floor,
    row_maximum,
)
from dpsynth_assets.privacy.guarantees import GuaranteeType
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
        import torch

        meter.spend(active)
        check_shapes(private_logits, batch_of_row, active, allowed)
        columns = allowed_tokens(private_logits, allowed)
        maximum = row_maximum(private_logits, columns)
        rows_of = rows_by_batch(batch_of_row, active, torch.isfinite(maximum))
        tokens = np.zeros(len(active), dtype=np.int64)
        gamma = np.zeros(len(active))
        for index, rows in enumerate(rows_of):
            box = self._private_box(private_logits, rows, maximum, columns)
            tokens[index] = draw_tokens(box[1:2] / self.temperature)[0]  # [amin2025 A1:L8]
            gamma[index] = _gamma_of(box / self.temperature, int(tokens[index]))
        # A numerical move of 2·slack in every clipped entry moves score and normaliser each.
        gamma += 4.0 * self.logit_slack / self.temperature
        return (tokens if columns is None else columns.cpu().numpy()[tokens]), gamma

    def _private_box(
        self,
        private_logits: "torch.Tensor",
        rows: "torch.Tensor | slice",
        maximum: "torch.Tensor",
        columns: "torch.Tensor | None",
    ) -> "torch.Tensor":
        """Computes (3, A) float64 left bound, median and right bound of one batch's rows."""
        import torch

        bound, device = self.clip_bound, private_logits.device
        tokens = private_logits.shape[1] if columns is None else len(columns)
        own = maximum[rows]
        if not len(own):
            empty = torch.empty((0, 1), dtype=torch.float64, device=device)
            return _box_of_sorted(empty, bound, self.changes).repeat(1, tokens)
        box = torch.full((3, tokens), -bound, dtype=torch.float64, device=device)
        _, highest, padding = rank_window(len(own), self.changes)
        needed = len(own) + padding - highest
        for part, block in column_blocks(private_logits, columns, rows):
            # [amin2025 A1:L7] all three are the floor unless `needed` entries exceed it
            above = block > lower_floor(block, own, bound)
            kept = torch.nonzero(above.sum(dim=0, dtype=torch.int32) >= needed).squeeze(1)
            ordered = _sorted_columns(clip_block(block.T.index_select(0, kept).T, own, bound))
            box[:, part][:, kept] = _box_of_sorted(ordered, bound, self.changes)
        return box

    def peak_extra_bytes(self, rows: int, vocabulary: int, batches: int) -> int:
        """Bounds memory beyond the logits: 80·V + 64·R·C + 32·R + 16·G bytes.

        Batches are worked on one after another; C = `block_columns` of the rows of one batch,
        which the bound takes to hold all R rows.
        """
        width = min(vocabulary, block_columns(rows))
        return 80 * vocabulary + 64 * rows * width + 32 * rows + 16 * batches


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


def _sorted_columns(values: "torch.Tensor") -> "torch.Tensor":
    """Sorts each column of (n, K) values, fastest where a column's entries are adjacent.

    NumPy's vectorised sort is several times as fast on a CPU, and for n up to some hundreds twice
    as fast as selecting the few order statistics that are needed.
    """
    import torch

    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.T.numpy(), axis=1)).T
    return torch.sort(values, dim=0).values


def _box_of_sorted(values: "torch.Tensor", clip_bound: float, changes: int) -> "torch.Tensor":
    """Reads (3, A) left bound, median and right bound off (n, A) sorted clipped logits."""
    import torch

    _, _, padding = rank_window(len(values), changes)
    total = len(values) + 2 * padding

    def at(rank: int) -> "torch.Tensor":
        inside = rank - padding
        if 0 <= inside < len(values):
            return values[inside]
        return values.new_full(values.shape[1:], clip_bound if inside >= 0 else -clip_bound)

    # [amin2025 D3] half ranks: rank r/2 is the mean of ranks ⌊r/2⌋ and ⌈r/2⌉
    halves = (total - 1 - changes, total - 1, total - 1 + changes)
    return torch.stack([(at(half // 2) + at((half + 1) // 2)) / 2 for half in halves])


def _gamma_of(box: "torch.Tensor", token: int) -> float:
    """Bounds |log P(x) − log P'(x)| for the drawn x over all medians in the (3, A) scaled box."""
    left, median, right = box
    score = median[token] - median.logsumexp(0)
    highest = left.clone()  # [amin2025 D4] P'(x) is largest with x high and all others low
    highest[token] = right[token]
    lowest = right.clone()
    lowest[token] = left[token]
    above = highest[token] - highest.logsumexp(0) - score
    below = score - lowest[token] + lowest.logsumexp(0)
    return max(float(above), float(below), 0.0)


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
