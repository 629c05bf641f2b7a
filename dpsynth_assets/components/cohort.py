"""Everything one private dataset has in the asset graph."""

import dagster as dg

from dpsynth_assets.assets.attacks import attack_definitions
from dpsynth_assets.assets.audit import audit_definitions
from dpsynth_assets.assets.corpora import corpus_definitions
from dpsynth_assets.assets.dataset import dataset_definitions
from dpsynth_assets.assets.evaluation import evaluation_definitions
from dpsynth_assets.assets.prediction_plots import prediction_plot_definitions
from dpsynth_assets.assets.staged import staged_definitions
from dpsynth_assets.assets.topics import topic_definitions
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.planning import DatasetPlan, PlannedMethod, plan_dataset
from dpsynth_assets.methods.staged import StagedMethod
from dpsynth_assets.schedules import regeneration_definitions


def cohort_definitions(spec: PrivateDatasetSpec) -> dg.Definitions:
    """Assets, checks and schedule of one dataset, from records to statement.

    Raises:
        ValueError: If a method or a setting is unknown.
    """
    plan = plan_dataset(spec)
    return dg.Definitions.merge(
        dataset_definitions(spec, plan),
        topic_definitions(spec, plan),
        *(_method_definitions(spec, plan, planned) for planned in plan.methods),
        evaluation_definitions(spec, plan),
        *([prediction_plot_definitions(spec, plan)] if plan.predictions else []),
        audit_definitions(spec, plan),
        attack_definitions(spec, plan),
        regeneration_definitions(spec, plan),
    )


def _method_definitions(
    spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedMethod
) -> dg.Definitions:
    staged = isinstance(planned.method, StagedMethod)
    return (staged_definitions if staged else corpus_definitions)(spec, plan, planned)
