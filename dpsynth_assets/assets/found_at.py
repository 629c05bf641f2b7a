"""Words for the metadata of audits and attacks: found by this run, or earlier and unchanged."""

from collections.abc import Sequence

FOUND_AT = "dpsynth/found"


def found_at(kept: Sequence[str], made: int) -> str:
    """Says when results were found.

    Args:
        kept: Times at which results that still hold were found, ISO 8601.
        made: How many results this run found.
    """
    if not kept:
        return f"{made} by this run"
    of_earlier = (
        f"{len(kept)} from {min(kept)}, unchanged since: equal code, settings, libraries and "
        "processor"
    )
    return f"{of_earlier}; {made} by this run" if made else of_earlier
