"""The module Dagster loads: gathers what is declared, verifies the privacy lineage."""

import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

warnings.filterwarnings("ignore", category=dg.BetaWarning)
warnings.filterwarnings("ignore", category=dg.PreviewWarning)


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Pauses the garbage collector: what is imported and declared stays, a seventh of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dg.definitions
@_garbage_kept()
def defs() -> dg.Definitions:
    """All definitions of the code location; a graph that breaks the lineage does not load."""
    from dpsynth_assets.datasets import dataset_folders
    from dpsynth_assets.defs.sensors import sensors
    from dpsynth_assets.orchestration.assets.automation import first_rows_first
    from dpsynth_assets.orchestration.components.declared import definitions_of_files
    from dpsynth_assets.orchestration.lineage import verify_privacy_lineage
    from dpsynth_assets.orchestration.metadata import as_shown
    from dpsynth_assets.privacy.cpu import check_declared_threads

    os.umask(0o077)  # A code server or a run that no `dpsynth` started writes as one that it did.
    check_declared_threads()
    # Not by Dagster's tree of components: it stops at the first file that it cannot read.
    files = definitions_of_files(dataset_folders())
    loaded = first_rows_first(dg.Definitions.merge(resources(), sensors(), files))
    loaded = loaded.map_asset_specs(func=as_shown)
    verify_privacy_lineage(loaded)
    return loaded


def resources() -> dg.Definitions:
    """Binds resources, whose places are those of the installation."""
    from dpsynth_assets.orchestration.resources.executors import declared_executor
    from dpsynth_assets.orchestration.resources.progress import Progress
    from dpsynth_assets.orchestration.resources.stores import (
        ArtifactIOManager,
        Models,
        PartWorkers,
        PrivacyLedger,
        ReleaseStore,
        SensitiveStore,
    )

    return dg.Definitions(
        resources={
            "io_manager": ArtifactIOManager(),
            "ledger": PrivacyLedger(),
            "sensitive_store": SensitiveStore(),
            "release_store": ReleaseStore(),
            "models": Models(),
            "progress": Progress(),
            "workers": PartWorkers(),
        },
        executor=declared_executor(),
    )
