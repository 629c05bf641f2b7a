"""A real web server of ours over a code location of one asset, and raw requests to it."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import dagster as dg

from dpsynth_assets_tests.children import free_port, until

ROOT = Path(__file__).parents[2]
LOCATION = """
import dagster as dg


@dg.asset
def released():
    return None


defs = dg.Definitions(assets=[released])
"""
WORKSPACE = "load_from: [{python_file: {relative_path: location.py, location_name: audited}}]"
LOADED = "{ workspaceOrError { ... on Workspace { locationEntries { loadStatus } } } }"
JSON = {"Content-Type": "application/json"}
LAUNCH = """
mutation { launchRun(executionParams: {mode: "default", runConfigData: {}, selector: {
  repositoryLocationName: "audited", repositoryName: "__repository__", pipelineName: "__ASSET_JOB",
  assetSelection: [{path: ["released"]}]}}) { __typename } }
"""


@dg.asset
def released():
    return None


def answer_to_a_handshake(connection, headers):
    """The first line that answers a WebSocket handshake with these headers."""
    asked = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "x3JJHMbDL1EzLkh9GBhXDw==",
        "Sec-WebSocket-Protocol": "graphql-ws",
        **headers,
    }
    lines = [f"{name}: {value}" for name, value in asked.items()]
    connection.sendall("\r\n".join(["GET /graphql HTTP/1.1", *lines, "", ""]).encode())
    return connection.recv(1000).decode(errors="replace").splitlines()[0]


class Server:
    """A web server in a process of its own, with one finished run."""

    def __init__(self, folder, *options, **variables):
        self.home = folder / "dagster"
        self.home.mkdir()
        (self.home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        (folder / "location.py").write_text(LOCATION)
        (folder / "workspace.yaml").write_text(WORKSPACE)
        with dg.DagsterInstance.local_temp(str(self.home)) as instance:
            self.run_id = dg.materialize([released], instance=instance).run_id
        self.host, self.port = "127.0.0.1", free_port()
        command = [sys.executable, "-m", "dpsynth_assets.orchestration.web.server"]
        command += ["-h", self.host]
        command += ["-p", str(self.port), "-w", str(folder / "workspace.yaml"), *options]
        self.process = subprocess.Popen(
            command,
            env={
                **os.environ,
                "DAGSTER_HOME": str(self.home),
                "PYTHONPATH": str(ROOT),
                **variables,
            },
            cwd=folder,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    @property
    def name(self):
        """The host as its own pages name it."""
        return f"{self.host}:{self.port}"

    def ask(self, query):
        asked = json.dumps({"query": query})
        return json.loads(self.send("POST", "/graphql", JSON, asked)[1])

    def send(self, method, path, headers, body=None):
        """Status and text of the answer to a request with just these headers."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in {"Host": self.name, **headers}.items():
                connection.putheader(name, value)
            data = (body or "").encode()
            if data or method == "POST":
                connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()

    def shake_hands(self, **headers):
        """The first line that answers a WebSocket handshake."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with socket.create_connection((self.host, self.port), timeout=60) as connection:
            return answer_to_a_handshake(connection, {"Host": self.name, **named})

    def wait(self):
        until(self.is_loaded, "the server did not load its code location")

    def is_loaded(self):
        assert self.process.poll() is None
        try:
            entries = self.ask(LOADED)["data"]["workspaceOrError"]["locationEntries"]
        except OSError:
            return False
        return entries and all(entry["loadStatus"] == "LOADED" for entry in entries)

    def stop(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(60)

    def state(self):
        """Runs, materialisations and pools, read past the server."""
        with dg.DagsterInstance.local_temp(str(self.home)) as instance:
            events = instance.fetch_materializations(dg.AssetKey("released"), limit=10).records
            return (
                [run.run_id for run in instance.get_runs()],
                [event.storage_id for event in events],
                instance.event_log_storage.get_concurrency_keys(),
            )
