"""Definitions of one private dataset in the asset graph: assets, checks, schedules."""

import dagster as dg

from dpsynth_assets.assets.attacks import attack_definitions
from dpsynth_assets.assets.audit import audit_definitions
from dpsynth_assets.assets.corpora import method_definitions
from dpsynth_assets.assets.dataset import dataset_definitions
from dpsynth_assets.assets.evaluation import evaluation_definitions
from dpsynth_assets.assets.evolution_plots import evolution_plot_definitions
from dpsynth_assets.assets.prediction_plots import prediction_plot_definitions
from dpsynth_assets.assets.secrets import secret_definitions
from dpsynth_assets.datasets import CohortSpec, PrivateDatasetSpec, known_cohorts
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.schedules import new_cohort_definitions, regeneration_definitions


def declared_definitions(spec: PrivateDatasetSpec) -> dg.Definitions:
    """Everything a dataset file declares: its cohort, or all known cohorts of a partitioned source.

    Raises:
        ValueError: If a method or a setting is unknown.
    """
    if spec.cohorts is None:
        return cohort_definitions(spec)
    keys = known_cohorts(spec.name)
    cohorts = {key: CohortSpec.of(spec, key) for key in keys}
    parts = {key: (cohort, cohort_definitions(cohort)) for key, cohort in cohorts.items()}
    return dg.Definitions.merge(
        new_cohort_definitions(spec, parts), *(definitions for _, definitions in parts.values())
    )


def cohort_definitions(spec: PrivateDatasetSpec) -> dg.Definitions:
    """Assets, checks and schedule of one dataset, from records to statement.

    Raises:
        ValueError: If a method or a setting is unknown.
    """
    plan = plan_dataset(spec)
    return dg.Definitions.merge(
        dataset_definitions(spec, plan),
        secret_definitions(spec),
        *(method_definitions(spec, plan, planned) for planned in plan.methods),
        evaluation_definitions(spec, plan),
        *([prediction_plot_definitions(spec, plan)] if plan.predictions else []),
        evolution_plot_definitions(spec, plan),
        audit_definitions(spec, plan),
        attack_definitions(spec, plan),
        regeneration_definitions(spec, plan),
    )
