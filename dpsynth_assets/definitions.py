"""The module Dagster loads: gathers what is declared, verifies the privacy lineage."""

import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    import dpsynth_assets.defs
    from dpsynth_assets.orchestration.assets.automation import first_rows_first
    from dpsynth_assets.orchestration.components.declared import DatasetTree
    from dpsynth_assets.orchestration.lineage import verify_privacy_lineage
    from dpsynth_assets.orchestration.metadata import as_shown
    from dpsynth_assets.privacy.cpu import check_declared_threads

    os.umask(0o077)  # A code server or a run that no `dpsynth` started writes as one that it did.
    check_declared_threads()
    # Not load_from_defs_folder: that one needs pyproject.toml, which a wheel does not carry.
    tree = DatasetTree(defs_module=dpsynth_assets.defs, project_root=Path(__file__).parents[1])
    # The path leaves out Dagster's catalogue of all installed component types: building it takes
    # as long as all of ours, in the server and in every step of every run.
    loaded = first_rows_first(tree.build_defs(tree.defs_module_path))
    loaded = loaded.map_asset_specs(func=as_shown)
    verify_privacy_lineage(loaded)
    return loaded
