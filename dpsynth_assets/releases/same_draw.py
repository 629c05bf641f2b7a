"""Whether a killed draw may be resumed: only where everything that decides it is what it was."""

import json
from collections.abc import Mapping
from typing import Any

from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import ReleaseRequest


def refuse_changed(
    request: ReleaseRequest, then: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    """Refuses to resume a draw that something else decides now, in one line.

    Raises:
        PrivacyError: Names the first field that differs; of `records` neither value.
    """
    found = first_difference(then, now)
    if found is None:
        return
    field, *values = found
    expected, got = (json.dumps(value, ensure_ascii=False)[:80] for value in values)
    if field == "records":
        expected, got = "the records", "others, or in another form"
    raise PrivacyError(
        f"{field}: expected {expected}, as when {request.asset} was charged by a run that was "
        f"killed, got {got}. Nothing was read or charged. Restore it, or ask for another release "
        f"than {request.release!r} by name, which pays."
    )


def first_difference(then: Any, now: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Finds where two JSON values differ first, the order of names included.

    Returns:
        The path, and both values there; None where they are equal.
    """
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for name in (*then, *(name for name in now if name not in then)):
            place = f"{path}.{name}".removeprefix(".")
            if (found := first_difference(then.get(name), now.get(name), place)) is not None:
                return found
        return None if list(then) == list(now) else (path, list(then), list(now))
    return None if then == now else (path, then, now)
