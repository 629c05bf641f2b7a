"""Selects the records of a source that belong to one window of time."""

import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec

_DATE_CHARACTERS = len("2026-11-30")


def in_window(raw: pl.DataFrame, spec: PrivateDatasetSpec) -> pl.DataFrame:
    """Keeps the records that the cohort of `spec` consists of, before any rule sets one aside.

    Privacy:
        Whether a record stays is a function of its own date and of two public days, and what else
        is read of a cohort (ids that repeat, bounds, held-out units) looks at its own records
        only. One record that comes or goes changes one cohort at most.

    Args:
        raw: What `read_source` returned.
        spec: The cohort; all records are kept where it has no window.
    """
    if spec.window is None:
        return raw
    day = date_of(spec.window.column)
    return raw.filter((day >= spec.window.start) & (day < spec.window.end))


def date_of(column: str) -> pl.Expr:
    """The date that a text begins with, as it stands: no time zone is applied; null without one."""
    start = pl.col(column).str.strip_chars().str.slice(0, _DATE_CHARACTERS)
    return start.str.to_date("%Y-%m-%d", strict=False)
