"""The privacy unit and the neighbouring relation: what one guarantee protects."""

from dataclasses import dataclass
from enum import StrEnum


class NeighboringRelation(StrEnum):
    """The relation by which two private datasets are neighbours.

    ADD_REMOVE: one has one record more. ZERO_OUT: one record is replaced by a null record that
    keeps its place (the number of records is public). REPLACE_ONE: one record has other content;
    the declared ids of a record and of its unit are kept, hence public.
    """

    ADD_REMOVE = "add-remove"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"

    @property
    def records_changed(self) -> int:
        """Contributions that differ between neighbours: a replacement removes one and adds one."""
        return 2 if self is NeighboringRelation.REPLACE_ONE else 1


@dataclass(frozen=True, kw_only=True)
class PrivacyUnit:
    """Whose presence is hidden: one record, or every record that shares a value of `column`.

    Attributes:
        column: Column that names the unit, e.g. `customer_id`; None when the unit is one record.
        max_records: Bound on the records one unit contributes, enforced before any mechanism.
    """

    column: str | None = None
    max_records: int = 1

    def __post_init__(self) -> None:
        """Refuses a bound below one, and a bound without a unit column."""
        if self.max_records < 1:
            raise ValueError(f"Expected max_records >= 1, got {self.max_records}.")
        if self.column is None and self.max_records != 1:
            raise ValueError(
                f"Expected max_records=1 where the unit is one record, got {self.max_records}. "
                "Name the unit's column, or drop max_records."
            )

    def describe(self) -> str:
        """Says the unit in words, for cards and statements."""
        if self.column is None:
            return "one record"
        return f"all records with the same {self.column!r} (at most {self.max_records} are used)"
