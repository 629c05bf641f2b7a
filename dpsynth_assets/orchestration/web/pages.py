"""Written pages through the web server: cards, labels and statements, audit trails, reports.

Files of `released/` and of `reports/` are named one by one; nothing else of DPSYNTH_HOME has an
address. What was released, and what the ledger says of it, is for everybody who reaches the server.
A report holds scores and pictures that were computed from private text without noise, for the
steward: a read-only server, which is for others, does not show it.
"""

import re
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from dpsynth_assets.paths import home
from dpsynth_assets.report.pages import PAGES, POLICY

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
            return PlainTextResponse("No such page is written.\n", 404, shown)
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
        "reports": (home().reports, AUDIT | REPORT),
    }
    folder, files = places.get(place, (Path(), frozenset[Any]()))
    names = path.split("/")
    if len(names) > _DEEPEST or names[-1] not in files or not all(map(_NAME.fullmatch, names)):
        return None
    file = folder.joinpath(*names)
    # A link would lead out of the folder, whoever made it.
    is_there = file.is_file() and file.resolve() == folder.resolve().joinpath(*names)
    return file if is_there else None
