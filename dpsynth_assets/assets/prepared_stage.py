"""The asset of a public stage: made from public and released values, recorded, charged nothing."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg

from dpsynth_assets.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.assets.corpora import method_asset, plain_json
from dpsynth_assets.assets.dataset import ReleaseConfig, release_name
from dpsynth_assets.assets.identity import dataset_key, version_of
from dpsynth_assets.assets.mechanism import Drawn, release_once
from dpsynth_assets.assets.public_inputs import (
    load_public_inputs,
    public_ins,
    public_versions,
    stage_devices,
)
from dpsynth_assets.assets.staged_requests import (
    refuse_if_planned_so,
    release_seed,
    released_stage,
    shown_facts,
    stage_request,
    staged_method,
)
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.metadata import spend_metadata
from dpsynth_assets.methods.planned import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.staged import Stage
from dpsynth_assets.privacy.events import POST_PROCESSING
from dpsynth_assets.privacy.ledger import Reservation
from dpsynth_assets.privacy.release import Cost
from dpsynth_assets.resources.ledger import PrivacyLedger
from dpsynth_assets.resources.models import Models
from dpsynth_assets.resources.private_section import public_section
from dpsynth_assets.resources.progress import Progress
from dpsynth_assets.resources.release_store import ReleaseStore
from dpsynth_assets.tags import GPU_POOL, PRIVACY, RELEASED, gpu_op_tags


def prepared_stage(
    spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedMethod, stage: Stage
) -> dg.AssetsDefinition:
    """The asset of one public stage; it depends on no private asset, which the lineage verifies."""
    method = staged_method(planned)
    name = f"{spec.name}/{planned.folder}/{stage.name}"
    earlier = {s: dg.AssetIn(dataset_key(spec.name, planned.folder, s)) for s in stage.after}
    needed = method.public_inputs(planned.config)

    @dg.asset(
        **method_asset(spec, planned, stage.name),
        ins={**public_ins(spec, needed), **earlier},
        tags={PRIVACY: RELEASED},
        kinds=set(stage.kinds),
        pool=GPU_POOL,
        op_tags=gpu_op_tags(stage_devices(spec, planned)),
        automation_condition=FOLLOWS_RELEASES,
        code_version=version_of(planned.spec, method.code_version, stage.name),
        description=f"{stage.title} Reads nothing private and charges nothing.",
    )
    def public_stage(
        context: dg.AssetExecutionContext,
        config: ReleaseConfig,
        ledger: PrivacyLedger,
        release_store: ReleaseStore,
        models: Models,
        progress: Progress,
        **upstream: Any,
    ) -> dg.Output[dict]:
        refuse_if_planned_so(planned)
        public_values = {key: value for key, value in upstream.items() if key in needed}
        released = {key: released_stage(upstream[key], release_store) for key in earlier}
        book, release = ledger.open(), release_name(context, config)
        report = progress.start(context, name)

        with public_section(name), tempfile.TemporaryDirectory() as scratch:

            def prepare(_: Reservation) -> Drawn:
                inputs = load_public_inputs(
                    public_values,
                    models,
                    plan.terms,
                    spec.engine if method.uses_engine(planned.config) else None,
                    salt=f"{name}/{release}",
                    seed=release_seed(release),
                )
                made = method.prepare_stage(
                    stage.name,
                    planned.plan,
                    planned.config,
                    plan.terms,
                    replace(inputs, released=released),
                    Path(scratch),
                    report,
                )
                facts = {key: plain_json(value) for key, value in made.facts.items()}
                cost = Cost(guarantee=planned.plan.guarantee, event=POST_PROCESSING)
                return Drawn(facts=facts, rows=None, cost=cost, files=made.files)

            stored = release_once(
                ledger=book,
                store=release_store,
                request=stage_request(
                    spec,
                    planned,
                    stage.name,
                    release=release,
                    run_id=context.run_id,
                    inputs={
                        **public_versions(public_values),
                        **{key: value.reservation for key, value in released.items()},
                    },
                    public=True,
                ),
                terms=plan.budget,
                plan=plan.releases,
                draw=prepare,
            )
        return dg.Output(
            {"reservation": stored.reservation.id, "facts": stored.facts},
            metadata={
                **spend_metadata(book, stored.reservation, plan.budget),
                **shown_facts(stored),
            },
        )

    return public_stage
