"""The schedule of a dataset that declares cohorts: the newest complete one, or why not.

A tick registers what is complete and asks for the newest cohort alone: for its first run where it
was never charged, else for a new release of its corpora while its budget allows. Older cohorts stay
as they are; the sensor for new cohorts, a backfill or a person asks for those.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dpsynth_assets.datasets import CohortSpec, PrivateDatasetSpec, usable_cohorts
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.keys import AUDIT, EVALUATION
from dpsynth_assets.orchestration.assets.launch import DEFAULT_RELEASE, run_tags
from dpsynth_assets.orchestration.assets.partitions import register_partitions
from dpsynth_assets.orchestration.resources.ledger import PrivacyLedger
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.orchestration.schedules.new_cohorts import first_run
from dpsynth_assets.orchestration.schedules.refusals import first_run_refusal, refusal_of
from dpsynth_assets.orchestration.schedules.regeneration import (
    declared_schedule,
    name_of_tick,
    open_release,
    rounds_in_words,
    row_settings,
    what_decides,
)
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.tags import ROUNDS


def newest_cohort_definitions(
    spec: PrivateDatasetSpec, plan: DatasetPlan, assets: Sequence[dg.AssetKey]
) -> dg.Definitions:
    """Job and schedule of a partitioned dataset, if its file asks for them.

    Args:
        spec: The declaration, with `cohorts`.
        plan: Its plan, which is that of each cohort but for names.
        assets: Keys of the dataset's assets.

    Raises:
        ValueError: The schedule asks for rows, and none of its methods takes a number of rows.
    """
    if spec.schedule is None:
        return dg.Definitions()
    declared = spec.schedule
    folders = [
        p.folder for p in plan.methods if not declared.methods or p.folder in declared.methods
    ]
    settings = row_settings(spec, _chosen(plan, folders), declared)
    job = dg.define_asset_job(
        f"regenerate_{spec.name}",
        selection=dg.AssetSelection.assets(*assets),
        description=f"The newest complete cohort of {spec.name}: it pays from its own budget.",
        tags={"dagster/max_retries": "0"},
    )

    @declared_schedule(
        spec,
        declared,
        job,
        f"Materialises the newest complete cohort of {spec.name}; where that was released "
        "before, regenerates it while its budget allows, and otherwise says why not.",
    )
    @public_section(f"The schedule of {spec.name}")
    def regenerate(
        context: dg.ScheduleEvaluationContext, ledger: PrivacyLedger
    ) -> dg.RunRequest | dg.SkipReason:
        register_partitions(context.instance, spec)
        if not (keys := usable_cohorts(spec)):
            return dg.SkipReason(f"No cohort of {spec.name} is complete yet.")
        newest = _Newest(CohortSpec.of(spec, keys[-1]), folders, ledger.open())
        return newest.asked(name_of_tick(context), assets, settings)

    return dg.Definitions(jobs=[job], schedules=[regenerate])


def _chosen(plan: DatasetPlan, folders: Sequence[str]) -> list[PlannedMethod]:
    return [planned for planned in plan.methods if planned.folder in folders]


@dataclass(frozen=True)
class _Newest:
    """The newest cohort at one tick.

    Attributes:
        cohort: The cohort.
        folders: Methods that the schedule regenerates.
        book: What was charged so far.
    """

    cohort: CohortSpec
    folders: Sequence[str]
    book: Ledger

    def asked(
        self, tick: str, assets: Sequence[dg.AssetKey], settings: dict[str, Any]
    ) -> dg.RunRequest | dg.SkipReason:
        """What the tick asks for: an open release, the first, or a new one; or why nothing."""
        cohort, plan = self.cohort, plan_dataset(self.cohort)
        chosen = _chosen(plan, self.folders)
        left = rounds_in_words(self.book, cohort, plan, self.folders)
        release = open_release(self.book, cohort.account, {each.asset for each in plan.releases})
        first = release == DEFAULT_RELEASE or self.book.account(cohort.account) is None
        refusal = None
        if release is None and first:
            refusal = first_run_refusal(cohort, plan, self.book)
        elif release is None:
            refusal = refusal_of(cohort, plan, chosen, self.book, tick)
        if refusal is not None:
            return dg.SkipReason(f"{cohort.name}: {refusal} Rounds: {left}. {what_decides(cohort)}")
        if first:
            request = first_run(cohort, assets)
            return request.with_replaced_attrs(
                run_key=f"{request.run_key}:{tick}" if release else request.run_key,
                tags={**request.tags, ROUNDS: left},
                run_config=settings,
            )
        paid = {f"{cohort.name}/{p.folder}/{stage}" for p in chosen for stage in p.plan.charges}
        regenerated = {*self.folders, EVALUATION, AUDIT}
        return dg.RunRequest(
            run_key=f"{cohort.name}:{tick}",
            asset_selection=[key for key in assets if key.path[1] in regenerated],
            partition_key=cohort.part.key,
            tags={**run_tags(cohort.name, release or tick, plan, paid), ROUNDS: left},
            run_config=settings,
        )
