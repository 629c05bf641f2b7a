"""What auditors are given: a real web server that shows everything and changes nothing.

The server opens a code location of one asset, since what it refuses does not depend on the graph.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import dagster as dg
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LOCATION = """
import dagster as dg


@dg.asset
def released():
    return None


defs = dg.Definitions(assets=[released])
"""
WORKSPACE = "load_from: [{python_file: {relative_path: location.py, location_name: audited}}]"
LAUNCH = """
mutation { launchRun(executionParams: {mode: "default", runConfigData: {}, selector: {
  repositoryLocationName: "audited", repositoryName: "__repository__", pipelineName: "__ASSET_JOB",
  assetSelection: [{path: ["released"]}]}}) { __typename } }
"""
MUTATIONS = {
    "launching a run": LAUNCH,
    "reporting a materialisation": (
        "mutation { reportRunlessAssetEvents(eventParams: {eventType: ASSET_MATERIALIZATION, "
        'assetKey: {path: ["released"]}}) { __typename } }'
    ),
    "wiping an asset": (
        'mutation { wipeAssets(assetPartitionRanges: [{assetKey: {path: ["released"]}}]) '
        "{ __typename } }"
    ),
    "deleting a run": 'mutation { deleteRun(runId: "RUN") { __typename } }',
    "changing a pool": ('mutation { setConcurrencyLimit(concurrencyKey: "gpu", limit: 9) }'),
    "reloading code": (
        'mutation { reloadRepositoryLocation(repositoryLocationName: "audited") { __typename } }'
    ),
}


class Server:
    def __init__(self, folder):
        self.home = folder / "dagster"
        self.home.mkdir()
        (self.home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        (folder / "location.py").write_text(LOCATION)
        (folder / "workspace.yaml").write_text(WORKSPACE)
        with dg.DagsterInstance.local_temp(str(self.home)) as instance:
            self.run_id = dg.materialize([_asset()], instance=instance).run_id
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "dagster_webserver", "--read-only", "-p", str(self.port)]
        command += ["-w", str(folder / "workspace.yaml")]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "DAGSTER_HOME": str(self.home)},
            cwd=folder,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def ask(self, query):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql",
            json.dumps({"query": query}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refusal:
            return json.load(refusal)

    def wait(self):
        loaded = "{ workspaceOrError { ... on Workspace { locationEntries { loadStatus } } } }"
        for _ in range(600):
            assert self.process.poll() is None
            try:
                entries = self.ask(loaded)["data"]["workspaceOrError"]["locationEntries"]
            except OSError:
                entries = []
            if entries and all(entry["loadStatus"] == "LOADED" for entry in entries):
                return
            time.sleep(0.4)
        raise TimeoutError

    def stop(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(60)


def _asset():
    @dg.asset
    def released():
        return None

    return released


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    started = Server(tmp_path_factory.mktemp("auditors"))
    try:
        started.wait()
        yield started
    finally:
        started.stop()


def state(server):
    """Runs and materialisations, read past the server."""
    with dg.DagsterInstance.local_temp(str(server.home)) as instance:
        events = instance.fetch_materializations(dg.AssetKey("released"), limit=10).records
        return [run.run_id for run in instance.get_runs()], [event.storage_id for event in events]


def test_auditors_see_runs_and_assets(server):
    answer = server.ask("{ runsOrError { ... on Runs { results { runId status } } } }")
    assert answer["data"]["runsOrError"]["results"] == [
        {"runId": server.run_id, "status": "SUCCESS"}
    ]


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_change_is_refused(server, name):
    before = state(server)
    answer = server.ask(MUTATIONS[name].replace("RUN", server.run_id))
    text = json.dumps(answer)
    assert "UnauthorizedError" in text or "permission" in text.lower(), text
    assert state(server) == before
    assert before[0] == [server.run_id]


def test_the_server_says_that_nothing_is_permitted(server):
    answer = server.ask("{ permissions { permission value } }")
    permitted = [p["permission"] for p in answer["data"]["permissions"] if p["value"]]
    assert permitted == []


def test_the_server_listens_on_loopback_alone(server):
    port = f"{server.port:04X}"
    listening = [
        line.split()[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        if Path(table).exists()
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[1].endswith(f":{port}")
    ]
    assert listening == [f"0100007F:{port}"]  # 127.0.0.1, as the kernel writes it.


@pytest.mark.parametrize(
    "pattern", ["Makefile", "docs/*.md", "README.md", "dpsynth_assets/**/*.py"]
)
def test_nothing_of_ours_binds_a_server_to_other_addresses(pattern):
    everywhere = re.compile(r"(-h|--host)[ =]+(0\.0\.0\.0|::)|host=[\"'](0\.0\.0\.0|::|)[\"']")
    for path in ROOT.glob(pattern):
        assert not everywhere.search(path.read_text(encoding="utf-8")), path


def test_the_web_ui_command_binds_to_loopback():
    (line,) = [
        line for line in (ROOT / "Makefile").read_text().splitlines() if "dagster dev" in line
    ]
    assert "-h 127.0.0.1" in line
