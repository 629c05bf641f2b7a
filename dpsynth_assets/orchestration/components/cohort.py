"""Definitions of one private dataset in the asset graph: assets, checks, schedules."""

import dagster as dg

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.attacks import attack_definitions
from dpsynth_assets.orchestration.assets.audit import audit_definitions
from dpsynth_assets.orchestration.assets.automation import with_followed_checks
from dpsynth_assets.orchestration.assets.corpora import method_definitions
from dpsynth_assets.orchestration.assets.dataset import dataset_definitions
from dpsynth_assets.orchestration.assets.evaluation import evaluation_definitions
from dpsynth_assets.orchestration.assets.evolution_plots import evolution_plot_definitions
from dpsynth_assets.orchestration.assets.prediction_plots import prediction_plot_definitions
from dpsynth_assets.orchestration.assets.secrets import secret_definitions
from dpsynth_assets.orchestration.components.partitioned import partitioned_definitions
from dpsynth_assets.orchestration.schedules import (
    new_cohort_definitions,
    newest_cohort_definitions,
    regeneration_definitions,
)


def declared_definitions(spec: PrivateDatasetSpec) -> dg.Definitions:
    """Everything a dataset file declares; with a partition for each cohort of a partitioned source.

    Raises:
        ValueError: If a method or a setting is unknown.
    """
    if spec.cohorts is None:
        return cohort_definitions(spec)
    assets = partitioned_definitions(spec, cohort_assets)
    keys = [
        key
        for part in assets.assets or ()
        if isinstance(part, dg.AssetsDefinition)
        for key in part.keys
    ]
    return dg.Definitions.merge(
        assets,
        new_cohort_definitions(spec, keys),
        newest_cohort_definitions(spec, plan_dataset(spec), keys),
    )


def cohort_definitions(spec: PrivateDatasetSpec) -> dg.Definitions:
    """Assets, checks and schedule of one dataset, from records to statement.

    Raises:
        ValueError: If a method or a setting is unknown.
    """
    return dg.Definitions.merge(
        cohort_assets(spec), regeneration_definitions(spec, plan_dataset(spec))
    )


def cohort_assets(spec: PrivateDatasetSpec) -> dg.Definitions:
    """Assets and checks of one dataset, or of one cohort of it.

    Raises:
        ValueError: If a method or a setting is unknown.
    """
    plan = plan_dataset(spec)
    merged = dg.Definitions.merge(
        dataset_definitions(spec, plan),
        secret_definitions(spec),
        *(method_definitions(spec, plan, planned) for planned in plan.methods),
        evaluation_definitions(spec, plan),
        *([prediction_plot_definitions(spec, plan)] if plan.predictions else []),
        evolution_plot_definitions(spec, plan),
        audit_definitions(spec, plan),
        attack_definitions(spec, plan),
    )
    return with_followed_checks(merged)
