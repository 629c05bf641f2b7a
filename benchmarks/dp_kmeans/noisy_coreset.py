"""A noisy coreset: the tree of public hyperplanes of Chang and Kamath (2021).

Shape letters: N records, d dimensions, T hyperplanes (levels of the tree).
"""

import math
from dataclasses import dataclass, field

import numpy as np
from dp_kmeans.noisy_tree import UP, Halving, NoisyTree

from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.histogram import l2_sensitivity
from dpsynth_assets.privacy.renyi import zcdp_rho

HYPERPLANE_STEPS = 1 << 20
"""Length of a hyperplane's normal in integers: products with a record stay below 2^46, exact."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CoresetMechanism(NoisyTree):
    """Halves the records by one public hyperplane after another; else see `NoisyTree`.

    Attributes:
        hyperplanes: (T, d) finite normals, none zero; public, in the order of the levels.

    **Privacy** A record's side of each hyperplane is a function of that record: both are integers
    and their products exact. `NoisyTree` has the rest of the proof.

    **Source** Chang and Kamath 2021, Practical differentially private clustering (the tree of
    random hyperplanes and its noisy averages). Google's code draws float noise, which has no
    exact sensitivity; ours is discrete, on a lattice.
    """

    hyperplanes: np.ndarray = field(repr=False)

    def __post_init__(self) -> None:
        """Refuses settings outside their domain."""
        planes = np.asarray(self.hyperplanes, dtype=np.float64)
        if planes.ndim != 2 or not planes.size or not np.isfinite(planes).all():
            raise ValueError(f"Expected (T, d) finite hyperplanes, got shape {planes.shape}.")
        if not np.abs(planes).max(axis=1).all():
            raise ValueError("Expected normals of hyperplanes other than zero, got a zero row.")
        super().__post_init__()

    @property
    def levels(self) -> int:
        """T, a hyperplane each."""
        return len(self.hyperplanes)

    @property
    def dimensions(self) -> int:
        """D of the hyperplanes."""
        return int(self.hyperplanes.shape[1])

    def _halving(self, clipped: np.ndarray) -> Halving:
        sides = self._sides(clipped)
        return lambda level, _node, _nodes: sides[:, level]

    def _sides(self, clipped: np.ndarray) -> np.ndarray:
        """(N, T) bool: on which side of each hyperplane a record lies. Private.

        Float64 products of these integers are exact in any order of summation, so that no record's
        side depends on the others of its block.
        """
        planes = np.asarray(self.hyperplanes, dtype=np.float64)
        planes = planes / np.abs(planes).max(axis=1, keepdims=True)
        planes *= HYPERPLANE_STEPS / np.linalg.norm(planes, axis=1, keepdims=True)
        sides: np.ndarray = clipped.astype(np.float64) @ np.rint(planes).T >= 0
        return sides


def coreset_noise(
    epsilon: float,
    delta: float,
    levels: int,
    relation: NeighboringRelation,
    max_records_per_unit: int = 1,
    count_share: float = 0.3,
) -> tuple[float, float]:
    """Splits ε over T counts and the sums by zCDP: `count_noise_std` and `sum_noise_std`.

    Args:
        epsilon: ε > 0 of one release.
        delta: δ in (0, 1).
        levels: T >= 1.
        relation: Declared neighbouring relation.
        max_records_per_unit: m.
        count_share: Share of ρ that counts get together, in (0, 1).
    """
    rho = float(zcdp_rho(epsilon, delta))
    counts = l2_sensitivity(relation, max_records_per_unit) / math.sqrt(
        2.0 * rho * count_share / levels
    )
    moved = NeighboringRelation(relation).records_changed * max_records_per_unit
    sums = moved / math.sqrt(2.0 * rho * (1.0 - count_share))
    return max(1.0, counts) * UP, sums * UP
