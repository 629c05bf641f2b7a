"""A rest between two questions for a place in a full pool.

Dagster's executors ask again at once where every step of a run waits for a pool: a run that waits
would keep a core busy for as long as it waits. The database is asked less often, so the core is all
that is lost.
"""

import time
from contextlib import suppress
from typing import Any

REST_SECONDS = 0.1


def rest_between_claims() -> None:
    """Lets every step of this process that finds no place rest before its executor goes on.

    Called again it changes nothing. A version of Dagster without the class is left as it is.
    """
    with suppress(ImportError, AttributeError):
        from dagster._core.execution.plan import instance_concurrency_context as module

        owner = module.InstanceConcurrencyContext
        ask = owner.claim
        if getattr(ask, "rests", False):
            return

        def claim(self: Any, *arguments: Any, **named: Any) -> bool:
            claimed = bool(ask(self, *arguments, **named))
            if not claimed:
                time.sleep(REST_SECONDS)
            return claimed

        claim.rests = True  # type: ignore[attr-defined]
        owner.claim = claim  # type: ignore[method-assign]
