"""Accounting events: what a mechanism did, in the terms from which every ε is recomputed.

An event states sensitivity-normalised parameters under the declared neighbouring relation and
unit, so accountants always run in add/remove mode (dp_accounting's replace-one mode doubles the
sensitivity in one accountant and not in the other). Every float is cast at construction: an int
noise multiplier inside a composed event makes dp_accounting 0.6 under-report by 18x.
"""

import math
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar

from dpsynth_assets.privacy.errors import check_at_least, check_positive


def _positive(name: str, value: float) -> float:
    check_positive(name, float(value))
    return float(value)


def _count(name: str, value: int) -> int:
    if int(value) != value or value < 0:
        raise ValueError(f"Expected {name} to be a whole number >= 0, got {name}={value}.")
    return int(value)


class _Cast:
    """Casts and validates fields at construction: floats > 0, and whole numbers >= 0."""

    at_least_one: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Casts and validates."""
        for each in fields(self):  # type: ignore[arg-type]
            check = {float: _positive, int: _count}.get(each.type)  # type: ignore[arg-type]
            if check is not None:
                object.__setattr__(self, each.name, check(each.name, getattr(self, each.name)))
        check_at_least(1, **{name: getattr(self, name) for name in self.at_least_one})


@dataclass(frozen=True, kw_only=True)
class GaussianEvent(_Cast):
    """One Gaussian release; `noise_multiplier` = σ / L2 sensitivity.

    Continuous noise, or integer noise on a fine lattice, as much larger as makes it as good
    (`lattice.noise_for_gaussian`).
    Counts have integer noise of their own (`DiscreteGaussianEvent`).
    """

    noise_multiplier: float

    @property
    def rho(self) -> Fraction:
        """The zCDP parameter 1 / (2 noise_multiplier²), exact."""
        return 1 / (2 * Fraction(self.noise_multiplier) ** 2)


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussianEvent(_Cast):
    """`count` whole numbers that move by `shift` each, with integer Gaussian noise on each.

    Attributes:
        noise_std: σ of P(k) ∝ exp(−k²/(2σ²)), in counts.
        shift: How far a privacy unit moves one of the numbers at most.
        count: How many numbers it moves so, over all releases: one a histogram where it comes or
            goes, two where it is replaced. 0 is no release.

    **Privacy** Independent noise, so the pair is the product of `count` pairs of noise and noise
    moved by `shift`. Which shapes of neighbours it dominates is proved in `histogram`.
    """

    at_least_one = ("shift",)

    noise_std: float
    shift: int = 1
    count: int = 1

    @property
    def rho(self) -> Fraction:
        """The zCDP parameter count · shift² / (2σ²), exact, as that of continuous noise.

        **Source** Canonne, Kamath, Steinke 2020, Proposition 5.
        """
        return self.count * self.shift**2 / (2 * Fraction(self.noise_std) ** 2)


@dataclass(frozen=True, kw_only=True)
class DiscreteLaplaceEvent(_Cast):
    """One integer-valued Laplace release of scale `scale` and L1 sensitivity `sensitivity`."""

    at_least_one = ("sensitivity",)

    scale: float
    sensitivity: int = 1

    @property
    def epsilon(self) -> Fraction:
        """Pure ε = sensitivity / scale, exact."""
        return self.sensitivity / Fraction(self.scale)

    @property
    def rho(self) -> Fraction:
        """The zCDP parameter ε²/2 of a pure ε-DP release."""
        return self.epsilon**2 / 2


@dataclass(frozen=True, kw_only=True)
class BoundedRangeEvent(_Cast):
    """`count` adaptive draws from η-bounded-range mechanisms (softmax sampling of tokens)."""

    eta: float
    count: int

    @property
    def rho(self) -> Fraction:
        """The zCDP parameter count · η²/8 (Cesar-Rogers 2021; Lemma 4 of Amin 2024)."""
        return self.count * Fraction(self.eta) ** 2 / 8


@dataclass(frozen=True, kw_only=True)
class PureEvent(_Cast):
    """`count` adaptive releases, each pure ε-DP (AboveThreshold, for one)."""

    epsilon: float
    count: int = 1

    @property
    def rho(self) -> Fraction:
        """The zCDP parameter count · ε²/2."""
        return self.count * Fraction(self.epsilon) ** 2 / 2


@dataclass(frozen=True, kw_only=True)
class PoissonGaussianEvent(_Cast):
    """`steps` Gaussian releases, each over a fresh Poisson sample of the records (DP-SGD).

    Attributes:
        sampling_probability: q in (0, 1], the same for every record and step.
        noise_multiplier: σ / contribution bound of one record.
        steps: T.
        max_records_per_unit: Records of one unit, sampled one by one.
        replaced: Whether neighbours replace a unit instead of adding or removing it.
    """

    at_least_one = ("max_records_per_unit",)

    sampling_probability: float
    noise_multiplier: float
    steps: int
    max_records_per_unit: int = 1
    replaced: bool = False

    def __post_init__(self) -> None:
        """Casts and validates."""
        super().__post_init__()
        if self.sampling_probability > 1:
            raise ValueError(
                f"Expected sampling_probability <= 1, got {self.sampling_probability}."
            )

    @property
    def rho(self) -> Fraction:
        """A zCDP bound that forgets the sampling: valid, and loose where q is small."""
        shift = (2 if self.replaced else 1) * self.max_records_per_unit
        return self.steps * shift**2 / (2 * Fraction(self.noise_multiplier) ** 2)


@dataclass(frozen=True, kw_only=True)
class MixtureGaussianEvent(_Cast):
    """`steps` releases dominated by Σ_k P(k) N(shift_k, σ²) against N(0, σ²).

    What (p, r)-secret protection stores: with the secret the sum moves by a random shift, without
    it by none. Under `secret` it bounds the secret's neighbours only and says nothing about a
    record; its cost never enters a DP total.

    Attributes:
        noise_std: σ, in the units of the shifts.
        shifts: (K,) non-negative distances, ascending.
        probabilities: (K,) of each shift, summing to one.
        steps: T.
    """

    noise_std: float
    shifts: tuple[float, ...]
    probabilities: tuple[float, ...]
    steps: int = 1

    def __post_init__(self) -> None:
        """Casts and validates."""
        super().__post_init__()
        for name in ("shifts", "probabilities"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        finite = all(math.isfinite(value) and value >= 0 for value in self.shifts)
        chances = all(0 <= value <= 1 for value in self.probabilities)
        if not (finite and chances and len(self.shifts) == len(self.probabilities) > 0):
            raise ValueError("Expected one probability in [0, 1] for each finite shift >= 0.")
        if list(self.shifts) != sorted(self.shifts):
            raise ValueError("Expected shifts in ascending order.")
        if abs(math.fsum(self.probabilities) - 1) > 1e-9:
            raise ValueError(
                f"Expected probabilities that sum to 1, got {math.fsum(self.probabilities)}."
            )

    @property
    def rho(self) -> Fraction:
        """A zCDP bound of the pair: as if the largest shift always happened."""
        largest = Fraction(self.shifts[-1]) / Fraction(self.noise_std)
        return self.steps * largest**2 / 2


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


Event = (
    GaussianEvent
    | DiscreteGaussianEvent
    | DiscreteLaplaceEvent
    | BoundedRangeEvent
    | PureEvent
    | PoissonGaussianEvent
    | MixtureGaussianEvent
    | ComposedEvent
)

_TYPES: dict[str, type[Any]] = {
    "gaussian": GaussianEvent,
    "discrete_gaussian": DiscreteGaussianEvent,
    "discrete_laplace": DiscreteLaplaceEvent,
    "bounded_range": BoundedRangeEvent,
    "pure": PureEvent,
    "poisson_gaussian": PoissonGaussianEvent,
    "mixture_gaussian": MixtureGaussianEvent,
    "composed": ComposedEvent,
}
_NAMES = {cls: name for name, cls in _TYPES.items()}


def event_to_json(event: Event) -> dict[str, Any]:
    """Writes constructor arguments, so accounting can be recomputed from the ledger alone."""
    fields = dict(vars(event))
    if isinstance(event, ComposedEvent):
        fields["events"] = [event_to_json(part) for part in event.events]
    lists = {name: list(value) for name, value in fields.items() if isinstance(value, tuple)}
    return {"type": _NAMES[type(event)], **fields, **lists}


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


POST_PROCESSING: Event = ComposedEvent(events=())
"""Event of writing from earlier releases: free, as long as nothing private is read."""


def is_post_processing(event: Event | None) -> bool:
    """Says whether an event composes nothing at all. None is no event, and not free."""
    return event is not None and not flatten(event)


def flatten(event: Event) -> list[Event]:
    """Lists the atomic events of a composition, in order."""
    if isinstance(event, ComposedEvent):
        return [atom for part in event.events for atom in flatten(part)]
    return [event]
