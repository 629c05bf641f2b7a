"""Whether the records of a source are fit to be paid for: the same answer in a check and in a run.

**Privacy** The answer follows from the records without noise: that a run was refused is outside
(ε, δ), and numbers are for the steward's terminal alone. A run says one constant sentence.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.records.columns import SourceError

MAY_DIFFER = 0.1
"""Share by which the records may be more or fewer than declared. The declared number is what noise
and sampling follow, so a few records more cost no privacy; refusing on one would tell of one."""


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Numbers of records that rules look at. Private; its repr shows none of them.

    Attributes:
        records: Records of the source, in the cohort's window.
        set_aside: Rule -> how many of them it set aside; the bound on a unit is no such rule.
    """

    records: int = field(repr=False)
    set_aside: Mapping[str, int] = field(repr=False)

    @property
    def read(self) -> int:
        """How many can be used."""
        return self.records - sum(self.set_aside.values())

    @classmethod
    def of_all(cls, each: Iterable["Tally"]) -> "Tally":
        """The numbers of a source that lies in parts."""
        records, set_aside = 0, dict[str, int]()
        for one in each:
            records += one.records
            for rule, count in one.set_aside.items():
                set_aside[rule] = set_aside.get(rule, 0) + count
        return cls(records=records, set_aside=set_aside)


def unfit(tally: Tally, spec: PrivateDatasetSpec) -> Iterator[SourceError]:
    """Why nothing may be charged for these records; for the steward's terminal."""
    lost, share = tally.records - tally.read, spec.source.max_set_aside
    if not tally.read and (tally.records or spec.window is None):
        yield SourceError(
            field="source.path",
            expected="at least one usable record",
            got=f"{tally.records} rows, all set aside" if tally.records else "no rows",
            remedy="Fill the source, or point source.path at the right file.",
        )
    elif lost > share * tally.records:
        yield SourceError(
            field="source.max_set_aside",
            expected=f"at most {100 * share:g} % of the records set aside",
            got=f"{lost} of {tally.records}",
            remedy="Mend what sets them aside; or, if they are not meant, declare a larger share.",
        )
    declared = None if spec.cohorts else spec.public_facts.records  # Of each cohort, not of all.
    if declared is not None and abs(tally.records - declared) > MAY_DIFFER * declared:
        yield SourceError(
            field="public_facts.records",
            expected=f"about {declared} records (within a tenth), as public_facts.records says",
            got=str(tally.records),
            remedy="Correct public_facts.records, or name the version it counts.",
        )


def refuse_unfit(tally: Tally, spec: PrivateDatasetSpec) -> None:
    """Refuses records before anything is charged for them.

    Raises:
        PrivacyError: With one constant sentence, whatever the reason.
    """
    if any(unfit(tally, spec)):
        raise PrivacyError(
            f"The records of {spec.name!r} are not as its dataset file says: nothing was charged. "
            "`dpsynth datasets check` on the steward's terminal says why."
        )
