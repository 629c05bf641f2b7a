"""Asks a running web server to load the definitions again, as its button *Reload* does."""

import json
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

LOCATION = "dpsynth_assets"
PATIENCE_SECONDS = 300
_QUERY = """
mutation Reload($location: String!) {
  reloadRepositoryLocation(repositoryLocationName: $location) {
    __typename
    ... on WorkspaceLocationEntry { locationOrLoadError { __typename } }
    ... on ReloadNotSupported { message }
    ... on RepositoryLocationNotFound { message }
    ... on UnauthorizedError { message }
    ... on PythonError { message }
  }
}
"""


def reload_problem(url: str) -> str | None:
    """Reloads the code location of the web server at `url`.

    Returns:
        What went wrong, in a line; None where the definitions are loaded anew.
    """
    try:
        answer = _asked(url.rstrip("/"))
    except (HTTPError, URLError, OSError, ValueError) as error:
        return (
            f"Expected a Dagster web server at {url}, got {error}. Start it with `make ui`, or "
            "name its address."
        )
    if answer.get("__typename") != "WorkspaceLocationEntry":
        message = answer.get("message", "no answer")
        return f"Expected {url} to reload {LOCATION}, got: {message}. Ask a server that may change."
    if answer["locationOrLoadError"]["__typename"] != "RepositoryLocation":
        return (
            f"Expected {url} to load {LOCATION}, got an error of a dataset file. Run "
            "`dpsynth datasets check`."
        )
    return None


def _asked(url: str) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise ValueError("an address without http:// or https://")
    body = json.dumps({"query": _QUERY, "variables": {"location": LOCATION}}).encode()
    request = Request(  # noqa: S310 - the address is an http one
        f"{url}/graphql", body, {"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=PATIENCE_SECONDS) as response:  # noqa: S310
        answer = json.load(response)
    if answer.get("errors"):
        return {"message": answer["errors"][0]["message"]}
    return dict(answer["data"]["reloadRepositoryLocation"])
