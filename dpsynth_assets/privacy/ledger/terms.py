"""Budget terms that a dataset file declares, and their canonical form."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.units import NeighboringRelation, PrivacyUnit

ZCDP = "zcdp"
TIGHT = "tight"
ACCOUNTANTS = (ZCDP, TIGHT)

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_json(value: object) -> str:
    """Writes one value in exactly one way: sorted keys, no spaces, ASCII, shortest floats.

    Raises:
        ValueError: The value is not JSON, or holds a NaN or an infinity.
    """
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected finite JSON values in a ledger entry: {error}.") from None


def digest(value: object) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class SecretTerms:
    """The bound that a dataset file promises to every listed secret, beside its records' budget.

    Attributes:
        prior: p in (0, 1): largest probability with which an attacker guesses a secret from what
            was known before.
        posterior: r in [p, 1): largest probability afterwards, over all releases of the cohort.
        occurrences: m >= 1: largest number of records that hold one secret. A DP release protects
            a secret only through group privacy for m records (docs/privacy.md).
        others: Further (p, r), promised to other kinds of secrets of the same records.
    """

    prior: float
    posterior: float
    occurrences: int = 1
    others: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        """Casts numbers, as canonical JSON needs, and refuses bounds that bound nothing."""
        object.__setattr__(self, "prior", float(self.prior))
        object.__setattr__(self, "posterior", float(self.posterior))
        object.__setattr__(self, "others", tuple((float(p), float(r)) for p, r in self.others))
        for prior, posterior in self.bounds:
            if not 0 < prior <= posterior < 1:
                raise ValueError(
                    "Expected 0 < prior <= posterior < 1 for the secrets, got "
                    f"prior={prior} and posterior={posterior}."
                )
        if int(self.occurrences) != self.occurrences or self.occurrences < 1:
            raise ValueError(
                f"Expected a whole number of occurrences >= 1, got {self.occurrences}."
            )
        object.__setattr__(self, "occurrences", int(self.occurrences))

    @property
    def bounds(self) -> tuple[tuple[float, float], ...]:
        """Every (p, r) that is promised, the first one's first."""
        return ((self.prior, self.posterior), *self.others)

    def keeps(self, earlier: "SecretTerms") -> bool:
        """Says whether every bound promised earlier still holds where these do, of as many records.

        **Privacy** A guess that begins at a larger p ends at a larger probability. So (p, r) keeps
        (p', r') where p >= p' and r <= r'.
        """
        return self.occurrences == earlier.occurrences and all(
            any(p >= prior and r <= posterior for p, r in self.bounds)
            for prior, posterior in earlier.bounds
        )


@dataclass(frozen=True, kw_only=True)
class BudgetTerms:
    """Budget that a dataset file allows, stored with every entry.

    Attributes:
        epsilon: Total budget ε of the cohort. May be raised or lowered later.
        delta: Public constant δ of the cohort, fixed by its first entry (docs/privacy.md).
        accountant: `zcdp`, a filter that holds for adaptively chosen releases, or `tight`, a plan
            fixed before the first charge (docs/privacy.md).
        relation: Neighbouring relation, fixed by the cohort's first entry.
        unit: Privacy unit, fixed by the cohort's first entry.
        accepts_ex_post: Whether releases without an (ε, δ) guarantee are accepted.
        public_facts: Names of the declared public facts that mechanisms rely on.
        secret: Bound on what all releases tell about one secret; None where none is promised.
        partition: Rule that partitions the dataset into disjoint cohorts, e.g. `month of created`;
            the same for all cohorts of a dataset. None: not partitioned by a rule.
    """

    epsilon: float
    delta: float
    accountant: str
    relation: NeighboringRelation
    unit: PrivacyUnit
    accepts_ex_post: bool = False
    public_facts: tuple[str, ...] = ()
    secret: SecretTerms | None = None
    partition: str | None = None

    def __post_init__(self) -> None:
        """Casts numbers (an int would change the canonical JSON) and refuses a void budget."""
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))
        object.__setattr__(self, "relation", NeighboringRelation(self.relation))
        object.__setattr__(self, "public_facts", tuple(self.public_facts))
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise ValueError(f"Expected 0 < epsilon < inf, got {self.epsilon}.")
        if not 0 < self.delta < 1:
            raise ValueError(f"Expected 0 < delta < 1, got {self.delta}.")
        if self.accountant not in ACCOUNTANTS:
            raise ValueError(f"Expected an accountant in {ACCOUNTANTS}, got {self.accountant!r}.")

    def to_json(self) -> str:
        """Canonical JSON, read back by `from_json`."""
        return canonical_json(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "BudgetTerms":
        """Reads what `to_json` wrote.

        Raises:
            PrivacyError: A term is missing or unknown: to read the others alone might lift a bound.
        """
        fields = _whole(cls, json.loads(text))
        unit = PrivacyUnit(**_whole(PrivacyUnit, fields["unit"]))
        secret = fields["secret"] and SecretTerms(**_whole(SecretTerms, fields["secret"]))
        return cls(**{**fields, "unit": unit, "secret": secret})


def _whole(kind: type[object], fields: dict[str, Any]) -> dict[str, Any]:
    """The stored fields of a value, after comparing their names with its own."""
    known = set(kind.__annotations__)
    if wrong := sorted(known ^ set(fields)):
        raise PrivacyError(
            f"Expected the terms {', '.join(sorted(known))} in a ledger entry, got others: "
            f"{', '.join(wrong)}. Nothing was charged: restore the ledger from a backup."
        )
    return fields
