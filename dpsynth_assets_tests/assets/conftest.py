"""Fixtures of the asset tests."""

import pytest

from dpsynth_assets.definitions import defs
from dpsynth_assets_tests.object_stores import bucket, s3_address
from dpsynth_assets_tests.prepared import keep_demo_plans

__all__ = ["bucket", "s3_address"]


@pytest.fixture(scope="session")
def loaded(tmp_path_factory):
    """The code location as it is shipped, in a home that has planned it."""
    home = tmp_path_factory.mktemp("shipped")
    keep_demo_plans(tmp_path_factory, home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPSYNTH_HOME", str(home))
        patch.delenv("DPSYNTH_DATASETS", raising=False)
        return defs()


@pytest.fixture(scope="session")
def graph(loaded):
    """Its asset graph."""
    return loaded.resolve_asset_graph()
