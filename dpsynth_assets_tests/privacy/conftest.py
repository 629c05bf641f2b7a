"""A ledger without entries, and sums in one block or in many."""

import pytest

from dpsynth_assets.privacy import clipping
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets_tests.privacy.ledger_cases import sqlite_url


@pytest.fixture
def ledger(tmp_path):
    return Ledger(sqlite_url(tmp_path))


@pytest.fixture(params=[1 << 21, 64], ids=["one block", "many blocks"])
def block_entries(request, monkeypatch):
    monkeypatch.setattr(clipping, "BLOCK_ENTRIES", request.param)
