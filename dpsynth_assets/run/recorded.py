"""A line of the ledger for what leaves by a command: post-processing, charged nothing."""

from collections.abc import Mapping
from typing import Any

from dpsynth_assets.methods.dataset_plan import DatasetPlan
from dpsynth_assets.privacy.events import POST_PROCESSING
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Ledger, ReleaseRequest
from dpsynth_assets.privacy.release import Cost
from dpsynth_assets.releases.once import Drawn, StoredRelease, release_once
from dpsynth_assets.releases.store import StoredReleases

CODE_VERSION = "1"


def recorded(
    plan: DatasetPlan,
    ledger: Ledger,
    store: StoredReleases,
    *,
    asset: str,
    mechanism: str,
    parameters: Mapping[str, Any],
    release: str,
    facts: Mapping[str, Any],
) -> StoredRelease:
    """Writes the line, or finds it written.

    Args:
        plan: Of the cohort; the line is in it for nothing.
        ledger: Gets the line.
        store: Keeps the facts under it.
        asset: What leaves.
        mechanism: What makes it, e.g. `export`.
        parameters: What it was made from, and what it is known by.
        release: Name of the release.
        facts: What is kept of it.
    """
    spec = plan.spec
    request = ReleaseRequest(
        cohort=spec.account,
        dataset=spec.dataset,
        asset=asset,
        mechanism=mechanism,
        guarantee=GuaranteeType.DP,
        event=POST_PROCESSING,
        parameters=parameters,
        code_version=CODE_VERSION,
        data_version=spec.source.version,
        release=release,
    )
    cost = Cost(guarantee=GuaranteeType.DP, event=POST_PROCESSING)
    return release_once(
        ledger=ledger,
        store=store,
        request=request,
        terms=plan.budget,
        plan=plan.releases,
        draw=lambda _: Drawn(facts=facts, rows=None, cost=cost),
    )
