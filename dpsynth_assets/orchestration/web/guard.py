"""Refuses requests that pages of other sites make a browser send to the web server.

Dagster's web server has no log-in and takes GraphQL from every client that reaches its port. A
browser on the same machine reaches it, too, on behalf of any page that is open in it: an image
whose address is a mutation, a form, a WebSocket, or a name that its owner points at 127.0.0.1 (DNS
rebinding). So a request must name this server as its host, must not come from another origin, and
changes something only by a POST of JSON, which a browser sends to another origin after asking it,
and is refused.
"""

import ipaddress
import os
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

HOSTS_VARIABLE = "DPSYNTH_UI_HOSTS"
_LOOPBACK_NAMES = ("localhost",)
_PAGES_OF_NOBODY = ("/graphql", "/report_", "/logs/", "/download_debug/", "/notebook", "/dagit/")
_HEADERS = (
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


def declared_hosts() -> tuple[str, ...]:
    """Names in DPSYNTH_UI_HOSTS, separated by commas: those a proxy serves the UI under."""
    names = os.environ.get(HOSTS_VARIABLE, "").split(",")
    return tuple(name.strip().lower() for name in names if name.strip())


class Guard:
    """ASGI middleware that refuses, in one line, what no page of this server asks for."""

    def __init__(
        self, app: Any, *, hosts: Iterable[str] = (), read_only: bool = False, path_prefix: str = ""
    ) -> None:
        """Wraps an application.

        Args:
            app: The ASGI application that answers what is not refused.
            hosts: Names, with or without a port, under which a proxy serves it. The address that a
                connection was made to, and `localhost` where that is a loopback one, always count.
            read_only: Refuses every POST but GraphQL, whose mutations the server refuses itself.
            path_prefix: Where the UI is mounted, as given to Dagster's `--path-prefix`.
        """
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._read_only = read_only
        self._prefix = path_prefix.rstrip("/")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers a request, or refuses it with status 403 (a WebSocket with close code 1008)."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        problem = self._problem(scope)
        if problem is None:
            await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": problem[:120]})
        else:
            await PlainTextResponse(f"{problem}\n", 403)(scope, receive, send)

    def _problem(self, scope: Any) -> str | None:
        headers = Headers(scope=scope)
        host = headers.getlist("host")
        if len(host) != 1 or not self._is_here(host[0], scope.get("server")):
            return (
                f"Expected a request to the address of this server or a name in {HOSTS_VARIABLE}, "
                "got another host. Add the name your proxy serves to that variable."
            )
        if not all(_same_place(origin, host[0]) for origin in headers.getlist("origin")):
            return "Expected a request from this server's own pages, got one from another origin."
        is_http = scope["type"] == "http"
        if not self._fetched_here(scope, headers, is_http=is_http):
            return "Expected a request from this server's own pages, got one from another site."
        return self._method_problem(scope, headers) if is_http else None

    def _is_here(self, host: str, server: Any) -> bool:
        """Whether a Host header names this server."""
        name, _ = _split(host)
        if host.lower() in self._hosts or name in self._hosts:
            return True
        address = _address(server[0]) if server else None
        if address is None:
            return False
        if address.is_loopback and name in _LOOPBACK_NAMES:
            return True
        # A name that somebody points here is never the bare address of this connection.
        return _address(name) == address

    def _fetched_here(self, scope: Any, headers: Headers, *, is_http: bool) -> bool:
        """Whether a browser says that one of our pages, or its user, asked for this.

        Clients that are no browser say nothing, and other sites may link to our pages.
        """
        if all(site in ("same-origin", "none") for site in headers.getlist("sec-fetch-site")):
            return True
        return (
            is_http
            and scope["method"] in ("GET", "HEAD")
            and headers.getlist("sec-fetch-mode") == ["navigate"]
            and headers.getlist("sec-fetch-dest") == ["document"]
            and not self._path(scope).startswith(_PAGES_OF_NOBODY)
        )

    def _method_problem(self, scope: Any, headers: Headers) -> str | None:
        method, path = scope["method"], self._path(scope)
        if method in ("GET", "HEAD"):
            is_page = "text/html" in headers.get("accept", "")  # as Dagster reads it
            if path.rstrip("/") == "/graphql" and not is_page:
                return "Expected a GraphQL request as POST of application/json, got a GET."
            return None
        sent = headers.getlist("content-type")
        kinds = [kind.partition(";")[0].strip().lower() for kind in sent]
        if method != "POST" or kinds != ["application/json"]:
            return f"Expected a POST of application/json, got {method[:10]} of another type."
        if self._read_only and path.rstrip("/") != "/graphql":
            return "This server is read-only: it accepts no reports."
        return None

    def _path(self, scope: Any) -> str:
        return str(scope["path"]).removeprefix(self._prefix)


def _split(host: str) -> tuple[str, str]:
    """Name in lower case without brackets, and port or an empty text, of `name[:port]`."""
    name, colon, port = host.lower().rpartition(":")
    if not colon or port.endswith("]"):
        name, port = host.lower(), ""
    return name.strip("[]"), port


def _same_place(origin: str, host: str) -> bool:
    """Whether an Origin header is that of pages of `host`, whose port may be the scheme's own."""
    try:
        parts = urlsplit(origin.lower())
        port = str(parts.port or "")
    except ValueError:
        return False
    default = {"http": "80", "https": "443"}.get(parts.scheme)
    if default is None:
        return False
    name, here = _split(host)
    return parts.hostname == name and (port or default) == (here or default)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _with_headers(send: Any) -> Any:
    """The same `send`, which tells browsers to show these pages in no frame of another site."""

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *_HEADERS]}
        await send(message)

    return sending
