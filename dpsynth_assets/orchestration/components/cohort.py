"""Definitions of one private dataset in the asset graph: assets, checks, schedules."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import dagster as dg

from dpsynth_assets.datasets import CohortSpec, PrivateDatasetSpec, complete_cohort
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.attacks import attack_definitions
from dpsynth_assets.orchestration.assets.audit import audit_definitions
from dpsynth_assets.orchestration.assets.automation import with_followed_checks
from dpsynth_assets.orchestration.assets.corpora import method_definitions
from dpsynth_assets.orchestration.assets.dataset import dataset_definitions
from dpsynth_assets.orchestration.assets.evaluation import evaluation_definitions
from dpsynth_assets.orchestration.assets.keys import partitions_of, show_partitions
from dpsynth_assets.orchestration.dagster_internals import (
    decorated_function,
    replaced_op,
    replaced_record,
    with_attributes,
)
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.orchestration.schedules import new_cohort_definitions, schedule_definitions


def declared_definitions(spec: PrivateDatasetSpec) -> dg.Definitions:
    """Everything a dataset file declares; with a partition for each cohort of a partitioned source.

    Raises:
        ValueError: If a method or a setting is unknown.
    """
    by_cohort = spec.cohorts is not None
    assets = partitioned_definitions(spec, cohort_assets) if by_cohort else cohort_assets(spec)
    keys = [key for part in _definitions(assets.assets) for key in part.keys]
    return dg.Definitions.merge(
        assets,
        *([new_cohort_definitions(spec, keys)] if by_cohort else []),
        schedule_definitions(spec, plan_dataset(spec), keys),
    )


def cohort_assets(spec: PrivateDatasetSpec) -> dg.Definitions:
    """Assets and checks of one dataset, or of one cohort of it.

    Raises:
        ValueError: If a method or a setting is unknown.
    """
    plan = plan_dataset(spec)
    merged = dg.Definitions.merge(
        dataset_definitions(spec, plan),
        *(method_definitions(spec, plan, planned) for planned in plan.methods),
        evaluation_definitions(spec, plan),
        audit_definitions(spec, plan),
        attack_definitions(spec, plan),
    )
    return with_followed_checks(merged)


# One set of assets for all cohorts of a dataset: a step does what its partition's cohort declares.
#
# The assets, checks and prices that the graph shows are built once, from the dataset's own file.
# What a step does is built when it runs, from the declaration of the cohort that its partition
# names: the same code, under the same names of account, release, file and store, as if the cohort
# were a dataset of its own.


Build = Callable[[PrivateDatasetSpec], dg.Definitions]
"""Builds assets and checks of one cohort."""


def partitioned_definitions(spec: PrivateDatasetSpec, build: Build) -> dg.Definitions:
    """The assets and checks of a dataset that declares cohorts, with a partition for each cohort.

    Args:
        spec: The declaration, with `cohorts`.
        build: Builds assets and checks, of the dataset for the graph and of a cohort for a step.
    """
    built = build(spec)
    return dg.Definitions(
        assets=[_partitioned(each, spec, build) for each in _definitions(built.assets)],
        asset_checks=[_partitioned(each, spec, build) for each in _definitions(built.asset_checks)],
    )


def _definitions(parts: Any) -> list[dg.AssetsDefinition]:
    return [each for each in parts or () if isinstance(each, dg.AssetsDefinition)]


def _partitioned(
    part: dg.AssetsDefinition, spec: PrivateDatasetSpec, build: Build
) -> dg.AssetsDefinition:
    """The same asset, or checks, with partitions and a step that looks its cohort up."""
    partitions = partitions_of(spec.name)
    checks = part.get_attributes_dict()["check_specs_by_output_name"]
    body = _step(decorated_function(part.op), spec, build, part.op.name)
    return with_attributes(
        part,
        node_def=replaced_op(part.op, body=body),
        specs=[each.replace_attributes(partitions_def=partitions) for each in part.specs],
        check_specs_by_output_name={
            output: replaced_record(each, partitions_def=partitions)
            for output, each in checks.items()
        },
    )


def _step(
    shown: Callable[..., Any], spec: PrivateDatasetSpec, build: Build, op: str
) -> Callable[..., Any]:
    """A function with the signature of the dataset's own that runs the cohort's.

    Dagster reads from a signature what to pass, so it stays; a context is put before it.

    Args:
        shown: The function of the dataset's own asset or checks.
        spec: The dataset.
        build: Builds the cohort.
        op: Name of the op in the dataset's own definitions.
    """
    own = list(inspect.signature(shown).parameters.values())
    takes_context = bool(own) and own[0].name == "context"
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD)

    @functools.wraps(shown)
    def step(context: Any, *arguments: Any, **named: Any) -> Any:
        with public_section(spec.name):  # The calendar, names of files, declarations.
            cohort = _cohort(context, spec)
            body = _body_of(build(cohort), f"{cohort.name}{op.removeprefix(spec.name)}")
        return body(*([context] if takes_context else []), *arguments, **named)

    step.__signature__ = inspect.Signature(own if takes_context else [context, *own])  # type: ignore[attr-defined]
    return step


def _cohort(context: Any, spec: PrivateDatasetSpec) -> CohortSpec:
    """The cohort that the step's partition names.

    Raises:
        ValueError: The run names none, or more than one, or one that is not complete.
    """
    keys = list(context.partition_keys) if context.has_partition_key else []
    if len(keys) != 1:
        raise ValueError(
            f"expected a run for one partition, got one for {len(keys) or 'none'}. Launch a "
            "backfill with a run for each partition."
        )
    cohort = complete_cohort(spec, keys[0])
    show_partitions(context.instance, spec.name, keys)
    return cohort


def _body_of(built: dg.Definitions, wanted: str) -> Callable[..., Any]:
    """The function of the cohort's asset or check whose op has this name."""
    for part in (*_definitions(built.assets), *_definitions(built.asset_checks)):
        if part.op.name == wanted:
            return decorated_function(part.op)
    raise ValueError(f"expected a step {wanted}, got none.")
