"""A ledger without entries, sums in one block or in many, and training without its noise."""

import pytest
import torch

from dpsynth_assets.privacy import clipping, dp_sgd


@pytest.fixture(params=[1 << 21, 64], ids=["one block", "many blocks"])
def block_entries(request, monkeypatch):
    for name in ("BLOCK_ENTRIES", "CACHED_ENTRIES"):
        monkeypatch.setattr(clipping, name, request.param)


@pytest.fixture
def noiseless(monkeypatch):
    """Gradients without noise; the deviations that were asked for."""
    asked = []

    def zeros(reference, deviation):
        asked.append(deviation)
        return torch.zeros_like(reference)

    monkeypatch.setattr(dp_sgd, "gaussian_like", zeros)
    return asked
