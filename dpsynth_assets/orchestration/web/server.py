"""Dagster's web server behind the guard: `python -m dpsynth_assets.orchestration.web.server`.

Takes the options of `dagster-webserver`, in whose place the image runs it.
"""

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

from dagster_webserver import cli as dagster_cli
from dagster_webserver.webserver import DagsterWebserver
from graphql import ASTValidationRule, GraphQLError, OperationDefinitionNode, OperationType
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from dpsynth_assets.exports.pack import FILES as PACK
from dpsynth_assets.orchestration.web.guard import Guard, declared_hosts
from dpsynth_assets.paths import home
from dpsynth_assets.report.cards import STATEMENT_FILE
from dpsynth_assets.report.pages import PAGES, POLICY

HARMLESS_MUTATIONS = frozenset({"setNuxSeen", "logTelemetry"})
"""Mutations that the pages of a read-only server send, and that change nothing of ours."""
_CLOSING_SECONDS = 5
_HOSTING = "host_dagster_ui_with_workspace_process_context"


class ReadOnlyRule(ASTValidationRule):
    """Refuses every mutation, those of a later version of Dagster among them."""

    def enter_operation_definition(self, node: OperationDefinitionNode, *_: Any) -> None:
        """Reports an operation that may change something."""
        if node.operation is not OperationType.MUTATION:
            return
        names = {getattr(field, "name", None) for field in node.selection_set.selections}
        asked = {name.value if name is not None else "" for name in names}
        plain = all(field.kind == "field" for field in node.selection_set.selections)
        if not plain or not asked <= HARMLESS_MUTATIONS:
            self.report_error(
                GraphQLError(
                    "UnauthorizedError: this server is read-only, it has no permission to change "
                    "anything.",
                    node,
                )
            )


class GuardedWebserver(DagsterWebserver[Any, Any]):
    """Dagster's web server, which answers its own pages and this machine's clients alone."""

    def build_middleware(self) -> list[Middleware]:
        """The guard around everything else."""
        guard = Middleware(
            Guard,
            hosts=declared_hosts(),
            read_only=self._process_context.read_only,
            path_prefix=self._app_path_prefix,
        )
        return [guard, *super().build_middleware()]

    def build_routes(self) -> list[BaseRoute]:
        """Dagster's, and before them written pages, and the graph in place of an empty timeline."""
        graph, read_only = f"{self._app_path_prefix}/asset-groups", self._process_context.read_only
        ours: list[BaseRoute] = [
            Route("/", lambda _: RedirectResponse(graph)),
            *page_routes(self.make_security_headers(), read_only=read_only),
        ]
        if self._app_path_prefix:
            ours = [Mount(self._app_path_prefix, routes=ours)]
        return [*ours, *super().build_routes()]

    def build_graphql_validation_rules(self) -> Collection[type[ASTValidationRule]]:
        """Dagster's rules, and on a read-only server one that refuses mutations."""
        rules = super().build_graphql_validation_rules()
        return [*rules, ReadOnlyRule] if self._process_context.read_only else rules


def host(
    context: Any,
    address: str | None,
    port: int | None,
    path_prefix: str,
    log_level: str,
    live_data_poll_rate: int | None = None,
) -> None:
    """Serves the UI until it is interrupted; in place of Dagster's function of these arguments."""
    import uvicorn

    address = address or dagster_cli.DEFAULT_WEBSERVER_HOST
    port = port or dagster_cli.DEFAULT_WEBSERVER_PORT

    @contextlib.asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        sys.stderr.write(f"Serving on http://{address}:{port}{path_prefix} (Ctrl-C ends it)\n")
        with contextlib.suppress(asyncio.exceptions.CancelledError):
            yield

    served = GuardedWebserver(context, path_prefix, live_data_poll_rate)
    uvicorn.run(
        served.create_asgi_app(lifespan=lifespan),
        host=address,
        port=port,
        log_level=log_level,
        server_header=False,
        http="h11",  # It bounds what a client may send before it is known; httptools does not.
        timeout_graceful_shutdown=_CLOSING_SECONDS,
    )


def main(arguments: list[str] | None = None) -> None:
    """Runs `dagster-webserver` with these arguments, behind the guard.

    Raises:
        RuntimeError: Dagster's command no longer hosts the UI by the function replaced here, so
            that it would serve without the guard.
    """
    if not hasattr(dagster_cli, _HOSTING):
        raise RuntimeError(
            f"Expected dagster_webserver.cli.{_HOSTING}, got a Dagster without it. Install the "
            "version that setup.cfg names."
        )
    setattr(dagster_cli, _HOSTING, host)
    dagster_cli.cli(arguments, auto_envvar_prefix="DAGSTER_WEBSERVER")


# Written pages through the web server: cards, labels and statements, audit trails, reports.
#
# Files of `released/` and of `reports/` are named one by one; nothing else of DPSYNTH_HOME has an
# address. What was released, and what the ledger says of it, is for everybody who reaches the
# server. A report holds scores and pictures that were computed from private text without noise,
# for the steward: a read-only server, which is for others, does not show it.


AUDIT = frozenset(f"audit_trail.{suffix}" for suffix in ("html", "csv", "json")) | {"budgets.html"}
REPORT = frozenset({"report.html"})
RELEASED = frozenset({"README.md", "privacy_label.json", "privacy_statement.md"})
_TYPES = {".html": "text/html", ".json": "application/json"}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_DEEPEST = 3
"""Names of an address below `released` or `reports`: cohort, method, file."""


def page_routes(headers: dict[str, str], *, read_only: bool) -> list[Route]:
    """Where written pages are answered.

    Args:
        headers: Sent with every page, beside its policy.
        read_only: Whether the server is for others than the steward.
    """
    shown = headers | {"Content-Security-Policy": POLICY}

    def page(request: Request) -> Response:
        place, path = request.path_params["place"], request.path_params["path"]
        if path.rpartition("/")[2] in REPORT and place == "reports" and read_only:
            told = "A report is for the steward: this server is read-only and does not show it."
            return PlainTextResponse(f"{told}\n", 403, shown)
        file = written_page(place, path)
        if file is None:
            return PlainTextResponse("This page does not exist yet.\n", 404, shown)
        kind = _TYPES.get(file.suffix, "text/plain")
        return FileResponse(file, headers=shown, media_type=f"{kind}; charset=utf-8")

    return [Route(f"{PAGES}/{{place}}/{{path:path}}", page, methods=["GET"])]


def written_page(place: str, path: str) -> Path | None:
    """The file of an address; None where it is no page that may be shown, or none is written.

    Args:
        place: `released` or `reports`.
        path: Its names below that, joined by `/`.
    """
    places: dict[str, tuple[Path, frozenset[str]]] = {
        "released": (home().released, RELEASED),
        "reports": (home().reports, AUDIT | REPORT | {*PACK, STATEMENT_FILE}),
    }
    folder, files = places.get(place, (Path(), frozenset[Any]()))
    names = path.split("/")
    if len(names) > _DEEPEST or names[-1] not in files or not all(map(_NAME.fullmatch, names)):
        return None
    file = folder.joinpath(*names)
    # A link would lead out of the folder, regardless of who made it.
    is_there = file.is_file() and file.resolve() == folder.resolve().joinpath(*names)
    return file if is_there else None


if __name__ == "__main__":
    main()
