"""`dpsynth ui`: web server and daemon start together, and neither outlives the other."""

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from dpsynth_assets_tests.children import free_port, until
from dpsynth_assets_tests.security.served import LOCATION, ROOT, WORKSPACE

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 300


class Services:
    def __init__(self, folder):
        (folder / "location.py").write_text(LOCATION)
        (folder / "workspace.yaml").write_text(WORKSPACE)
        self.port = free_port()
        variables = {"DPSYNTH_HOME": str(folder), "DAGSTER_HOME": str(folder / "dagster")}
        command = [sys.executable, "-c", "from dpsynth_assets.cli.main import main; main()", "ui"]
        command += ["-p", str(self.port), "-w", str(folder / "workspace.yaml")]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **variables, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        until(self.answers, "the web server did not answer")

    def answers(self):
        assert self.process.poll() is None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/server_info", timeout=60):
                return True
        except OSError:
            return False

    def daemon(self):
        """Process id of the daemon, None where there is none."""
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(path.read_text().rpartition(")")[2].split()[1])
                command = (path.parent / "cmdline").read_text()
            except OSError:
                continue
            if parent == self.process.pid and "orchestration.web.services" in command:
                return int(path.parent.name)
        return None


def is_running(pid):
    state = Path(f"/proc/{pid}/stat")
    try:
        return state.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def services(tmp_path):
    started = Services(tmp_path)
    yield started
    if started.process.poll() is None:
        started.process.kill()
        started.process.wait(60)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL], ids=lambda sign: sign.name)
def test_the_daemon_ends_with_the_web_server(services, sign):
    daemon = services.daemon()
    assert daemon is not None
    services.process.send_signal(sign)
    services.process.wait(PATIENCE_SECONDS)
    until(lambda: not is_running(daemon), "the daemon outlived the web server")


def test_the_web_server_ends_with_the_daemon(services):
    """By the SIGTERM that anybody may send it."""
    os.kill(services.daemon(), signal.SIGKILL)
    services.process.wait(PATIENCE_SECONDS)
    assert "The daemon ended with status -9" in services.process.stderr.read()
