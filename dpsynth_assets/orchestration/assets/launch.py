"""Options of a person who launches a release, and the tags that identify its run."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import dagster as dg
from pydantic import Field

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.dataset_plan import (
    DatasetPlan,
    Planned,
    stage_request,
)
from dpsynth_assets.privacy.accounting import epsilon_of_fixed
from dpsynth_assets.privacy.directed_rounding import epsilon_up
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import ComposedEvent, Event, is_post_processing
from dpsynth_assets.privacy.ledger import BudgetTerms, Ledger, ReleaseRequest
from dpsynth_assets.privacy.ledger.charges import is_secret
from dpsynth_assets.privacy.ledger.schema import ZCDP
from dpsynth_assets.run.runner import name_problem
from dpsynth_assets.tags import (
    COHORT,
    DEFAULT_RELEASE,
    EPSILON,
    NAMED_RELEASE,
    PLANNED_EPSILON,
    RELEASE,
)


class ReleaseConfig(dg.Config):
    """What a person may choose at launch; ε and δ are fixed by the dataset file."""

    release: str = Field(
        default="",
        description=(
            "Name of the release. The same name under the same dataset file is never charged "
            "twice. A new name is a new draw and is charged. The same name is charged again after "
            "a change of ε, labels, public counts, source version or a setting that the release "
            "depends on: the run's log names the change. If empty: the run's tag "
            '`dpsynth/release`, or "1".'
        ),
    )


class CorpusConfig(ReleaseConfig):
    """What a person may choose where rows are free, regardless of their number."""

    rows: int = Field(
        default=0,
        ge=0,
        le=100_000_000,
        description=(
            "Rows to write; 0: the number in the dataset file. More rows are never charged again."
        ),
    )


def release_name(context: dg.AssetExecutionContext, config: ReleaseConfig) -> str:
    """The release a run asks for: Launchpad, then run tag, then the first release.

    Raises:
        dg.Failure: The name cannot be told from another one by looking at it.
    """
    name = config.release or context.run.tags.get(RELEASE, "") or DEFAULT_RELEASE
    if (problem := name_problem(name)) is not None:
        raise dg.Failure(description=problem, allow_retries=False)
    return name


def run_tags(
    cohort: str, release: str, plan: DatasetPlan, assets: Collection[str]
) -> dict[str, str]:
    """Tags of a run that is about to be launched: its cohort, its release, and ε that is planned.

    Args:
        cohort: Name of the cohort.
        release: Name of the release; empty for the first one.
        plan: Prices of the cohort.
        assets: Keys of the assets that the run is to pay for.
    """
    events = [each.event for each in plan.releases if each.asset in assets]
    return {
        COHORT: cohort,
        RELEASE: release or DEFAULT_RELEASE,
        EPSILON: "0",
        PLANNED_EPSILON: composed_epsilon(events, plan.budget),
    }


def composed_epsilon(events: Iterable[Event | None], terms: BudgetTerms) -> str:
    """ε of several releases composed by themselves, as a tag shows it: rounded up, "0" for none.

    **Privacy** Of public prices alone. What they add to a cohort's total is less, and in the
    ledger.
    """
    paid = [
        event
        for event in events
        if event is not None and not is_post_processing(event) and not is_secret(event)
    ]
    return epsilon_up(epsilon_of_fixed(paid, terms.delta, terms.accountant)) if paid else "0"


def _epsilon_of_tag(text: str) -> float:
    """Reads what a tag says; -1 where it is no ε, as anyone may have written the tag."""
    try:
        value = float(text)
    except ValueError:
        return -1.0
    return value if 0 <= value < math.inf else -1.0


def tag_run(context: dg.AssetExecutionContext, cohort: str, release: str, epsilon: str) -> None:
    """Tags the run of a step, so that it is found by cohort and release.

    The tag `dpsynth/release` chooses the release of every step of a run, so it is set only where it
    says what they would do anyway; a name of one step alone stands in a tag that decides nothing.

    Args:
        context: Of the step.
        cohort: Its cohort.
        release: Name of its release.
        epsilon: ε of what the run was charged for the cohort by now, from `composed_epsilon`.
    """
    run = context.instance.get_run_by_id(context.run_id)
    known = dict(run.tags) if run is not None else {}
    cohorts = {cohort, *filter(None, known.get(COHORT, "").split(", "))}
    everywhere = known.get(RELEASE) or DEFAULT_RELEASE
    wanted = {
        COHORT: ", ".join(sorted(cohorts)),
        (RELEASE if release == everywhere else NAMED_RELEASE): release,
        EPSILON: max(known.get(EPSILON, "0"), epsilon, key=_epsilon_of_tag),
    }
    if new := {name: value for name, value in wanted.items() if known.get(name) != value}:
        context.instance.add_run_tags(context.run_id, new)


# Asks whether the ledger would admit a whole round of releases, before a run is started.
#
# What it says is for people: the ledger asks again, under its lock, before anything private is
# read.


def refusal_of(
    spec: PrivateDatasetSpec,
    plan: DatasetPlan,
    chosen: Sequence[Planned],
    ledger: Ledger,
    release: str,
    assets: Collection[str] | None = None,
) -> str | None:
    """Gives the reason why the chosen parts may not be released; None if all may.

    The whole round is asked for at once: two releases that fit one by one may not fit together.

    Args:
        spec: The cohort.
        plan: Prices of its releases.
        chosen: Methods and shared histograms.
        ledger: What was charged so far.
        release: Name of the release.
        assets: Keys of those of their assets that would be charged; None: all.
    """
    for planned in chosen:
        if planned.plan.refusal is not None:
            return f"{planned.folder}: {planned.plan.refusal}"
    requests = [
        (stage_request(spec, planned, stage, release=release), stage.reads)
        for planned in chosen
        for stage in planned.plan.stages
        if stage.mechanism is not None
    ]
    asked = [each for each in requests if assets is None or each[0].asset in assets]
    try:
        for request in _joint_requests(spec, [each for each, _ in asked]):
            admission = ledger.preview(request, plan.budget, plan.releases)
            if not admission.admitted:
                # The identity of what is read is known once a run comes to it.
                edited = [
                    ledger.edited_in_words(each, unknown={"inputs", *reads})
                    for each, reads in asked
                ]
                return " ".join(filter(None, [admission.refusal, *edited]))
    except PrivacyError as refusal:
        return str(refusal)
    return None


def _joint_requests(
    spec: PrivateDatasetSpec, requests: list[ReleaseRequest]
) -> list[ReleaseRequest]:
    """Builds the request that stands for the whole round when the ledger is asked.

    A fixed plan is charged by whole rounds, so each request already stands for all. An adaptive
    budget adds up, so the round is asked for as one composed release.
    """
    events = [request.event for request in requests if request.event is not None]
    if spec.budget.accountant != ZCDP or not events:
        return requests
    paid = [request for request in requests if request.event is not None]
    names = ", ".join(request.asset for request in paid)
    ex_post = [request for request in requests if request.event is None]
    return [replace(paid[0], asset=names, event=ComposedEvent(events=tuple(events))), *ex_post]
