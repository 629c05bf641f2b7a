"""What auditors are given: a real web server that shows everything and changes nothing.

The server opens a code location of one asset, since what it refuses does not depend on the graph.
"""

import json
import re
from pathlib import Path

import pytest
from dagster_graphql.schema import create_schema

from dpsynth_assets.orchestration.web.server import HARMLESS_MUTATIONS
from dpsynth_assets_tests.security.minimal_mutations import mutations
from dpsynth_assets_tests.security.served import LAUNCH, ROOT, Server

pytestmark = pytest.mark.slow

MUTATIONS = mutations(create_schema().graphql_schema)
PATHS = (
    "/logs/../../../../etc/passwd",
    "/logs/..%2f..%2f..%2f..%2fetc%2fpasswd/out",
    "/logs/%2e%2e/%2e%2e/ledger/ledger.sqlite",
    "/notebook?repoLocName=audited&path=/etc/passwd",
    "/download_debug/..%2f..%2fetc%2fpasswd",
    "/static/..%2f..%2f..%2fetc/passwd",
    "//etc/passwd",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    started = Server(tmp_path_factory.mktemp("auditors"), "--read-only")
    try:
        started.wait()
        yield started
    finally:
        started.stop()


def test_auditors_see_runs_and_assets(server):
    answer = server.ask("{ runsOrError { ... on Runs { results { runId status } } } }")
    assert answer["data"]["runsOrError"]["results"] == [
        {"runId": server.run_id, "status": "SUCCESS"}
    ]


def test_every_mutation_of_the_schema_is_refused(server):
    """However one is written: `test_guard.py` tries aliases, fragments and company."""
    before = server.state()
    assert before[0] == [server.run_id]
    assert set(MUTATIONS) >= HARMLESS_MUTATIONS
    assert len(MUTATIONS) > 40
    for name in ("", *sorted(set(MUTATIONS) - HARMLESS_MUTATIONS)):
        answer = server.ask(MUTATIONS.get(name, LAUNCH).replace("RUN", server.run_id))
        assert "UnauthorizedError" in json.dumps(answer), answer
        assert answer.get("data") is None, answer
    assert server.state() == before


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leaves_what_is_served(server, path):
    status, text = server.send("GET", path, {"Accept": "text/html"})
    assert "root:" not in text
    assert status in (200, 400, 403, 404, 500), status
    assert status != 200 or "<html" in text or "nbconvert" in text


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


OTHER_ADDRESSES = r"(-h|--host)[ =]+(0\.0\.0\.0|::)|host=[\"'](0\.0\.0\.0|::|)[\"']"
UNGUARDED = r"dagster dev|dagster-webserver[\", ]+-"


@pytest.mark.parametrize(
    ("wrong", "patterns"),
    [
        (OTHER_ADDRESSES, ("Makefile", "docs/*.md", "README.md", "dpsynth_assets/**/*.py")),
        (r"dpsynth ui\b(?!.* -h 127\.0\.0\.1)", ("Makefile",)),
        (UNGUARDED, ("Makefile", "README.md", "deploy/*.yaml")),
    ],
)
def test_nothing_of_ours_starts_a_server_for_others_or_without_a_guard(wrong, patterns):
    for path in (path for pattern in patterns for path in ROOT.glob(pattern)):
        assert not re.search(wrong, path.read_text(encoding="utf-8")), path
