"""Run config, which anyone who can launch may write, moves neither ledger nor stores."""

import dagster as dg
import pytest

from dpsynth_assets.definitions import resources
from dpsynth_assets.orchestration.resources.stores import (
    PrivacyLedger,
    ReleaseStore,
    SensitiveStore,
)
from dpsynth_assets.paths import home

PLACES = {
    "ledger": ("url", "sqlite:///elsewhere.sqlite"),
    "sensitive_store": ("root", "elsewhere"),
    "release_store": ("root", "elsewhere"),
    "io_manager": ("base_dir", "elsewhere"),
}


@dg.asset
def places(
    ledger: PrivacyLedger, sensitive_store: SensitiveStore, release_store: ReleaseStore
) -> dict[str, str]:
    return {"sensitive": str(sensitive_store.base), "releases": str(release_store.base)}


@pytest.fixture
def job():
    bound = dg.Definitions(assets=[places], resources=resources().resources)
    return bound.resolve_implicit_global_asset_job_def()


@pytest.mark.parametrize("resource", PLACES)
@pytest.mark.parametrize("wrapped", [True, False])
def test_no_run_config_names_another_place(job, resource, wrapped):
    field, value = PLACES[resource]
    config = {field: value}
    if not wrapped:
        config = {f"_{field}": value}
    with pytest.raises(dg.DagsterInvalidConfigError):
        job.execute_in_process(run_config={"resources": {resource: {"config": config}}})


def test_places_follow_the_environment(job, own_home):
    result = job.execute_in_process()
    assert result.output_for_node("places") == {
        "sensitive": str(home().sensitive),
        "releases": str(home().releases),
    }
