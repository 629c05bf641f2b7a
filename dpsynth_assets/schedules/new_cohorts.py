"""New files and new time windows become cohorts: registered first, released once they are loaded.

A tick registers what the calendar or the folder says is complete, and asks for the first run of
cohorts that the loaded definitions hold and that were never charged. Definitions load from the
registry, so a cohort that a tick registers is asked for by a tick after the next reload. Where the
public base they build on was never made, it is asked for first, once for all of them.

**Privacy** Which cohorts exist is read from the calendar or from names of files, never from
records; an empty window is released like any other. Each cohort pays from an account of its own,
and since every record is in one of them they compose in parallel.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from dpsynth_assets.assets.groups import public_group
from dpsynth_assets.assets.launch import run_tags
from dpsynth_assets.datasets import PrivateDatasetSpec, known_cohorts, register_complete
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.resources.ledger import PrivacyLedger
from dpsynth_assets.resources.private_section import public_section
from dpsynth_assets.schedules.refusals import first_run_refusal

FIRST_RUNS_A_TICK = 5
"""A dataset that begins with years of windows is worked off little by little."""

SECONDS_BETWEEN_TICKS = 300

Cohorts = Mapping[str, tuple[PrivateDatasetSpec, dg.Definitions]]
"""Known cohorts by key, each with its definitions."""


def new_cohort_definitions(spec: PrivateDatasetSpec, cohorts: Cohorts) -> dg.Definitions:
    """The sensor of one partitioned dataset.

    Args:
        spec: The declaration, with `cohorts`.
        cohorts: Its known cohorts.

    Raises:
        ValueError: The declaration is not partitioned.
    """
    rule = spec.cohorts
    if rule is None:
        raise ValueError(f"Expected a dataset that declares cohorts, got {spec.name!r}.")
    keys = {key: _asset_keys(definitions) for key, (_, definitions) in cohorts.items()}
    target = _target(spec, [asset_key for own in keys.values() for asset_key in own])

    @dg.sensor(
        name=f"{spec.name}_new_cohorts",
        minimum_interval_seconds=SECONDS_BETWEEN_TICKS,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=(
            f"Registers new cohorts of {spec.name} and asks for the first run of each, and before "
            "that of the public base; every cohort pays from its own budget."
        ),
        **target,
    )
    @public_section(f"New cohorts of {spec.name}")
    def new_cohorts(context: dg.SensorEvaluationContext, ledger: PrivacyLedger) -> dg.SensorResult:
        register_complete(spec.name, rule, spec.source)
        asked = set(json.loads(context.cursor or "[]"))
        waiting = [key for key in known_cohorts(spec.name) if key not in keys]
        if waiting:
            context.log.info(_to_load(spec.name, waiting))
        book = ledger.open()
        candidates = _never_charged(cohorts, asked, book)
        base = _public_behind(context, keys[candidates[0]]) if candidates else []
        if missing := [key for key in base if _never_made(context.instance, key)]:
            return _base_first(context, spec, base, missing)
        chosen, refused = _admitted(cohorts, candidates, book)
        requests = [
            dg.RunRequest(
                run_key=f"{cohorts[key][0].name}:first",
                asset_selection=keys[key],
                tags=_tags(cohorts[key][0]),
            )
            for key in chosen
        ]
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else _nothing_to_do(spec.name, waiting, refused),
            cursor=json.dumps(sorted(asked.union(chosen))),
        )

    return dg.Definitions(sensors=[new_cohorts])


def _tags(cohort: PrivateDatasetSpec) -> dict[str, str]:
    plan = plan_dataset(cohort)
    return run_tags(cohort.name, "", plan, {each.asset for each in plan.releases})


def _asset_keys(definitions: dg.Definitions) -> list[dg.AssetKey]:
    assets = [part for part in definitions.assets or () if isinstance(part, dg.AssetsDefinition)]
    return [key for part in assets for key in part.keys]


def _target(spec: PrivateDatasetSpec, keys: Sequence[dg.AssetKey]) -> dict[str, Any]:
    """Selects what the sensor may run: cohorts and their public base; nothing without a cohort."""
    if not keys:
        return {}
    base = dg.AssetSelection.groups(public_group(spec.public_data))
    return {"target": dg.AssetSelection.assets(*keys) | base}


def _never_charged(cohorts: Cohorts, asked: set[str], book: Ledger) -> list[str]:
    """Keys of the cohorts that nobody asked for and that hold no charge, in order."""
    return [
        key
        for key, (cohort, _) in cohorts.items()
        if key not in asked and not book.spend(cohort.name).dataset
    ]


def _admitted(
    cohorts: Cohorts, candidates: Sequence[str], book: Ledger
) -> tuple[list[str], list[str]]:
    """Keys of as many cohorts as a tick asks for, and why others may not be released."""
    chosen: list[str] = []
    refused: list[str] = []
    for key in candidates:
        if len(chosen) == FIRST_RUNS_A_TICK:
            break
        cohort = cohorts[key][0]
        refusal = first_run_refusal(cohort, plan_dataset(cohort), book)
        if refusal is None:
            chosen.append(key)
        else:
            refused.append(refusal)
    return chosen, refused


def _public_behind(
    context: dg.SensorEvaluationContext, keys: Sequence[dg.AssetKey]
) -> list[dg.AssetKey]:
    """Public assets that one cohort builds on, as all of its dataset do; in order."""
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


def _to_load(dataset: str, waiting: Sequence[str]) -> str:
    shown = ", ".join(f"{dataset}_{key}" for key in waiting[:3])
    more = ", …" if len(waiting) > len(waiting[:3]) else ""
    return (
        f"{len(waiting)} new cohorts are registered ({shown}{more}): reload the code location "
        "to load their assets (button Reload definitions of the asset graph, or `dpsynth datasets "
        "cohorts --reload http://127.0.0.1:3000`)."
    )


def _nothing_to_do(dataset: str, waiting: Sequence[str], refused: Sequence[str]) -> str:
    if refused:
        return f"{len(refused)} cohorts are refused: {refused[0]}"
    if waiting:
        return _to_load(dataset, waiting)
    return f"No new cohort of {dataset}: the next window has not ended, or there is no new file."
