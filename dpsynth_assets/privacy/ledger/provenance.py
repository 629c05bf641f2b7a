"""What releases are made from: a graph of them, and the one walk over it.

A plan draws the graph before anything is charged (`methods.provenance`); a ledger holds the same
one in the `inputs` of its charges. Post-processing keeps the guarantee of what it reads and adds
nothing to it: so code that states a cost or a guarantee asks here for all inputs.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable

from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger.schema import RESERVE, LedgerEntry

_RESERVATION = re.compile(r"[0-9a-f]{32}")
_PUBLIC = frozenset(
    {
        "public_language_model",
        "language_model",  # of private prediction, as ledgers have held it from the first
        "public_clusters",
        "public_corpus",
        "text_embedder",
        "topic_model",
        "conditional_generator",
    }
)
"""Names of public inputs in a charge; the identity of one may be any folder's name."""


class Provenance(ABC):
    """Releases by name, each with the names of what it is made from."""

    @abstractmethod
    def reads(self, name: str) -> Collection[str]:
        """Names of what a release is made from, in one step; empty for one that is unknown."""

    def behind(self, name: str) -> tuple[str, ...]:
        """Names of all that a release is made from, over all steps, each once.

        Its own is among them only where it is made from itself, in a circle.
        """
        found: dict[str, None] = {}
        waiting = [name]
        while waiting:
            new = [each for each in self.reads(waiting.pop()) if each not in found]
            waiting += new
            found |= dict.fromkeys(new)
        return tuple(found)


class ChargeGraph(Provenance):
    """The charges of a ledger by their reservations, with what each names among its inputs.

    Attributes:
        charges: Charges in order, by reservation.
    """

    def __init__(self, entries: Iterable[LedgerEntry]) -> None:
        """Takes entries in order; commits and recoveries among them are passed over."""
        self.charges = {each.reservation: each for each in entries if each.kind == RESERVE}

    def reads(self, name: str) -> list[str]:
        """Reservations that a charge names; one that is in no entry is among them."""
        charge = self.charges.get(name)
        inputs = {} if charge is None else charge.inputs
        return [str(it) for name, it in inputs.items() if self._is_release(name, it)]

    def charges_behind(self, reservation: str) -> list[LedgerEntry]:
        """Charges of all that a release is made from, earlier ones first, its own as the last.

        Raises:
            PrivacyError: There is no such charge.
        """
        if reservation not in self.charges:
            raise PrivacyError(
                f"Expected a charge of the ledger, got reservation {reservation!r}. A label is "
                "written from the ledger that paid: name it with DPSYNTH_LEDGER_URL."
            )
        behind = set(self.behind(reservation)) - {reservation}
        earlier = [each for name, each in self.charges.items() if name in behind]
        return [*earlier, self.charges[reservation]]

    def _is_release(self, name: str, identity: object) -> bool:
        """Says whether an input is a release; one that looks like a release and is unknown is."""
        if not isinstance(identity, str):
            return False
        known = identity in self.charges
        return known or (name not in _PUBLIC and _RESERVATION.fullmatch(identity) is not None)
