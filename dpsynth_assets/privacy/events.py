"""Accounting events: what a mechanism did, in the terms from which every ε is recomputed.

An event states sensitivity-normalised parameters under the declared neighbouring relation and
unit, so accountants always run in add/remove mode (dp_accounting's replace-one mode doubles the
sensitivity in one accountant and not in the other). Every float is cast at construction: an int
noise multiplier inside a composed event makes dp_accounting 0.6 under-report by 18x.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


def _positive(name: str, value: float) -> float:
    value = float(value)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"Expected 0 < {name} < inf, got {name}={value}.")
    return value


def _count(name: str, value: int) -> int:
    if int(value) != value or value < 0:
        raise ValueError(f"Expected {name} to be a whole number >= 0, got {name}={value}.")
    return int(value)


@dataclass(frozen=True, kw_only=True)
class GaussianEvent:
    """One (discrete or continuous) Gaussian release; `noise_multiplier` = σ / L2 sensitivity."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        """Casts and validates."""
        object.__setattr__(
            self, "noise_multiplier", _positive("noise_multiplier", self.noise_multiplier)
        )

    @property
    def rho(self) -> Fraction:
        """The zCDP parameter 1 / (2 noise_multiplier²), exact."""
        return 1 / (2 * Fraction(self.noise_multiplier) ** 2)


@dataclass(frozen=True, kw_only=True)
class DiscreteLaplaceEvent:
    """One integer-valued Laplace release of scale `scale` and L1 sensitivity `sensitivity`."""

    scale: float
    sensitivity: int = 1

    def __post_init__(self) -> None:
        """Casts and validates."""
        object.__setattr__(self, "scale", _positive("scale", self.scale))
        if _count("sensitivity", self.sensitivity) < 1:
            raise ValueError("Expected sensitivity >= 1, got 0.")

    @property
    def epsilon(self) -> Fraction:
        """Pure ε = sensitivity / scale, exact."""
        return self.sensitivity / Fraction(self.scale)

    @property
    def rho(self) -> Fraction:
        """The zCDP parameter ε²/2 of a pure ε-DP release."""
        return self.epsilon**2 / 2


@dataclass(frozen=True, kw_only=True)
class BoundedRangeEvent:
    """`count` adaptive draws from η-bounded-range mechanisms (softmax sampling of tokens)."""

    eta: float
    count: int

    def __post_init__(self) -> None:
        """Casts and validates."""
        object.__setattr__(self, "eta", _positive("eta", self.eta))
        object.__setattr__(self, "count", _count("count", self.count))

    @property
    def rho(self) -> Fraction:
        """The zCDP parameter count · η²/8 (Cesar-Rogers 2021; Lemma 4 of Amin 2024)."""
        return self.count * Fraction(self.eta) ** 2 / 8


@dataclass(frozen=True, kw_only=True)
class ComposedEvent:
    """Sequential composition of events on the same cohort."""

    events: tuple["Event", ...]

    def __post_init__(self) -> None:
        """Freezes the sequence."""
        object.__setattr__(self, "events", tuple(self.events))

    @property
    def rho(self) -> Fraction:
        """Sum of the parts' zCDP parameters, exact."""
        return sum((event.rho for event in self.events), Fraction(0))


Event = GaussianEvent | DiscreteLaplaceEvent | BoundedRangeEvent | ComposedEvent

_TYPES: dict[str, type[Any]] = {
    "gaussian": GaussianEvent,
    "discrete_laplace": DiscreteLaplaceEvent,
    "bounded_range": BoundedRangeEvent,
    "composed": ComposedEvent,
}
_NAMES = {cls: name for name, cls in _TYPES.items()}


def event_to_json(event: Event) -> dict[str, Any]:
    """Writes constructor arguments, so accounting can be recomputed from the ledger alone."""
    fields = dict(vars(event))
    if isinstance(event, ComposedEvent):
        fields["events"] = [event_to_json(part) for part in event.events]
    return {"type": _NAMES[type(event)], **fields}


def event_from_json(data: dict[str, Any]) -> Event:
    """Reads what `event_to_json` wrote. Raises ValueError on an unknown type."""
    fields = dict(data)
    name = fields.pop("type", None)
    if name not in _TYPES:
        raise ValueError(f"Expected an event type in {sorted(_TYPES)}, got {name!r}.")
    if name == "composed":
        fields["events"] = tuple(event_from_json(part) for part in fields["events"])
    event: Event = _TYPES[name](**fields)
    return event


def flatten(event: Event) -> list[Event]:
    """Lists the atomic events of a composition, in order."""
    if isinstance(event, ComposedEvent):
        return [atom for part in event.events for atom in flatten(part)]
    return [event]
