"""New files and new time windows become cohorts: registered first, released once they are loaded.

A tick registers what the calendar or the folder says is complete, and asks for the first run of
cohorts that the loaded definitions hold and that were never charged. Definitions load from the
registry, so a cohort that a tick registers is asked for by a tick after the next reload.

**Privacy** Which cohorts exist is read from the calendar or from names of files, never from
records; an empty window is released like any other. Each cohort pays from an account of its own,
and since every record is in one of them they compose in parallel.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from dpsynth_assets.datasets import PrivateDatasetSpec, known_cohorts, register_complete
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.resources.ledger import PrivacyLedger
from dpsynth_assets.schedules.refusals import first_run_refusal

FIRST_RUNS_A_TICK = 5
"""A dataset that begins with years of windows is worked off little by little."""

SECONDS_BETWEEN_TICKS = 300


def new_cohort_definitions(
    spec: PrivateDatasetSpec, cohorts: Mapping[str, tuple[PrivateDatasetSpec, dg.Definitions]]
) -> dg.Definitions:
    """The sensor of one parted dataset.

    Args:
        spec: The declaration, with `cohorts`.
        cohorts: Its known cohorts by key, each with its definitions.

    Raises:
        ValueError: The declaration is not parted.
    """
    rule = spec.cohorts
    if rule is None:
        raise ValueError(f"Expected a dataset that declares cohorts, got {spec.name!r}.")
    keys = {key: _asset_keys(definitions) for key, (_, definitions) in cohorts.items()}
    all_keys = [asset_key for own in keys.values() for asset_key in own]
    options: dict[str, Any] = {"target": dg.AssetSelection.assets(*all_keys)} if all_keys else {}

    @dg.sensor(
        name=f"{spec.name}_new_cohorts",
        minimum_interval_seconds=SECONDS_BETWEEN_TICKS,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=(
            f"Registers new cohorts of {spec.name} and asks for the first run of each; every one "
            "pays from its own budget."
        ),
        **options,
    )
    def new_cohorts(context: dg.SensorEvaluationContext, ledger: PrivacyLedger) -> dg.SensorResult:
        register_complete(spec.name, rule, spec.source)
        asked = set(json.loads(context.cursor or "[]"))
        waiting = [key for key in known_cohorts(spec.name) if key not in keys]
        requests, refused = [], []
        book = ledger.open()
        for key in _never_charged(cohorts, asked, book):
            cohort = cohorts[key][0]
            refusal = first_run_refusal(cohort, plan_dataset(cohort), book)
            if refusal is not None:
                refused.append(refusal)
                continue
            requests.append(
                dg.RunRequest(run_key=f"{cohort.name}:first", asset_selection=keys[key])
            )
            asked.add(key)
            if len(requests) == FIRST_RUNS_A_TICK:
                break
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else _nothing_to_do(spec.name, waiting, refused),
            cursor=json.dumps(sorted(asked)),
        )

    return dg.Definitions(sensors=[new_cohorts])


def _asset_keys(definitions: dg.Definitions) -> list[dg.AssetKey]:
    assets = [part for part in definitions.assets or () if isinstance(part, dg.AssetsDefinition)]
    return [key for part in assets for key in part.keys]


def _never_charged(
    cohorts: Mapping[str, tuple[PrivateDatasetSpec, dg.Definitions]], asked: set[str], book: Ledger
) -> list[str]:
    """Keys of the cohorts that nobody asked for and that hold no charge, in order."""
    return [
        key
        for key, (cohort, _) in cohorts.items()
        if key not in asked and not book.spend(cohort.name).dataset
    ]


def _nothing_to_do(dataset: str, waiting: Sequence[str], refused: Sequence[str]) -> str:
    if refused:
        return f"{len(refused)} cohorts are refused: {refused[0]}"
    if waiting:
        shown = ", ".join(f"{dataset}_{key}" for key in waiting[:3])
        more = ", …" if len(waiting) > len(waiting[:3]) else ""
        return (
            f"{len(waiting)} new cohorts are registered ({shown}{more}): reload the code location "
            "to load their assets."
        )
    return f"No new cohort of {dataset}: the next window has not ended, or there is no new file."
