"""Programs in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

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
