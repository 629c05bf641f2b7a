"""Posts JSON to an endpoint and tries again when that may help."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.models.engines.protocol import EngineError

if TYPE_CHECKING:
    import httpx

_WORTH_RETRYING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 60.0
_PUBLIC_CODE = re.compile(r"[a-z][a-z0-9_]{0,47}")


class RefusedError(EngineError):
    """The endpoint refused a request; trying again would not help.

    Attributes:
        status: Of its answer.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class EndpointClient:
    """One endpoint, with its patience.

    Attributes:
        http: Client with base URL, time-out and authorisation.
        attempts: Tries of one request, the first included.
        on_retry: Called before each further try.
        sleep: Waits some seconds.
    """

    http: "httpx.Client" = field(repr=False)
    attempts: int
    on_retry: Callable[[], None]
    sleep: Callable[[float], None] = time.sleep

    def post(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        """Returns the JSON answer.

        Waits between tries grow from half a second by doubling, each drawn between half of it and
        the whole so that many clients do not return at once; `Retry-After` overrides them.

        Raises:
            RefusedError: Refused.
            EngineError: Still failing after the last try. Neither the request nor the
                answer's text stands in the message: an endpoint may echo the prompt.
        """
        import httpx

        failure = ""
        for attempt in range(self.attempts):
            wait = _back_off(attempt)
            try:
                answer = self.http.post(route, json=body)
            except httpx.TransportError as error:
                failure = type(error).__name__
            else:
                if answer.is_success:
                    return _json(answer)
                failure = f"status {answer.status_code}{_public_code(answer)}"
                if answer.status_code not in _WORTH_RETRYING:
                    raise RefusedError(_refusal(failure), answer.status_code)
                wait = _retry_after(answer.headers.get("retry-after"), wait)
            if attempt + 1 < self.attempts:
                self.on_retry()
                self.sleep(wait)
        raise EngineError(
            f"Expected an answer of the endpoint within {self.attempts} tries, last got {failure}; "
            "check that it runs, or raise attempts or timeout_seconds."
        )


def _back_off(attempt: int) -> float:
    longest = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2**attempt)
    return longest * np.random.default_rng().uniform(0.5, 1)


def _retry_after(header: str | None, otherwise: float) -> float:
    """Seconds to wait: a number or an HTTP date, never more than a minute."""
    if not header:
        return otherwise
    try:
        seconds = float(header)
    except ValueError:
        try:
            until = parsedate_to_datetime(header)
        except ValueError:
            return otherwise
        seconds = (until.astimezone(UTC) - datetime.now(UTC)).total_seconds()
    return min(_LONGEST_WAIT_SECONDS, max(0.0, seconds))


def _json(answer: "httpx.Response") -> dict[str, Any]:
    try:
        content = answer.json()
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise EngineError(
            "Expected a JSON object from the endpoint, got something else; is base_url its API, "
            "usually ending in /v1?"
        )
    return content


def _public_code(answer: "httpx.Response") -> str:
    """The error's machine-readable code where it is one, e.g. model_not_found."""
    try:
        error = answer.json()["error"]
        code = error.get("code") or error.get("type")
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
    is_code = isinstance(code, str) and _PUBLIC_CODE.fullmatch(code)
    return f" ({code})" if is_code else ""


def _refusal(failure: str) -> str:
    return (
        f"Expected the endpoint to accept the request, got {failure}; check base_url, model, api "
        "and the key in the environment variable that api_key_variable names."
    )
