"""The Dagster instance behind CLI runs: the same DAGSTER_HOME as the web UI."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dpsynth_assets.orchestration.resources.live_runs import free_dead_runs
from dpsynth_assets.paths import home

if TYPE_CHECKING:
    import dagster as dg
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

    origin = origin_of("dpsynth_assets.definitions", LOCATION, job)
    create = partial(instance.create_run_for_job, remote_job_origin=origin)
    vars(instance)["create_run_for_job"] = create  # What `execute_in_process` calls.
    return instance
