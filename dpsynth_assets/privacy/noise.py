"""The only sampler of privacy noise. Operating-system entropy, no seed.

Integer noise comes from OpenDP, whose discrete Laplace and Gaussian samplers are exact (Canonne,
Kamath, Steinke 2020). Tokens are drawn from words of entropy, as many as it takes for each token to
have exactly its probability (`softmax_draws`). Only DP-SGD, whose gradients are too many for exact
integers, adds floating-point noise (`gaussian_like`); coins of Poisson samples compare a uniform of
53 bits, and their probability is off by up to 2^-54.
"""

import math
import os
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.privacy.errors import check_at_least

if TYPE_CHECKING:
    import torch

GAUSSIAN_BLOCK = 1 << 14
"""Numbers of a tensor that get their noise together, from 512 KiB of uniforms: a core's cache."""

EXPANDED_BYTES = 1 << 16
"""Requests from this size on are the keystream of a fresh operating-system key: 8 times as fast."""

UNIFORM_BLOCK = 1 << 20
"""Uniforms one call of `secure_bernoulli` holds at a time: 8 MiB."""


class SecureWords:
    """Words of 64 bits from operating-system entropy, fetched in blocks.

    A forked child drops its parent's buffer, so that two processes never share a word.
    """

    def __init__(self, block: int = 1024) -> None:
        """Sets how many words one call to the operating system fetches."""
        self._block = int(block)
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._buffer = np.empty(0, dtype=np.uint64)
        self._lock = threading.Lock()

    def __call__(self, count: int) -> np.ndarray:
        """Draws (count,) uint64, each number equally likely."""
        if count >= self._block:
            return _fresh_words(count)
        with self._lock:
            if count > self._buffer.size:
                self._buffer = _fresh_words(self._block)
            drawn, self._buffer = self._buffer[:count], self._buffer[count:]
        return drawn


def _fresh_words(count: int) -> np.ndarray:
    """Draws (count,) uint64 from entropy that nothing else uses."""
    return np.frombuffer(_entropy(8 * count), dtype=np.uint64)


secure_words = SecureWords()
"""The words of this process."""


def secure_uniform(size: int) -> np.ndarray:
    """Draws (size,) float64 uniforms at the centres of 2^53 equal cells of (0, 1).

    Long requests pass the buffer of words by, so that threads draw side by side.
    """
    words = secure_words(size)
    words >>= np.uint64(11)  # in place: fresh memory costs as much as the arithmetic
    uniforms = words.astype(np.float64)
    uniforms += 0.5
    uniforms *= 2.0**-53
    return uniforms


def _entropy(count: int) -> bytearray:
    """Fetches `count` random bytes; many of them as a ChaCha20 keystream.

    The operating system answers from such a keystream itself, a page at a time. Here every request
    has a key of its own, 256 bits of `os.urandom`, that is used once and never kept, so that
    one request reveals nothing about another and a fork shares nothing.

    **Source** Bernstein 2017, "Fast-key-erasure random-number generators"; RFC 8439.
    """
    if count < EXPANDED_BYTES:
        return bytearray(os.urandom(count))
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    once = algorithms.ChaCha20(os.urandom(32), bytes(16))
    stream = bytearray(count)
    Cipher(once, mode=None).encryptor().update_into(stream, stream)
    return stream


def discrete_laplace(private_values: Sequence[int], scale: float) -> list[int]:
    """Adds discrete Laplace noise, P(k) ∝ exp(−|k|/scale), to each integer.

    **Privacy** Pure Δ₁/scale-DP for L1 sensitivity Δ₁ of the whole vector.
    """
    return list(_laplace_measurement(float(scale))([int(v) for v in private_values]))


@lru_cache(maxsize=64)
def _laplace_measurement(scale: float) -> Any:
    """Builds OpenDP's mechanism of one scale: ten times as slow as drawing from it."""
    from opendp.measurements import make_laplace
    from opendp.metrics import l1_distance

    return make_laplace(_integer_vectors(), l1_distance(T="i64"), scale=scale)


def discrete_gaussian(private_values: Sequence[int], scale: float) -> list[int]:
    """Adds discrete Gaussian noise, P(k) ∝ exp(−k²/(2 scale²)), to each integer.

    **Privacy** Δ₂²/(2 scale²)-zCDP for L2 sensitivity Δ₂ of the whole vector.
    """
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance

    measurement = make_gaussian(_integer_vectors(), l2_distance(T=float), scale=float(scale))
    return list(measurement([int(v) for v in private_values]))


def _integer_vectors() -> Any:
    """Builds OpenDP's domain without `opendp.prelude`, which loads scikit-learn: two seconds."""
    from opendp.domains import atom_domain, vector_domain
    from opendp.mod import enable_features

    enable_features("contrib")
    return vector_domain(atom_domain(T="i64"))


def secure_bernoulli(probabilities: np.ndarray) -> np.ndarray:
    """Tosses one coin for each probability, independently.

    Args:
        probabilities: (N,) numbers in [0, 1].

    Returns:
        (N,) bool, True with the stated probability up to 2^-54: never for 0, always for 1. A
        float32 uniform, which Opacus samples with, would be off by up to 2^-24.

    Raises:
        ValueError: If a probability is outside [0, 1].
    """
    chances = np.asarray(probabilities, dtype=np.float64)
    if chances.ndim != 1 or not ((chances >= 0) & (chances <= 1)).all():
        raise ValueError(f"Expected (N,) probabilities in [0, 1], got shape {chances.shape}.")
    heads = np.empty(len(chances), dtype=np.bool_)
    for start in range(0, len(chances), UNIFORM_BLOCK):
        part = chances[start : start + UNIFORM_BLOCK]
        heads[start : start + UNIFORM_BLOCK] = secure_uniform(len(part)) < part
    return heads


def gaussian_like(reference: "torch.Tensor", standard_deviation: float) -> "torch.Tensor":
    """Draws a tensor of independent N(0, standard_deviation²) numbers.

    Each number is half the sum of four Box-Muller normals, computed in float64 from operating
    system entropy and rounded once to the type of `reference`. One such normal reaches only part
    of the float64 numbers, so its lowest bits betray what it was added to; a sum of four needs
    2^159 guesses to undo. Work is done in blocks: memory beyond the result stays under 16 MiB.

    Args:
        reference: Any floating-point tensor; gives shape, type and device, its values are unused.
        standard_deviation: σ >= 0, absolute.

    Returns:
        A fresh tensor of the reference's shape, type and device.

    Raises:
        ValueError: If σ is negative or not finite.
        TypeError: If `reference` is not of a floating-point type.

    **Privacy** Standard deviation / L2 sensitivity is the noise multiplier of a `GaussianEvent`.

    **Source** Holohan and Braghin 2021, section 5.1 (arXiv:2107.10138), against the attack of
    Mironov 2012; Opacus has the same sum behind `secure_mode`, which needs a package that does
    not exist for current PyTorch.
    """
    import torch

    check_at_least(0, standard_deviation=standard_deviation)
    if not reference.is_floating_point():
        raise TypeError(f"Expected a floating-point reference, got {reference.dtype}.")
    noise = torch.empty(reference.shape, dtype=reference.dtype, device=reference.device)
    flat = noise.view(-1)
    for start, normals in _normal_blocks(flat.numel()):
        flat[start : start + len(normals)] = normals.mul_(standard_deviation).to(flat.dtype)
    return noise


def _normal_blocks(size: int) -> "Iterator[tuple[int, torch.Tensor]]":
    """Yields offsets and float64 blocks of `size` standard normals in all."""
    for start in range(0, size, GAUSSIAN_BLOCK):
        length = min(GAUSSIAN_BLOCK, size - start)
        yield start, _standard_normals((length + 1) // 2)[:length]


def _standard_normals(pairs: int) -> "torch.Tensor":
    """Draws (2 · pairs,) float64 standard normals, each from four independent ones.

    Box-Muller makes two independent normals of two uniforms, r cos θ and r sin θ. Both never
    enter one sum, where they would collapse into a single normal: cosines make the first half of
    the numbers and sines the second.
    """
    import torch

    uniforms = torch.from_numpy(secure_uniform(8 * pairs)).view(2, 4, pairs)
    radius = uniforms[0].log_().mul_(-2.0).sqrt_()
    angle = uniforms[1].mul_(2.0 * math.pi)
    cosines = torch.cos(angle).mul_(radius).sum(dim=0)
    sines = angle.sin_().mul_(radius).sum(dim=0)
    return torch.cat([cosines, sines]).mul_(0.5)
