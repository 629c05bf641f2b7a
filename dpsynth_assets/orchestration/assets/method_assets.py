"""Key, group, owner and code of all assets of one method, or of a shared histogram."""

from typing import Any

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.base import spends
from dpsynth_assets.methods.dataset_plan import PlannedMethod, PlannedShared
from dpsynth_assets.orchestration.assets.groups import level_group, method_group
from dpsynth_assets.orchestration.assets.keys import dataset_key
from dpsynth_assets.orchestration.metadata import code_of, code_references
from dpsynth_assets.privacy.directed_rounding import epsilon_up
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.tags import RELEASED


def part_asset(
    spec: PrivateDatasetSpec, planned: PlannedMethod | PlannedShared, artifact: str
) -> dict[str, Any]:
    """Key, group, owners and code of one asset."""
    return {
        "key": dataset_key(spec.name, planned.folder, artifact),
        "group_name": level_group(spec.name, RELEASED)
        if isinstance(planned, PlannedShared)
        else method_group(spec.name, planned),
        "owners": spec.owners,
        "metadata": code_references(code_of(planned.method)),
    }


def named(planned: PlannedMethod) -> str:
    """Title of a method and its paper, linked."""
    paper = planned.method.paper
    if planned.method.arxiv:
        paper = f"[{paper}](https://arxiv.org/abs/{planned.method.arxiv})"
    return f"{planned.method.title} ({paper})"


def described(planned: PlannedMethod) -> str:
    """Title, paper and price of a method, as the web UI shows them."""
    plan, kind = planned.plan, planned.method
    method = f"{named(planned)}."
    if plan.refusal is not None:
        return f"{method} Refuses: {plan.refusal}"
    if plan.epsilon is not None and spends(kind):
        cost = epsilon_up(plan.epsilon)
        spend = f"Drawing it charges ε = {cost}, counted alone; drawn once, it is kept."
    elif not spends(kind):
        spend = "Charges nothing itself: it builds on other releases."
    elif plan.guarantee is GuaranteeType.SECRET:
        spend = "Charges the secrets' bound and no ε: it protects declared secrets, no record."
    else:
        spend = "Charges no DP budget: its guarantee is ex-post only."
    return f"{method} {spend}"
