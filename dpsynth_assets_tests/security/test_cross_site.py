"""Requests that pages of other sites make a browser send, against a real server that may change.

Each is sent with the headers that a browser adds by itself and no page can change.
"""

import json
from urllib.parse import quote

import pytest

from dpsynth_assets_tests.security.served import JSON, LAUNCH, Server

pytestmark = pytest.mark.slow

POOL = 'mutation { setConcurrencyLimit(concurrencyKey: "evil", limit: 3) }'
IN_URL = f"/graphql?query={quote(POOL)}"
EVIL = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
IMAGE = {"Accept": "image/*", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
BODY = json.dumps({"query": POOL})
PUBLIC = "ui.example.org"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    started = Server(tmp_path_factory.mktemp("steward"), DPSYNTH_UI_HOSTS=PUBLIC)
    try:
        started.wait()
        yield started
    finally:
        started.stop()


REPORT = "/report_asset_materialization/released"
ATTACKS = {  # `test_guard.py` holds every check by itself.
    "an image whose address is a mutation": ("GET", IN_URL, IMAGE, None),
    "JSON of another origin": ("POST", "/graphql", {**JSON, "Origin": EVIL["Origin"]}, BODY),
    "a reported materialisation": ("POST", REPORT, {**EVIL, "Content-Type": "text/plain"}, ""),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_request_of_another_site_is_refused_and_changes_nothing(server, attack):
    before = server.state()
    status, text = server.send(*ATTACKS[attack])
    assert status == 403, text
    assert len(text.splitlines()) == 1
    assert text.startswith(("Expected", "This server"))
    assert server.state() == before


def test_our_own_pages_work_and_those_of_a_name_that_a_proxy_serves(server):
    asked = json.dumps({"query": "{ version }"})
    for host, origin in (
        (server.name, f"http://{server.name}"),
        (f"localhost:{server.port}", f"http://localhost:{server.port}"),
        (PUBLIC, f"https://{PUBLIC}"),
    ):
        own = {"Host": host, "Origin": origin, "Sec-Fetch-Site": "same-origin"}
        assert server.send("POST", "/graphql", {**JSON, **own}, asked)[0] == 200
        foreign = {**own, "Origin": f"{origin}.evil.example"}
        assert server.send("POST", "/graphql", {**JSON, **foreign}, asked)[0] == 403
    # The first page leads to the graph.
    assert server.send("GET", "/", {"Accept": "text/html", "Sec-Fetch-Site": "none"})[0] == 307
    assert server.send("GET", "/graphql", {"Accept": "text/html"})[0] == 200
    assert " 101 " in server.shake_hands(Origin=f"http://{server.name}")
    assert " 403 " in server.shake_hands(Origin="https://evil.example")


def test_clients_of_this_machine_may_launch(server):
    before = server.state()
    assert "LaunchRunSuccess" in json.dumps(server.ask(LAUNCH))
    assert len(server.state()[0]) == len(before[0]) + 1
