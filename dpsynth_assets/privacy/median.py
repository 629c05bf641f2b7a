"""Private tokens drawn from the softmax of component-wise medians, with their realised cost.

The guarantee is ex-post: a bound on the log-likelihood ratio that depends on the data and on the
drawn tokens. It is not (ε, δ)-DP and the bound itself must stay internal.
Shape letters: R rows, n rows of one batch, V vocabulary, A allowed tokens, G active batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.privacy.batch_terms import changed_contexts
from dpsynth_assets.privacy.clipping import ClipLattice
from dpsynth_assets.privacy.cpu import map_on_cpu_threads, plain_entries
from dpsynth_assets.privacy.errors import check_at_least, check_positive
from dpsynth_assets.privacy.guarantees import GuaranteeType, NeighboringRelation
from dpsynth_assets.privacy.median_box import private_median_box
from dpsynth_assets.privacy.softmax_draws import draw_tokens
from dpsynth_assets.privacy.token_selection import (
    NextLogits,
    PrivateTokenMeter,
    allowed_tokens,
    rows_by_batch,
)

if TYPE_CHECKING:
    import torch

_SCORES_TOGETHER = 1 << 16
"""Scores of how many batches are drawn from in one operation: what stays in a core's cache."""


@dataclass(frozen=True, kw_only=True)
class MedianTokenMechanism:
    """Draws x ~ softmax(median_z clip_c(z) / τ) for each batch and bounds what the draw cost.

    Attributes:
        clip_bound: c > 0.
        temperature: τ > 0.
        relation: Declared neighbouring relation.
        max_records_per_unit: Records one privacy unit may contribute.
        logit_slack: Largest move of a row's logits when other rows of its forward pass change.

    **Privacy** K logit vectors that enter or leave move the rank of the median by at most K/2
    (proof in `rank_window`), so each coordinate of a neighbour's median is in [left, right].
    γ(Z, x) is the exact supremum of |log P(x) − log P'(x)| over that box: never above the
    paper's Definition 4 for the same box, and right where the paper's is not: even |Z| under
    replace-one, and |Z| < 3 (errata B-000.4 and B-000.5). Medians of lattice numbers are compared
    without rounding, tokens have exactly their probability, and γ is rounded up.

    **Source** Amin et al. 2025, Eq. (3), Definitions 3 and 4, Theorem 2.
    """

    clip_bound: float
    temperature: float
    relation: NeighboringRelation
    max_records_per_unit: int = 1
    logit_slack: float = 0.0

    guarantee = GuaranteeType.EX_POST

    def __post_init__(self) -> None:
        """Refuses settings outside their domain."""
        check_positive("clip_bound", self.clip_bound)
        check_positive("temperature", self.temperature)
        check_at_least(0, logit_slack=self.logit_slack)
        _ = self.changes

    @property
    def changes(self) -> int:
        """Logit vectors that may enter or leave when one unit changes, each in its own batch."""
        return changed_contexts(self.relation, self.max_records_per_unit)

    def realised_epsilon(self, gamma_by_batch: np.ndarray) -> float:
        """Combines per-batch sums of γ over their tokens into the run's ex-post bound.

        Args:
            gamma_by_batch: (batches,) for every batch, the empty ones too: a neighbour may add
                a record there.

        Returns:
            The sum of the `changes` largest entries, as a replaced record may change its batch;
            for add/remove the maximum, as in Theorem 2. Private and not sanitised.
        """
        largest = np.sort(np.asarray(gamma_by_batch, dtype=np.float64))[::-1]
        return float(largest[: self.changes].sum())

    def select(self, logits: NextLogits, meter: PrivateTokenMeter) -> tuple[np.ndarray, np.ndarray]:
        """Draws one token for each active batch.

        Args:
            logits: A row without a finite maximum takes no part; a batch without rows has median
                zero. Public ones are not read.
            meter: Pays for the draws before any logit is read.

        Returns:
            (G,) int64 token ids and (G,) float64 realised γ >= 0, aligned with `active`. γ is a
            function of private data and must not be released.

        Raises:
            UnaccountedReleaseError: If a batch has no private token left.
            ValueError: If shapes disagree or no token is allowed.
        """
        meter.spend(logits.active)
        logits.check()
        columns = allowed_tokens(logits.private, logits.allowed)
        width = logits.private.shape[1] if columns is None else len(columns)
        rows_of = rows_by_batch(logits.batch_of_row, logits.active)
        together = max(1, _SCORES_TOGETHER // width)
        parts = [rows_of[start : start + together] for start in range(0, len(rows_of), together)]
        draw = partial(self._draw, logits.private, columns=columns)
        drawn = map_on_cpu_threads(draw, parts, plain_entries(logits.private))
        tokens = np.concatenate([each[0] for each in drawn] or [np.zeros(0, dtype=np.int64)])
        gamma = np.concatenate([each[1] for each in drawn] or [np.zeros(0)])
        # A record's own batch bears what it does to every batch of this call.
        gamma += self.moved_by_slack(len(gamma))
        return (tokens if columns is None else columns.cpu().numpy()[tokens]), gamma

    def moved_by_slack(self, draws: int) -> float:
        """Bounds what rounding of a record may move `draws` draws of its forward pass together.

        A move of 2·slack in every clipped entry moves a draw's score and its normaliser each. A
        batch of the pass that draws nothing at a step bears it, too: its records are in the pass.
        """
        return 4.0 * self.logit_slack / self.temperature * draws

    def _draw(
        self,
        private_logits: "torch.Tensor",
        rows_of: "Sequence[torch.Tensor | slice]",
        columns: "torch.Tensor | None",
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws (g,) tokens of some batches and bounds (g,) γ, without the slack's part."""
        import torch

        boxes = torch.stack([self._private_box(private_logits, rows, columns) for rows in rows_of])
        tokens = draw_tokens(boxes[:, 1], Fraction(self.temperature))  # [amin2025 A1:L8]
        boxes /= self.temperature
        gamma = _gamma_of(boxes, torch.from_numpy(tokens).to(boxes.device)).cpu().numpy()
        return tokens, gamma + self._rounding_of_gamma(boxes.shape[2])

    def _rounding_of_gamma(self, tokens: int) -> float:
        """Bounds what float64 may take off a computed γ over `tokens` tokens.

        γ is a difference of two log-probabilities, each a quotient less a log-sum-exp. With
        u = 2^-53 quotients are off by u c/τ, a log-sum-exp by (A + 8) u + u (c/τ + ln A) besides:
        (A + 3 c/τ + ln A + 8) u each, and twice that in the difference.
        """
        return (tokens + 4.0 * self.clip_bound / self.temperature + 64.0) * 2.0**-51

    def _private_box(
        self,
        private_logits: "torch.Tensor",
        rows: "torch.Tensor | slice",
        columns: "torch.Tensor | None",
    ) -> "torch.Tensor":
        """Computes (3, A) float64 left bound, median and right bound of one batch's rows."""
        own = rows if isinstance(rows, slice) else rows.to(private_logits.device)
        logits = private_logits[own]
        logits = logits if columns is None else logits.index_select(1, columns)
        return private_median_box(logits, ClipLattice(self.clip_bound), self.changes)


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
