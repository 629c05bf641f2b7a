"""New files and new time windows become cohorts: registered, shown as partitions, released once.

A tick registers what the calendar or the folder says is complete, adds the partition that it is to
the dataset's assets, and asks for the first run of cohorts that were never charged. Nothing has to
be loaded again. Where the public base they build on was never made, it is asked for first, once for
all of them.

**Privacy** Which cohorts exist is read from the calendar or from names of files, never from
records; an empty window is released like any other. Each cohort pays from an account of its own,
and since every record is in one of them they compose in parallel.
"""

import hashlib
import json
from collections.abc import Sequence

import dagster as dg

from dpsynth_assets.datasets import CohortSpec, PrivateDatasetSpec, usable_cohorts
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.keys import public_group
from dpsynth_assets.orchestration.assets.launch import run_tags
from dpsynth_assets.orchestration.assets.partitions import register_partitions
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger
from dpsynth_assets.orchestration.schedules.refusals import first_run_refusal
from dpsynth_assets.privacy.ledger import Ledger

FIRST_RUNS_A_TICK = 5
"""A dataset that begins with years of windows is worked off little by little."""

SECONDS_BETWEEN_TICKS = 300


def new_cohort_definitions(
    spec: PrivateDatasetSpec, assets: Sequence[dg.AssetKey]
) -> dg.Definitions:
    """The sensor of one partitioned dataset.

    Args:
        spec: The declaration, with `cohorts`.
        assets: Keys of the dataset's assets.

    Raises:
        ValueError: The declaration is not partitioned.
    """
    if spec.cohorts is None:
        raise ValueError(f"Expected a dataset that declares cohorts, got {spec.name!r}.")
    base = dg.AssetSelection.groups(public_group(spec.public_data))

    @dg.sensor(
        name=f"{spec.name}_new_cohorts",
        minimum_interval_seconds=SECONDS_BETWEEN_TICKS,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=(
            f"Registers new cohorts of {spec.name} and asks for the first run of each, and before "
            "that of the public base; every cohort pays from its own budget."
        ),
        target=dg.AssetSelection.assets(*assets) | base,
    )
    @public_section(f"New cohorts of {spec.name}")
    def new_cohorts(context: dg.SensorEvaluationContext, ledger: PrivacyLedger) -> dg.SensorResult:
        register_partitions(context.instance, spec)
        asked = set(json.loads(context.cursor or "[]"))
        book = ledger.open()
        candidates = _never_charged(spec, asked, book)
        base = _public_behind(context, assets) if candidates else []
        if missing := [key for key in base if _never_made(context.instance, key)]:
            return _base_first(context, spec, base, missing)
        chosen, refused = _admitted(candidates, book)
        requests = [first_run(cohort, assets) for cohort in chosen]
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else _nothing_to_do(spec.name, refused),
            cursor=json.dumps(sorted(asked.union(cohort.part.key for cohort in chosen))),
        )

    return dg.Definitions(sensors=[new_cohorts])


def first_run(cohort: CohortSpec, assets: Sequence[dg.AssetKey]) -> dg.RunRequest:
    """Asks for everything of one cohort.

    Args:
        cohort: The cohort; its partition is there.
        assets: Keys of all assets of its dataset.
    """
    plan = plan_dataset(cohort)
    return dg.RunRequest(
        run_key=f"{cohort.name}:first",
        asset_selection=list(assets),
        partition_key=cohort.part.key,
        tags=run_tags(cohort.name, "", plan, {each.asset for each in plan.releases}),
    )


def _never_charged(spec: PrivateDatasetSpec, asked: set[str], book: Ledger) -> list[CohortSpec]:
    """The cohorts that nobody asked for and that hold no charge, in order."""
    cohorts = (CohortSpec.of(spec, key) for key in usable_cohorts(spec) if key not in asked)
    return [cohort for cohort in cohorts if book.account(cohort.account) is None]


def _admitted(candidates: Sequence[CohortSpec], book: Ledger) -> tuple[list[CohortSpec], list[str]]:
    """As many cohorts as a tick asks for, and why others may not be released."""
    chosen: list[CohortSpec] = []
    refused: list[str] = []
    for cohort in candidates:
        if len(chosen) == FIRST_RUNS_A_TICK:
            break
        refusal = first_run_refusal(cohort, plan_dataset(cohort), book)
        if refusal is None:
            chosen.append(cohort)
        else:
            refused.append(refusal)
    return chosen, refused


def _public_behind(
    context: dg.SensorEvaluationContext, keys: Sequence[dg.AssetKey]
) -> list[dg.AssetKey]:
    """Public assets that the cohorts build on; in order."""
    if context.repository_def is None:
        return []
    graph = context.repository_def.asset_graph
    own = set(keys)
    behind = {above for key in keys for above in graph.get_ancestor_asset_keys(key)} - own
    return [key for key in sorted(behind) if graph.get(key).is_materializable]


def _never_made(instance: dg.DagsterInstance, key: dg.AssetKey) -> bool:
    return instance.get_latest_materialization_event(key) is None


def _base_first(
    context: dg.SensorEvaluationContext,
    spec: PrivateDatasetSpec,
    base: Sequence[dg.AssetKey],
    missing: Sequence[dg.AssetKey],
) -> dg.SensorResult:
    """Asks for the public base, once for each set of assets it is to hold; cohorts wait for it."""
    names = ",".join(key.to_user_string() for key in base)
    run_key = f"{spec.public_data}:base:{hashlib.sha256(names.encode()).hexdigest()[:16]}"
    context.log.info(
        "%d assets of the public base %s are made first, in the run %s; nothing is charged. If "
        "that run failed, materialise the group %s by hand.",
        len(missing),
        spec.public_data,
        run_key,
        public_group(spec.public_data),
    )
    request = dg.RunRequest(run_key=run_key, asset_selection=list(missing))
    return dg.SensorResult(run_requests=[request], cursor=context.cursor)


def _nothing_to_do(dataset: str, refused: Sequence[str]) -> str:
    if refused:
        return f"{len(refused)} cohorts are refused: {refused[0]}"
    return f"No new cohort of {dataset}: the next window has not ended, or there is no new file."
