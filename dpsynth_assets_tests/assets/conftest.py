"""Fixtures of the asset tests."""

import pytest

from dpsynth_assets.definitions import defs
from dpsynth_assets_tests.object_stores import bucket, s3_address

__all__ = ["bucket", "s3_address"]


@pytest.fixture(scope="session")
def loaded():
    """The code location as it is shipped."""
    return defs()


@pytest.fixture(scope="session")
def graph(loaded):
    """Its asset graph."""
    return loaded.resolve_asset_graph()
