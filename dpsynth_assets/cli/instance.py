"""The Dagster instance behind CLI runs: the same DAGSTER_HOME as the web UI."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dpsynth_assets.paths import home, project_root
from dpsynth_assets.resources.live_runs import free_dead_runs

if TYPE_CHECKING:
    import dagster as dg
    from rich.console import Console


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
