"""What token mechanisms compute, in plain NumPy float64: tensor code is tested against it."""

import numpy as np

from dpsynth_assets.privacy.clipping import clip_logits
from dpsynth_assets.privacy.difference_lattice import DifferenceLattice
from dpsynth_assets.privacy.median_box import rank_window


def mean_scores_oracle(
    private_logits: np.ndarray, *, clip_bound: float, expected_batch_size: int, temperature: float
) -> np.ndarray:
    """Computes (V,) scores z̄/τ of one batch of (n, V) logits in NumPy float64, n >= 0."""
    private_logits = np.asarray(private_logits, dtype=np.float64)
    total = np.zeros(private_logits.shape[1])
    for row in private_logits:
        if np.isfinite(row.max()):
            total += clip_logits(row, clip_bound)
    return total / (expected_batch_size * temperature)


def difference_scores_oracle(
    private_logits: np.ndarray,
    public_logits: np.ndarray,
    support: np.ndarray,
    *,
    clip_bound: float,
    expected_batch_size: int,
    temperature: float,
) -> np.ndarray:
    """Computes (A,) scores of one batch of (n, V) logits, (V,) public ones, (A,) support ids."""
    lattice = DifferenceLattice(clip_bound, expected_batch_size)
    public = np.asarray(public_logits, dtype=np.float64)[support]
    public = public - np.logaddexp.reduce(public)
    total = np.rint(expected_batch_size * public / lattice.unit)
    for row in np.asarray(private_logits, dtype=np.float64)[:, support]:
        if np.isfinite(row.max()):
            shifted = row - row.max()
            units = np.rint(np.log(np.exp(shifted).sum()) / lattice.normaliser_unit)
            difference = shifted - units * lattice.normaliser_unit - public
            total += np.rint(np.clip(difference, -lattice.bound, lattice.bound) / lattice.unit)
    return np.asarray(total * lattice.unit / (expected_batch_size * temperature))


def distance_oracle(
    private_logits: np.ndarray, public_logits: np.ndarray, expected_batch_size: int
) -> float:
    """Computes d(Z, z_pub) of one batch of (n, V) logits and (V,) public ones in NumPy float64."""

    def softmax(logits: np.ndarray) -> np.ndarray:
        weights = np.exp(logits - logits.max())
        return np.asarray(weights / weights.sum())

    rows = np.asarray(private_logits, dtype=np.float64)
    total = np.zeros(rows.shape[1])
    for row in rows:
        if np.isfinite(row.max()):
            total += softmax(row)
    public = softmax(np.asarray(public_logits, dtype=np.float64))
    return float(np.abs(total / expected_batch_size - public).sum())


def median_oracle(
    private_logits: np.ndarray, *, clip_bound: float, temperature: float, changes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Computes (V,) scores median/τ and (V,) γ of each token, from (n, V) logits, n >= 0."""
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
