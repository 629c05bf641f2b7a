"""The module Dagster loads: gathers what is declared, verifies the privacy lineage."""

import warnings
from pathlib import Path

import dagster as dg

warnings.filterwarnings("ignore", category=dg.BetaWarning)
warnings.filterwarnings("ignore", category=dg.PreviewWarning)


@dg.definitions
def defs() -> dg.Definitions:
    """All definitions of the code location; a graph that breaks the lineage does not load."""
    import dpsynth_assets.defs
    from dpsynth_assets.lineage import verify_privacy_lineage

    # Not load_from_defs_folder: that one needs pyproject.toml, which a wheel does not carry.
    tree = dg.ComponentTree.from_module(
        defs_module=dpsynth_assets.defs, project_root=Path(__file__).parents[1]
    )
    loaded = tree.build_defs()
    verify_privacy_lineage(loaded)
    return loaded
