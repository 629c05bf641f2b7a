"""Each check of the guard on its own: requests that break that one and no other.

`test_cross_site.py` sends what browsers send, which most often breaks several checks at once.
"""

import asyncio

import pytest
from graphql import build_schema, parse, validate

from dpsynth_assets.orchestration.web import server
from dpsynth_assets.orchestration.web.guard import Guard
from dpsynth_assets.orchestration.web.server import ReadOnlyRule

HERE = "127.0.0.1:3000"
OWN = {
    "Host": HERE,
    "Origin": f"http://{HERE}",
    "Sec-Fetch-Site": "same-origin",
    "Content-Type": "application/json",
}
LINK = {
    "Host": HERE,
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
}
POSTS = {
    "a name": {"Host": "evil.example", "Origin": "http://evil.example"},
    "a name with our port": {"Host": "evil.example:3000", "Origin": "http://evil.example:3000"},
    "another address": {"Host": "192.0.2.1:3000", "Origin": "http://192.0.2.1:3000"},
    "another origin": {"Origin": "https://evil.example"},
    "an origin of another port": {"Origin": "http://127.0.0.1:3001"},
    "an origin without a scheme of the web": {"Origin": f"file://{HERE}"},
    "no origin": {"Origin": "null"},
    "another site": {"Sec-Fetch-Site": "cross-site"},
    "another name of the same site": {"Sec-Fetch-Site": "same-site"},
    "a form": {"Content-Type": "text/plain"},
    "a form that sends files": {"Content-Type": "multipart/form-data; boundary=x"},
    "a type that contains JSON's": {"Content-Type": "text/plain; application/json"},
    "a type that begins like JSON's": {"Content-Type": "application/jsonp"},
}
OWN_GET = {"Host": HERE, "Sec-Fetch-Site": "same-origin"}
ELSE = {
    "GraphQL": ("GET", "/graphql", LINK),
    "GraphQL as a page": ("GET", "/graphql", {**LINK, "Accept": "text/html"}),
    "a log": ("GET", "/logs/some/run/out", LINK),
    "a run's file": ("GET", "/download_debug/run", LINK),
    "a notebook": ("GET", "/notebook", LINK),
    "a frame": ("GET", "/", {**LINK, "Sec-Fetch-Dest": "iframe"}),
    "an image": ("GET", "/", {**LINK, "Sec-Fetch-Mode": "no-cors"}),
    "a post by a navigation": ("POST", "/assets", {**LINK, "Content-Type": "application/json"}),
    **{
        f"{method} {path}": (method, path, OWN_GET)
        for method in ("GET", "HEAD")
        for path in ("/graphql", "/graphql/")
    },
    **{method: (method, "/graphql", OWN) for method in ("PUT", "PATCH", "DELETE", "OPTIONS")},
    "no host": ("GET", "/", {}),
}
"""What another site may not open, how GraphQL is not asked, and what changes nothing."""


def answered(method, path, headers, kind="http", more=(), **guard):
    """Messages that are sent back, and whether the application was asked."""
    sent, asked = [], []

    async def app(_scope, _receive, send):
        asked.append(path)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    scope = {
        "type": kind,
        "path": path,
        "server": ("127.0.0.1", 3000),
        "headers": [(n.lower().encode(), v.encode()) for n, v in (*headers.items(), *more)],
        **({"method": method} if kind == "http" else {}),
    }
    asyncio.run(Guard(app, **guard)(scope, None, send))
    return sent, bool(asked)


def refused(*request, **options):
    sent, asked = answered(*request, **options)
    assert asked == (sent[0].get("status") == 200)
    return not asked


def test_what_our_pages_and_clients_of_this_machine_send_is_answered():
    assert not refused("POST", "/graphql", OWN)
    assert not refused("POST", "/graphql", {"Host": HERE, "Content-Type": "application/json"})
    assert not refused("GET", "/assets", LINK)
    assert not refused("GET", "/logs/some/run/out", {"Host": HERE})
    assert not refused("", "/graphql", {"Host": HERE, "Origin": f"http://{HERE}"}, "websocket")


@pytest.mark.parametrize("name", POSTS)
def test_a_post_that_breaks_one_check_is_refused(name):
    assert refused("POST", "/graphql", {**OWN, **POSTS[name]})


@pytest.mark.parametrize("name", ELSE)
def test_another_site_opens_pages_alone_and_only_a_post_asks_graphql(name):
    assert refused(*ELSE[name])


@pytest.mark.parametrize("host", ["localhost:3000", "127.0.0.1:3000"])
def test_a_server_reached_from_elsewhere_is_not_localhost(host):
    guard = Guard(None)
    assert not guard._is_here(host, ("192.0.2.7", 3000))
    assert guard._is_here("192.0.2.7:3000", ("192.0.2.7", 3000))


def test_two_hosts_are_none():
    assert not refused("GET", "/", {"Host": HERE})
    assert refused("GET", "/", {"Host": HERE}, more=[("Host", "evil.example")])


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": HERE, "Origin": "https://evil.example"},
        {"Host": "evil.example:3000", "Origin": "http://evil.example:3000"},
        {**LINK, "Origin": f"http://{HERE}"},
    ],
)
def test_a_socket_that_breaks_one_check_is_closed(headers):
    sent, asked = answered("", "/graphql", headers, "websocket")
    assert not asked
    assert [(message["type"], message["code"]) for message in sent] == [("websocket.close", 1008)]


def test_paths_are_read_below_the_prefix():
    assert refused("GET", "/ui/graphql", {"Host": HERE}, path_prefix="/ui")
    assert refused("GET", "/ui/logs/run", LINK, path_prefix="/ui/")


def test_a_read_only_server_takes_graphql_alone():
    assert refused("POST", "/report_asset_check/corpus", OWN, read_only=True)
    assert not refused("POST", "/report_asset_check/corpus", OWN)
    assert not refused("POST", "/graphql", OWN, read_only=True)


def test_pages_are_shown_in_no_frame():
    sent, _ = answered("GET", "/", {"Host": HERE})
    assert (b"x-frame-options", b"DENY") in sent[0]["headers"]


SCHEMA = build_schema(
    "type Query { version: String } type Mutation { setNuxSeen: Int logTelemetry: Int launch: Int }"
)


@pytest.mark.parametrize(
    "query",
    [
        "mutation { launch }",
        "mutation { setNuxSeen: launch }",
        "mutation { setNuxSeen launch }",
        "mutation { ...F } fragment F on Mutation { launch }",
        "mutation { setNuxSeen ... on Mutation { launch } }",
        "query A { version } mutation B { launch }",
    ],
)
def test_no_way_of_writing_a_mutation_changes_something(query):
    assert validate(SCHEMA, parse(query), [ReadOnlyRule])


@pytest.mark.parametrize("query", ["{ version }", "mutation { setNuxSeen logTelemetry }"])
def test_what_the_pages_of_auditors_send_is_answered(query):
    assert validate(SCHEMA, parse(query), [ReadOnlyRule]) == []


def test_no_server_starts_where_dagster_no_longer_takes_the_guard(monkeypatch):
    monkeypatch.delattr(server.dagster_cli, "host_dagster_ui_with_workspace_process_context")
    monkeypatch.setattr(server.dagster_cli, "cli", lambda *_, **__: pytest.fail("it served"))
    with pytest.raises(RuntimeError, match="a Dagster without it"):
        server.main(["--help"])


@pytest.mark.parametrize("read_only", [False, True])
def test_the_guard_is_around_everything_else(read_only):
    class Context:
        """As much of a workspace as the middleware and the rules are made of."""

    web = object.__new__(server.GuardedWebserver)
    web._process_context, web._app_path_prefix = Context(), ""
    web._process_context.read_only = read_only
    first = web.build_middleware()[0]
    assert first.cls is Guard
    assert first.kwargs["read_only"] is read_only
    assert (ReadOnlyRule in web.build_graphql_validation_rules()) is read_only
