"""Loads extensions of other packages through Python entry points."""

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any


def with_those_of_others(
    own: Mapping[str, Any], group: str, kind: str, is_one: Callable[[Any], bool]
) -> dict[str, Any]:
    """Gives what this package has by name, then what others add, in the order of their names.

    Args:
        own: What this package has.
        group: Group of entry points; each is named as what it leads to.
        kind: What is expected, e.g. `Method class`.
        is_one: Says whether a loaded value is of that kind.

    Raises:
        ImportError: An entry point leads to something else, or has the name of another one.
    """
    found = dict(own)
    for point in sorted(entry_points(group=group), key=lambda each: each.name):
        try:
            loaded = point.load()
        except Exception as error:  # Anything that a package raises when it is imported.
            got = f"{type(error).__name__}: {error}"
            raise ImportError(_complaint(point, kind, got)) from error
        if not is_one(loaded) or loaded.name != point.name:
            raise ImportError(_complaint(point, kind, repr(loaded)))
        if found.get(point.name, loaded) is not loaded:
            raise ImportError(_complaint(point, kind, f"the name {point.name!r}, which is taken"))
        found[point.name] = loaded
    return found


def _complaint(point: EntryPoint, kind: str, got: str) -> str:
    owner = point.dist.name if point.dist is not None else "a package"
    return (
        f"Expected a {kind} with a new name as entry point {point.name} of group {point.group} in "
        f"{owner}, got {got}. Correct or remove that package."
    )
