"""The only sampler of privacy noise. Operating-system entropy, no seed, no floating-point sums.

Integer noise comes from OpenDP, whose discrete Laplace and Gaussian samplers are exact (Canonne,
Kamath, Steinke 2020). Categorical draws use one 53-bit uniform in float64, whose rounding moves
a log-probability by at most about V · 2^-52 (6e-11 for V = 256k), far below any η.
"""

import os
import threading
from collections.abc import Sequence

import numpy as np


class SecureUniform:
    """Uniforms in (0, 1) with 53 bits each from `os.urandom`, drawn in blocks.

    A forked child drops its parent's buffer, so that two processes never share a uniform.
    """

    def __init__(self, block: int = 4096) -> None:
        """Sets how many uniforms one call to the operating system fetches."""
        self._block = int(block)
        self._buffer = np.empty(0)
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._buffer = np.empty(0)
        self._lock = threading.Lock()

    def random(self, size: int) -> np.ndarray:
        """Draws (size,) float64 uniforms at the centres of 2^53 equal cells of (0, 1)."""
        with self._lock:
            if size > self._buffer.size:
                words = np.frombuffer(os.urandom(8 * max(size, self._block)), dtype=np.uint64)
                self._buffer = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
            drawn, self._buffer = self._buffer[:size], self._buffer[size:]
        return drawn


secure_uniform = SecureUniform()
"""The uniforms of this process."""


def discrete_laplace(private_values: Sequence[int], scale: float) -> list[int]:
    """Adds discrete Laplace noise, P(k) ∝ exp(−|k|/scale), to each integer.

    **Privacy** Pure Δ₁/scale-DP for L1 sensitivity Δ₁ of the whole vector.
    """
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    return list(dp.m.make_laplace(*space, scale=float(scale))([int(v) for v in private_values]))


def discrete_gaussian(private_values: Sequence[int], scale: float) -> list[int]:
    """Adds discrete Gaussian noise, P(k) ∝ exp(−k²/(2 scale²)), to each integer.

    **Privacy** Δ₂²/(2 scale²)-zCDP for L2 sensitivity Δ₂ of the whole vector.
    """
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float)
    return list(dp.m.make_gaussian(*space, scale=float(scale))([int(v) for v in private_values]))


def secure_categorical(scores: np.ndarray) -> int:
    """Draws an index from softmax(scores) by inverse CDF in float64.

    Args:
        scores: (V,) finite numbers, already divided by the temperature.

    Raises:
        ValueError: If `scores` is empty or not finite.
    """
    scores = np.asarray(scores, dtype=np.float64)
    if scores.size == 0 or not np.isfinite(scores).all():
        raise ValueError("Expected at least one score and all finite, got none or a non-finite.")
    cumulative = np.cumsum(np.exp(scores - scores.max()))
    target = secure_uniform.random(1)[0] * cumulative[-1]
    return int(min(np.searchsorted(cumulative, target, side="right"), scores.size - 1))
