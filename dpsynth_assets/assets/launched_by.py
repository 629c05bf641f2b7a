"""Who or what launched a run, as far as Dagster recorded it."""

from collections.abc import Mapping

import dagster as dg

from dpsynth_assets.report.audit_trail import NOT_RECORDED
from dpsynth_assets.tags import LAUNCHED_BY

_BY_TAG = (
    (LAUNCHED_BY, "{}"),
    ("user", "{}"),
    ("dagster/schedule_name", "schedule {}"),
    ("dagster/sensor_name", "sensor {}"),
    ("dagster/backfill", "backfill {}"),
    ("dagster/parent_run_id", "run again after {}"),
)
"""Tags that name who launched a run, most telling first; Dagster+ sets `user`."""


def launched_by(tags: Mapping[str, str]) -> str:
    """Names the person, schedule or sensor that asked for a run.

    Args:
        tags: Tags of the run.

    Returns:
        A name, or that the web server, which asks nobody's name, or another program launched it.
    """
    for tag, form in _BY_TAG:
        if tags.get(tag):
            return form.format(tags[tag])
    return f"web UI or API, person {NOT_RECORDED}"


def launchers(instance: dg.DagsterInstance, run_ids: list[str]) -> dict[str, str]:
    """Run -> who launched it, of those of these runs that Dagster still holds."""
    if not run_ids:
        return {}
    runs = instance.get_runs(filters=dg.RunsFilter(run_ids=run_ids))
    return {run.run_id: launched_by(run.tags) for run in runs}
