"""The Dagster instance behind CLI runs: the same DAGSTER_HOME as the web UI."""

import difflib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import typer
from rich.console import Console

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.cohort_registry import name_in_file
from dpsynth_assets.orchestration.resources.live_runs import free_dead_runs
from dpsynth_assets.paths import home

if TYPE_CHECKING:
    import dagster as dg
    from dagster import AssetKey
    from rich.console import Console

LOCATION = "dpsynth_assets"
"""Name of the code location, as the web UI and `workspace.yaml` have it."""


def prepare_dagster_home() -> Path:
    """Sets DAGSTER_HOME and the privacy switches; creates the folder for the owner alone."""
    folder = Path(os.environ.setdefault("DAGSTER_HOME", str(home().dagster)))
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    os.environ.setdefault("DAGSTER_REDACT_USER_CODE_ERRORS", "1")
    target = folder / "dagster.yaml"
    if not target.exists():
        shutil.copyfile(Path(__file__).with_name("dagster.yaml"), target)
    return folder


@contextmanager
def dagster_instance(console: "Console | None" = None) -> "Iterator[dg.DagsterInstance]":
    """Opens the persistent instance, and frees what killed runs still hold of its pools.

    Args:
        console: Where each freed run is named; None to say nothing.
    """
    prepare_dagster_home()
    import dagster as dg

    with dg.DagsterInstance.get() as instance:
        for line in free_dead_runs(instance):
            if console is not None:
                console.print(line, highlight=False, soft_wrap=True)
        yield instance


def in_timeline(instance: "dg.DagsterInstance", job: str) -> "dg.DagsterInstance":
    """The same instance, whose runs in this process name the code location of the web UI.

    Dagster gives a run in a process of its own no origin, and the timeline, the jobs' pages and the
    filter by code location leave out runs without one.

    Args:
        instance: Where the run is recorded.
        job: Name of the job that is run.
    """
    from dpsynth_assets.orchestration.dagster_internals import origin_of

    origin = origin_of(LOCATION, job)
    create = partial(instance.create_run_for_job, remote_job_origin=origin)
    vars(instance)["create_run_for_job"] = create  # What `execute_in_process` calls.
    return instance


# Selects the assets that `dpsynth run` materialises: never more than its selection names.
#
# Dagster takes an empty list of assets for all assets of all cohorts. A selection with a misspelt
# key resolves to such a list, so it is refused here, before anything runs.

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

    cohort, dataset = spec.name, name_in_file(spec)
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
    own = key.path[0] == name_in_file(spec)
    return [spec.name if own else key.path[0], *key.path[1:]]


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


def _a_few(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:3]))
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


# Follows a run of this process by Dagster's events: its steps, and its first corpus.


ROWS = 3
CHARACTERS = 400
"""Rows that are shown of the first corpus, and characters of each at most."""


def follow_run(
    instance: "dg.DagsterInstance", run_id: str, spec: PrivateDatasetSpec, console: Console
) -> None:
    """Has steps of a run counted as they begin, and its first corpus shown once it is published.

    Args:
        instance: Where the run writes its events.
        run_id: The run, which this process begins afterwards.
        spec: Its cohort.
        console: Where steps and rows are shown.
    """
    from dpsynth_assets.orchestration.resources.progress import planned_steps

    begun: list[str] = []
    shown: list[str] = []

    def take(entry: Any) -> None:
        event = entry.dagster_event
        if event is None:
            return
        with suppress(Exception):  # What is shown must not end what is paid for.
            if event.is_step_start:
                begun.append(event.step_key.replace("__", "/"))
                place = f"Step {len(begun)} of {planned_steps(instance, run_id)}"
                console.print(f"{place}: {begun[-1]}", highlight=False, soft_wrap=True)
            if not shown and (folder := _published(event)) is not None:
                shown.append(folder)
                show_rows(spec, folder, console)

    instance.add_event_listener(run_id, take)


def _published(event: Any) -> str | None:
    """Folder of the corpus that an event says was published; None for every other event."""
    import dagster as dg

    if event.event_type is not dg.DagsterEventType.ASSET_MATERIALIZATION:
        return None
    path = event.asset_key.path
    return path[1] if len(path) == 3 and path[-1] == "corpus" else None


def show_rows(spec: PrivateDatasetSpec, folder: str, console: Console) -> None:
    """Prints the first rows of a published corpus.

    **Privacy** Reads the published file alone, which the corpus's guarantee covers.
    """
    from dpsynth_assets.report.cards import read_released, released_folder

    rows = read_released(spec.name, folder).head(ROWS)
    console.print(
        f"First rows of {spec.name}/{folder}, published in {released_folder(spec.name, folder)}:",
        style="bold",
        highlight=False,
        soft_wrap=True,
    )
    for line in _lines(rows, spec.columns.labels):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _lines(rows: pl.DataFrame, labels: list[str]) -> list[str]:
    """One line a row, its labels first; without characters that would steer a terminal."""
    lines = []
    for row in rows.iter_rows(named=True):
        text = "".join(each if each.isprintable() else " " for each in row["text"])
        text = text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]} ..."
        named = ", ".join(str(row[label]) for label in labels if label in row)
        lines.append(f"  {named}: {text}" if named else f"  {text}")
    return lines
