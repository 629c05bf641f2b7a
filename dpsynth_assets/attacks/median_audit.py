"""Exact audit of drawn median tokens: how much of γ the contexts of one unit really account for.

Each drawn token's log-probability is computed again without each context and, where a unit may
have more than one, without sets of as many; and with crafted contexts in their place. γ must bound
every difference; the share of γ that a removal attains says how far the worst case is from the
contexts at hand. No sampling error: a violation is a proof. Sets are sampled where they are too
many (`neighbour_sets`), and a unit's contexts all stand in one batch: where they spread, a batch
loses fewer of them, and the run's bound adds up batches.

**Source** Amin et al. 2025, appendix D.5.2, which removes contexts. Crafted contexts and sets are
ours: the bound is for them, and the printed γ of even batches fails under replace-one alone
(B-000.4).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.attacks.audits.audit import Finding
from dpsynth_assets.attacks.median_neighbours import TokenGaps, token_gaps
from dpsynth_assets.privacy.directed_rounding import rounded_down, rounded_up
from dpsynth_assets.privacy.median import MedianTokenMechanism
from dpsynth_assets.privacy.token_meter import PrivateTokenMeter

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class BatchGap:
    """One batch's bound and what neighbours attain of it, in natural-log units.

    Attributes:
        batch: Which batch.
        contexts: Contexts it held.
        tokens: Tokens drawn from it.
        claimed: Sum of the reported γ.
        removed: Largest |log P − log P'| of the whole draw over all removed sets of contexts.
        crafted: Sum over tokens of the largest gap that crafted contexts attain.
        excess: Largest rise of any single gap above its γ; never above 0 if γ is right.
    """

    batch: int
    contexts: int
    tokens: int
    claimed: float
    removed: float
    crafted: float
    excess: float

    @property
    def attained(self) -> float:
        """Share of the bound that removing contexts attains."""
        return self.removed / self.claimed if self.claimed > 0 else 0.0


@dataclass
class MedianAudit:
    """Adds up the gaps of every draw of a run.

    Attributes:
        mechanism: The audited mechanism.
        contexts: Contexts removed alone in each batch, the first ones; None for all.
    """

    mechanism: MedianTokenMechanism
    contexts: int | None = None
    _sums: dict[int, "_Sums"] = field(default_factory=dict, repr=False)

    def observe(self, batch: int, logits: np.ndarray, token: int, gamma: float) -> None:
        """Audits one token that the mechanism drew from (n, V) logits and priced at γ.

        A batch without contexts has none to remove and is passed over.
        """
        if not len(logits):
            return
        gaps = token_gaps(logits, token, self.mechanism, self.contexts)
        sums = self._sums.setdefault(batch, _Sums(len(logits), np.zeros(len(gaps.removed))))
        sums.add(gaps, gamma)

    @property
    def batches(self) -> tuple[BatchGap, ...]:
        """Findings by batch."""
        return tuple(sums.of(batch) for batch, sums in sorted(self._sums.items()))

    def finding(self) -> Finding:
        """Says whether any gap exceeds its γ: an excess above 0 is a proof against γ."""
        batches = self.batches
        worst = max((batch.excess for batch in batches), default=0.0)
        note = "; ".join(
            f"batch {b.batch}: γ {rounded_up(b.claimed, '.3g')}, by removal "
            f"{rounded_down(b.removed, '.3g')} ({b.attained:.0%})"
            for b in batches
        )
        return Finding(claimed=0.0, observed=max(0.0, worst), note=note)


@dataclass
class _Sums:
    contexts: int
    removed: np.ndarray
    tokens: int = 0
    claimed: float = 0.0
    crafted: float = 0.0
    excess: float = -np.inf

    def add(self, gaps: TokenGaps, gamma: float) -> None:
        crafted = float(np.abs(gaps.crafted).max())
        self.removed += gaps.removed
        self.tokens += 1
        self.claimed += gamma
        self.crafted += crafted
        largest = max(crafted, float(np.abs(gaps.removed).max()))
        self.excess = max(self.excess, largest - gamma)

    def of(self, batch: int) -> BatchGap:
        return BatchGap(
            batch=batch,
            contexts=self.contexts,
            tokens=self.tokens,
            claimed=self.claimed,
            removed=float(np.abs(self.removed).max()),
            crafted=self.crafted,
            excess=self.excess,
        )


@dataclass(frozen=True, kw_only=True)
class WatchedMedian(MedianTokenMechanism):
    """The real mechanism, whose every draw is handed to an audit after it was made.

    Attributes:
        watch: Called with batch, (n, V) logits, token and γ of each draw. For public logits only.
    """

    watch: Callable[[int, np.ndarray, int, float], None] = field(repr=False, compare=False)

    def select(
        self,
        private_logits: "torch.Tensor",
        batch_of_row: "torch.Tensor",
        active: np.ndarray,
        meter: PrivateTokenMeter,
        allowed: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws as the mechanism does, then shows the draws, among the tokens that are allowed."""
        tokens, gamma = super().select(private_logits, batch_of_row, active, meter, allowed)
        width = private_logits.shape[1]
        columns = np.arange(width) if allowed is None else np.flatnonzero(allowed)
        for batch, token, bound in zip(active, tokens, gamma, strict=True):
            rows = private_logits[batch_of_row == int(batch)].double().cpu().numpy()
            place = int(np.searchsorted(columns, token))
            self.watch(int(batch), rows[:, columns], place, float(bound))
        return tokens, gamma
