"""A Ray cluster of this machine: two nodes, one of which says that it has a GPU."""

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dpsynth_assets_tests.children import free_port
from dpsynth_assets_tests.faults.conftest import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
SOON = {"DAGSTER_STEP_DELEGATING_EXECUTOR_SLEEP_SECONDS": "0.2"}
"""Runs look for events of their steps five times a second, Dagster does once."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster.

    Attributes:
        variables: What whoever submits a job to it has in the environment.
        address: Where workers are asked for.
        folder: Where Ray keeps its sessions: logs, and objects that it moves to the disk.
    """

    variables: dict[str, str]
    address: str
    folder: Path


def answers(address: str, token: str) -> bool:
    asked = urllib.request.Request(
        f"{address}/api/version", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="session")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not importable here; `make test-ray` runs these in .venv-ray")
    # Ray puts sockets there, whose paths may have 107 characters.
    folder = Path("/tmp") / f"dpsynth-ray-{secrets.token_hex(3)}"
    port, store, token = free_port(), free_port(), secrets.token_hex(32)
    address = f"http://127.0.0.1:{port}"
    variables = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'data' / 'demo'}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_API_SERVER_ADDRESS": address,
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    started = [*["ray", "start", "--block", "--disable-usage-stats", "--num-cpus=4"]]
    head = [
        *started,
        *["--head", f"--port={store}", "--include-dashboard=true", f"--dashboard-port={port}"],
        *[f"--temp-dir={folder}", "--num-gpus=0", f"--ray-client-server-port={free_port()}"],
        f"--dashboard-agent-listen-port={free_port()}",
    ]
    log = tmp_path_factory.mktemp("ray") / "head.log"
    with log.open("w") as said:
        process = subprocess.Popen(
            head, cwd=ROOT, env=variables, stdout=said, stderr=said, start_new_session=True
        )
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            while not answers(address, token):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.5)
            names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_API_SERVER_ADDRESS", "PYTHONPATH")
            given = {name: variables[name] for name in names}
            yield Cluster(given, f"127.0.0.1:{store}", folder)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            shutil.rmtree(folder, ignore_errors=True)
