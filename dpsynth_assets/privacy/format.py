"""The one format of ledger, stores and home, and the refusal of every other."""

from dpsynth_assets.privacy.errors import PrivacyError

FORMAT = 1
"""Raised where a ledger, a store or a home is written in another way, or means something else."""


class FormatError(PrivacyError):
    """What was opened is of another format: it is neither read nor written to."""


def require_format(place: object, found: object) -> None:
    """Refuses what another version wrote: read by this one, it might seem to have spent less.

    Args:
        place: What was opened, as a person names it; without a password.
        found: The format that it says it has; None where it says none.

    Raises:
        FormatError: It is not this one.
    """
    if str(found) != str(FORMAT):
        raise FormatError(
            f"Expected format {FORMAT} in {place}, got {'none' if found is None else found}: it is "
            "left as it is. Use the version of dpsynth_assets that wrote it, or begin a new "
            "home (DPSYNTH_HOME) for records that it has not charged."
        )
