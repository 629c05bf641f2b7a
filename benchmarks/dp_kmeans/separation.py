"""Clustering by separation: nodes of the tree are cut where few records lie, by private choices.

Shape letters: N records, d dimensions, T levels of the tree, K bins of a dimension, G nodes of a
level, A = d (K − 1) cuts that a node may choose among.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from dp_kmeans.noisy_tree import UP, Halving, NoisyTree

from dpsynth_assets.privacy.events import BoundedRangeEvent, Event
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.histogram import l2_sensitivity
from dpsynth_assets.privacy.renyi import zcdp_rho
from dpsynth_assets.privacy.softmax_draws import draw_tokens

BINS = 24
"""K: fewer cuts to choose among than the paper has, so that less noise hides the best."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SeparationMechanism(NoisyTree):
    """Cuts every node across one dimension, by the exponential mechanism; else see `NoisyTree`.

    Attributes:
        depth: T >= 1.
        width: d >= 1.
        cut_range: η > 0, range of the choices of one level.
        bins: K >= 2, bins of equal width of each dimension, whose inner edges are the cuts.

    **Privacy** The score of a cut is u = min(records on its left, records on its right) − records
    in the two bins beside it. One record more or less in a node moves each of the two terms by 0
    or 1 the same way, so u by −1, 0 or 1. A cut is drawn with probability ∝ exp(λ u); where k
    records of a node come or go, the log-likelihood ratio of its cuts is within λ k of the same
    constant on either side: its range is at most 2 λ k. Nodes of a level share no record and draw
    independently, so that ranges add up: 2 λ times the records by which neighbours differ, which
    is η. Given the cuts, a record's side is a function of that record; `NoisyTree` has the rest.

    **Source** Liebenow et al. 2024, DPM: Clustering Sensitive Data through Separation (cuts that
    are central and lie in a sparse interval, by the exponential mechanism; noisy counts; noisy
    means). Theirs divides by noisy counts and has rules to stop early; ours counts records, which
    needs no denominator.
    """

    depth: int
    width: int
    cut_range: float
    bins: int = BINS

    def __post_init__(self) -> None:
        """Refuses settings outside their domain."""
        if min(self.depth, self.width) < 1 or self.bins < 2:
            raise ValueError(
                f"Expected depth >= 1, width >= 1 and bins >= 2, got {self.depth}, {self.width} "
                f"and {self.bins}."
            )
        super().__post_init__()

    @property
    def levels(self) -> int:
        """T."""
        return self.depth

    @property
    def dimensions(self) -> int:
        """D."""
        return self.width

    @property
    def cut_events(self) -> tuple[Event, ...]:
        """One choice for each node of a level, of nodes that share no record."""
        return (BoundedRangeEvent(eta=self.cut_range, count=1),)

    def _halving(self, clipped: np.ndarray) -> Halving:
        binned = self._binned(clipped)

        def halved(_level: int, node: np.ndarray, nodes: int) -> np.ndarray:
            dimension, edge = self._chosen(self._scores(binned, node, nodes))
            inside = np.maximum(node, 0)
            own = np.take_along_axis(binned, dimension[inside][:, None], axis=1)[:, 0]
            sides: np.ndarray = own >= edge[inside]
            return sides

        return halved

    def _binned(self, clipped: np.ndarray) -> np.ndarray:
        """(N, d) bin of every coordinate, in [0, K): integers from -B to B, cut evenly."""
        bound = self._lattice.steps(self.l2_bound)
        wide = -(-(2 * bound + 1) // self.bins)
        binned: np.ndarray = (clipped + bound) // wide
        return binned

    def _scores(self, binned: np.ndarray, node: np.ndarray, nodes: int) -> np.ndarray:
        """(G, d, K − 1) scores of the cuts of each node, exact integers. Private."""
        counts = np.zeros((nodes, self.width, self.bins), dtype=np.int64)
        inside = node >= 0
        np.add.at(counts, (node[inside][:, None], np.arange(self.width), binned[inside]), 1)
        left = np.cumsum(counts, axis=2)[..., :-1]
        right = counts.sum(axis=2, keepdims=True) - left
        scores: np.ndarray = np.minimum(left, right) - counts[..., :-1] - counts[..., 1:]
        return scores

    def _chosen(self, private_scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(G,) dimensions and (G,) bins from which on a record lies on the right; released."""
        import torch

        divisor = Fraction(2 * self.moved) / Fraction(float(self.cut_range))
        flat = private_scores.reshape(len(private_scores), -1).astype(np.float64)
        drawn = draw_tokens(torch.from_numpy(flat), divisor)
        return drawn // (self.bins - 1), drawn % (self.bins - 1) + 1


def separation_noise(
    epsilon: float,
    delta: float,
    depth: int,
    relation: NeighboringRelation,
    max_records_per_unit: int = 1,
    shares: tuple[float, float] = (0.5, 0.15),
) -> tuple[float, float, float]:
    """Splits ε by zCDP: `cut_range`, `count_noise_std` and `sum_noise_std`.

    Args:
        epsilon: ε > 0 of one release.
        delta: δ in (0, 1).
        depth: T >= 1.
        relation: Declared neighbouring relation.
        max_records_per_unit: m.
        shares: Of ρ, for the cuts and for the counts of all levels; sums get the rest.
    """
    rho, (cuts, counts) = float(zcdp_rho(epsilon, delta)), shares
    eta = math.sqrt(8.0 * rho * cuts / depth) / UP
    shift = l2_sensitivity(relation, max_records_per_unit)
    moved = NeighboringRelation(relation).records_changed * max_records_per_unit
    return (
        eta,
        max(1.0, shift / math.sqrt(2.0 * rho * counts / depth)) * UP,
        moved / math.sqrt(2.0 * rho * (1.0 - cuts - counts)) * UP,
    )
