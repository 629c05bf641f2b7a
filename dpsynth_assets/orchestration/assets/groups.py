"""Groups of the asset graph: a box for each privacy level of a cohort, and one for each method.

The web UI draws groups as boxes within boxes, and writes their names at every zoom, also where it
leaves out what a node is made with and its tags. So the box says the level, once for all in it, and
the method, of which every one has a corpus. A cohort that is opened shows its levels in the order
of the data: what is public or sensitive leads to what is released, and all of it to what is
internal. No name needs a number for that.
"""

from dpsynth_assets.methods.dataset_plan import PlannedMethod
from dpsynth_assets.tags import INTERNAL, PRIVACY_LEVELS, PUBLIC, RELEASED

PUBLIC_BASES = PUBLIC
"""Holds the group of every public base; no cohort has this name."""


def public_group(base: str) -> str:
    """Group of one public base."""
    return f"{PUBLIC_BASES}/{base}"


def level_group(dataset: str, level: str) -> str:
    """Group of what a cohort has of one privacy level and of no single method.

    Args:
        dataset: Name of the cohort.
        level: One of `tags.PRIVACY_LEVELS`.

    Raises:
        ValueError: There is no such level.
    """
    if level not in PRIVACY_LEVELS:
        raise ValueError(f"Expected one of {sorted(PRIVACY_LEVELS)}, got {level!r}.")
    return f"{dataset}/{level}"


def method_group(dataset: str, planned: PlannedMethod) -> str:
    """Group of what a method releases: its stages, its candidate and its corpus."""
    return f"{level_group(dataset, RELEASED)}/{planned.folder}"


def steward_group(dataset: str, planned: PlannedMethod) -> str:
    """Group of what the steward alone sees of a method."""
    return f"{level_group(dataset, INTERNAL)}/{planned.folder}"
