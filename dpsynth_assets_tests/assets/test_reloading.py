"""A web server is asked to load new cohorts, and what it says is one line."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dpsynth_assets.cli.reloading import reload_problem

LOADED = {
    "__typename": "WorkspaceLocationEntry",
    "locationOrLoadError": {"__typename": "RepositoryLocation"},
}
BROKEN = {
    "__typename": "WorkspaceLocationEntry",
    "locationOrLoadError": {"__typename": "PythonError"},
}
READ_ONLY = {"__typename": "UnauthorizedError", "message": "not permitted"}


@contextmanager
def server(answer):
    """A web server that answers every question alike; yields its address and what it was asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = json.dumps({"data": {"reloadRepositoryLocation": answer}}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    served = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{served.server_port}/", asked
    finally:
        served.shutdown()
        served.server_close()


def test_a_server_that_loads_the_definitions_is_no_problem():
    with server(LOADED) as (url, asked):
        assert reload_problem(url) is None
    assert asked[0]["variables"] == {"location": "dpsynth_assets"}
    assert "reloadRepositoryLocation" in asked[0]["query"]


@pytest.mark.parametrize(
    ("answer", "words"), [(BROKEN, "dpsynth datasets check"), (READ_ONLY, "not permitted")]
)
def test_a_server_that_does_not_says_why_in_a_line(answer, words):
    with server(answer) as (url, _):
        problem = reload_problem(url)
    assert words in problem
    assert "\n" not in problem


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "file:///etc/passwd", "localhost:3000"])
def test_where_there_is_no_web_server_the_line_says_what_to_do(url):
    assert "make ui" in reload_problem(url)
