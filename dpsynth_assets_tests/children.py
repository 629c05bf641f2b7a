"""Programs in a process of their own, and commands in this one."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from dpsynth_assets.cli.main import app

ROOT = Path(__file__).parents[1]


def python(*words: str, where: Path = ROOT, code: int = 0, **variables: str) -> str:
    """Runs an interpreter that finds the repository, and must end with a code.

    Args:
        words: What stands behind `python`.
        where: Its working folder.
        code: The exit code.
        variables: Of its environment, beside ours.

    Returns:
        What it printed.
    """
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=where,
        env=os.environ | {"PYTHONPATH": path} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert ended.returncode == code, ended.stdout[-1000:] + ended.stderr[-3000:]
    return ended.stdout


def dpsynth(
    *words: object,
    code: int | None = None,
    input: str | None = None,
    env: Mapping[str, str | None] | None = None,
) -> Result:
    """Runs a command of `dpsynth` in this process.

    Args:
        words: What stands behind `dpsynth`.
        code: The exit code it must end with; None: any.
        input: What a person types.
        env: Variables beside those of the test.
    """
    ended = CliRunner().invoke(app, [*map(str, words)], input=input, env=env)
    assert code in (None, ended.exit_code), ended.output
    return ended


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on, for a server of our own."""
    with socket.create_server((host, 0)) as listener:
        return int(listener.getsockname()[1])


def until(holds: Callable[[], Any], otherwise: str, seconds: float = 300.0) -> Any:
    """Waits for something to hold, but not for ever; returns it."""
    deadline = time.monotonic() + seconds
    while not (held := holds()):
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)
    return held
