"""The Dagster instance behind CLI runs: the same DAGSTER_HOME as the web UI."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dpsynth_assets.cli.run_process import TAG, is_gone
from dpsynth_assets.paths import home, project_root

if TYPE_CHECKING:
    import dagster as dg


def prepare_dagster_home() -> Path:
    """Sets DAGSTER_HOME and the privacy switches; creates the folder for the owner alone."""
    os.umask(0o077)
    folder = Path(os.environ.setdefault("DAGSTER_HOME", str(home().dagster)))
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    os.environ.setdefault("DAGSTER_REDACT_USER_CODE_ERRORS", "1")
    example = project_root() / "dagster.yaml.example"
    target = folder / "dagster.yaml"
    if not target.exists() and example.exists():
        shutil.copyfile(example, target)
    return folder


@contextmanager
def dagster_instance() -> "Iterator[dg.DagsterInstance]":
    """Opens the persistent instance and frees pool slots that dead runs still hold."""
    prepare_dagster_home()
    import dagster as dg

    with dg.DagsterInstance.get() as instance:
        _free_slots_of_dead_runs(instance)
        yield instance


def _free_slots_of_dead_runs(instance: "dg.DagsterInstance") -> None:
    """A killed terminal run would otherwise hold the `gpu` pool until a daemon frees it.

    Nobody reports its end: it is reported here, where its process is known to be gone.
    """
    storage = instance.event_log_storage
    for pool in storage.get_concurrency_keys():
        for run_id in storage.get_concurrency_info(pool).active_run_ids:
            run = instance.get_run_by_id(run_id)
            if (
                run is not None
                and not run.is_finished
                and TAG in run.tags
                and is_gone(run.tags[TAG])
            ):
                instance.report_run_failed(run, "The process of this run was killed.")
                run = instance.get_run_by_id(run_id)
            if run is None or run.is_finished:
                storage.free_concurrency_slots_for_run(run_id)
