"""Every audit there is, found by name and by the event type that a release rests on."""

from collections.abc import Callable, Iterable, Sequence

from dpsynth_assets.attacks.audits import (
    accountants,
    difference_draws,
    entropy,
    gradients,
    histograms,
    logit_slack,
    medians,
    probabilities,
    promises,
    records_sharing_passes,
    replaced_records,
    reuse,
    rows,
    secrets,
    shared_pass_rounding,
    statements,
    thresholds,
    token_draws,
    vectors,
    votes,
)
from dpsynth_assets.attacks.audits.audit import (
    EVERY_RELEASE,
    Audit,
    AuditResult,
    Bug,
    event_types,
)
from dpsynth_assets.privacy.events import Event

AUDITS: tuple[Audit, ...] = (
    *histograms.AUDITS,
    *token_draws.AUDITS,
    *difference_draws.AUDITS,
    *shared_pass_rounding.AUDITS,
    *logit_slack.AUDITS,
    *medians.AUDITS,
    *thresholds.AUDITS,
    *vectors.AUDITS,
    *votes.AUDITS,
    *gradients.AUDITS,
    *records_sharing_passes.AUDITS,
    *probabilities.AUDITS,
    *secrets.AUDITS,
    *promises.AUDITS,
    *replaced_records.AUDITS,
    *accountants.AUDITS,
    *statements.AUDITS,
    *entropy.AUDITS,
    *reuse.AUDITS,
    *rows.AUDITS,
)


def find_audit(name: str) -> Audit:
    """Returns the audit of this name.

    Raises:
        ValueError: There is none; the message lists the names.
    """
    for audit in AUDITS:
        if audit.name == name:
            return audit
    names = ", ".join(audit.name for audit in AUDITS)
    raise ValueError(f"Expected an audit among {names}, got {name!r}.")


def audits_for(events: Iterable[Event | None]) -> tuple[Audit, ...]:
    """Lists the audits that releases rest on.

    Args:
        events: Events of ledger entries or of a plan; None stands for a release without one, as
            ex-post releases are. The audits of what all releases share are always among them.
    """
    wanted = {EVERY_RELEASE, *(kind for event in events for kind in event_types(event))}
    return tuple(audit for audit in AUDITS if wanted & set(audit.events))


def run_audits(
    audits: Sequence[Audit],
    report: Callable[[float, str], None] = lambda _share, _message: None,
    *,
    with_planted_bugs: bool = False,
) -> list[AuditResult]:
    """Runs audits one after another, each on the real code and then on its planted bugs.

    Args:
        audits: Which to run.
        report: Called with the share done in [0, 1] and what runs next.
        with_planted_bugs: Whether also to check that each audit notices its bugs.

    Returns:
        One result a run; a result with a `bug` is `good` where it did not pass.
    """
    runs: list[tuple[Audit, Bug | None]] = []
    for audit in audits:
        runs += [(audit, None), *((audit, bug) for bug in audit.planted if with_planted_bugs)]
    results = []
    for done, (audit, bug) in enumerate(runs):
        report(done / len(runs), audit.name if bug is None else f"{audit.name}, planted: {bug}")
        results.append(audit.run(bug))
    report(1.0, f"{len(audits)} audits done")
    return results


def planters(bug: Bug) -> tuple[Audit, ...]:
    """Lists the audits that plant a bug."""
    return tuple(audit for audit in AUDITS if bug in audit.planted)
