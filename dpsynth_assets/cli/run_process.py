"""Which process a terminal run lives in, so that the next one knows whether it died."""

import os
import socket
from pathlib import Path

TAG = "dpsynth/process"
"""Run tag: host, process id and start of the process, in that order."""


def this_process() -> str:
    """Names this process; an id that another process gets later is not taken for it."""
    return _name(os.getpid())


def is_gone(name: str) -> bool:
    """Whether a named process has ended, as far as this host can tell: elsewhere it may live."""
    host, pid, _ = name.rsplit(":", 2)
    return host == socket.gethostname() and _name(int(pid)) != name


def _name(pid: int) -> str:
    return f"{socket.gethostname()}:{pid}:{_started(pid)}"


def _started(pid: int) -> str:
    """Clock ticks from boot to the start of a process; "gone" without one, "" without /proc."""
    if not Path("/proc/self/stat").exists():
        return "" if _answers(pid) else "gone"
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "gone"
    state, *fields = stat.rpartition(")")[2].split()  # The name before it may hold anything.
    return "gone" if state == "Z" else fields[18]


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
