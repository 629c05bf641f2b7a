"""Selects the assets that `dpsynth run` materialises: never more than its selection names.

Dagster takes an empty list of assets for all assets of all cohorts. A selection with a misspelt key
resolves to such a list, so it is refused here, before anything runs.
"""

import difflib
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import typer

from dpsynth_assets.datasets import CohortSpec, PrivateDatasetSpec

if TYPE_CHECKING:
    from dagster import AssetKey

_NAMED_KEY = re.compile(r"""\bkey:\s*(?:"([^"]*)"|'([^']*)'|([^\s()"']+))""")


def selected_assets(selection: str, spec: PrivateDatasetSpec, graph: Any) -> list[Any]:
    """Resolves a selection within one cohort and what that cohort is built on.

    The assets of a cohort that is a partition are its dataset's; a selection may name them so, or
    by the cohort's own name.

    Args:
        selection: Dagster's selection syntax; empty for the whole cohort.
        spec: The cohort that the command was given.
        graph: Asset graph of the code location.

    Returns:
        Asset keys, at least one.

    Raises:
        typer.BadParameter: The selection cannot be parsed, names an asset that does not exist,
            selects nothing, or selects an asset that the cohort does not need.
    """
    import dagster as dg

    cohort, dataset = spec.name, _in_graph(spec)
    whole = f'+key:"{dataset}/*"'
    asked = _own_key(cohort).sub(dataset, selection.strip()) or whole
    names = sorted(key.to_user_string() for key in graph.get_all_asset_keys())
    _refuse_unknown_keys(asked, names)
    try:
        keys = list(dg.AssetSelection.from_string(asked).resolve(graph))
    except dg.DagsterError:
        raise typer.BadParameter(
            f"""Expected an asset selection such as 'key:"{cohort}/*"', got {asked!r}, which """
            "cannot be parsed. Quote the key, and close every quote and bracket."
        ) from None
    if not keys:
        raise typer.BadParameter(
            f"Expected a selection of at least one asset, got {asked!r}, which selects none. "
            f"""Leave --select out, or name assets: 'key:"{cohort}/*"'."""
        )
    allowed = set(dg.AssetSelection.from_string(whole).resolve(graph))
    outside = sorted(key.to_user_string() for key in keys if key not in allowed)
    if outside:
        raise typer.BadParameter(
            f"Expected assets of cohort {cohort!r} and of what it is built on, got "
            f"{_a_few(outside)}. Run the other cohort by its own name."
        )
    return keys


def name_in_ledger(key: "AssetKey", spec: PrivateDatasetSpec) -> list[str]:
    """Parts of the name that the ledger has for an asset of a run of one cohort."""
    own = key.path[0] == _in_graph(spec)
    return [spec.name if own else key.path[0], *key.path[1:]]


def _in_graph(spec: PrivateDatasetSpec) -> str:
    """First part of the keys of a cohort's assets."""
    return spec.part.dataset if isinstance(spec, CohortSpec) else spec.name


def _own_key(cohort: str) -> re.Pattern[str]:
    """The name of a cohort where a key begins with it."""
    return re.compile(rf"(?<![\w/]){re.escape(cohort)}(?=/)")


def _refuse_unknown_keys(selection: str, names: list[str]) -> None:
    """Refuses a selection that names a key which no asset has, though others may match."""
    for found in _NAMED_KEY.finditer(selection):
        pattern = next(group for group in found.groups() if group is not None)
        if not any(fnmatchcase(name, pattern) for name in names):
            close = difflib.get_close_matches(pattern, names, n=3, cutoff=0.5)
            hint = f"Did you mean {_a_few(close)}?" if close else "See `dpsynth plan` for names."
            raise typer.BadParameter(
                f"Expected the key of an asset, got {pattern!r}, which no asset has. {hint}"
            )


def _a_few(names: Iterable[str], most: int = 3) -> str:
    listed = list(names)
    shown = ", ".join(repr(name) for name in listed[:most])
    return shown if len(listed) <= most else f"{shown} and {len(listed) - most} more"
