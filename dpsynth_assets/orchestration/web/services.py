"""Web server, daemon and code server, which start together and end together.

The web server runs in this process, the daemon in one of its own that ends with this one, however
this one ends, and both ask one code server for the definitions.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

_DEFINITIONS = {
    "python_module": {
        "module_name": "dpsynth_assets.definitions",
        "location_name": "dpsynth_assets",
    }
}
_ENDING_SECONDS = 30.0
_LEVELS = ["--code-server-log-level", "warning", "--dagster-log-level", "warning"]


def serve(host: str, port: int, workspace: Path | None, *, read_only: bool) -> None:
    """Serves the UI until it is interrupted; with the daemon where it may change anything."""
    from dpsynth_assets.orchestration.web.server import main

    options = ["--host", host, "--port", str(port), *_LEVELS]
    with contextlib.ExitStack() as stack:
        target = workspace or stack.enter_context(_written({"load_from": [_DEFINITIONS]}))
        if read_only:
            options.append("--read-only")
        else:
            target = stack.enter_context(_code_server(target))
            stack.enter_context(_daemon(target))
        with contextlib.suppress(KeyboardInterrupt):
            main([*options, "--workspace", str(target)])


@contextlib.contextmanager
def _written(workspace: dict[str, object]) -> Iterator[Path]:
    """A workspace file, for as long as the servers may read it."""
    import yaml

    with tempfile.TemporaryDirectory(prefix="dpsynth-ui-") as folder:
        path = Path(folder) / "workspace.yaml"
        path.write_text(yaml.safe_dump(workspace), encoding="utf-8")
        yield path


@contextlib.contextmanager
def _code_server(workspace: Path) -> Iterator[Path]:
    """Loads the definitions once, for web server and daemon; yields a workspace that asks it."""
    import dagster as dg

    from dpsynth_assets.orchestration.dagster_internals import code_servers

    with (
        dg.DagsterInstance.get() as instance,
        code_servers(instance, workspace) as servers,
        _written({"load_from": servers}) as asking,
    ):
        yield asking


@contextlib.contextmanager
def _daemon(workspace: Path) -> Iterator[None]:
    """Runs the daemon; should it end before the web server does, that ends, too."""
    reader, writer = os.pipe()
    command = [sys.executable, "-m", __name__, str(reader), str(workspace)]
    daemon = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        command, pass_fds=[reader], start_new_session=True
    )
    os.close(reader)
    ending = threading.Event()

    def watch() -> None:
        code = daemon.wait()
        if not ending.is_set():
            sys.stderr.write(f"The daemon ended with status {code}; the web server stops too.\n")
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ending.set()
        os.close(writer)
        try:
            daemon.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()


def _run_daemon(lifeline: int, workspace: str) -> None:
    """Runs Dagster's daemon until the other end of a pipe is closed."""
    from dpsynth_assets.orchestration.dagster_internals import run_daemon

    def watch() -> None:
        os.read(lifeline, 1)  # Returns when the process with the other end closes it or ends.
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()
    levels = ["--log-level", "warning", "--code-server-log-level", "warning"]
    run_daemon(["--workspace", workspace, *levels])


if __name__ == "__main__":
    _run_daemon(int(sys.argv[1]), sys.argv[2])
