"""Logits on which a clip, its rounding and ties all show, and their clipped form by tensors."""

import numpy as np
import torch

from dpsynth_assets.privacy.clipping import ClipLattice

TOKENS = 300
LATTICE = ClipLattice(6.0)


def spread_logits(rows, scale, seed=0):
    """Rows at different levels, with entries at the floor and at the maximum but for rounding."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(100 * scale, scale, (rows, TOKENS)) + draw.normal(0, 50, (rows, 1))
    edge = logits.max(axis=1, keepdims=True) - draw.choice([0, 12.0], logits.shape)
    edge *= 1 + draw.integers(-2, 3, logits.shape) * 2.0**-23
    return np.where(draw.random(logits.shape) < 0.3, edge, logits).astype(np.float32)


def placed(logits):
    tensor = torch.from_numpy(logits)
    return LATTICE.placed(tensor, LATTICE.shift_of(tensor.amax(dim=1).double()))
