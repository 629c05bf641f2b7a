"""The guarantee on a privacy label: what holds, beside what an odometer reads.

Two numbers must not be mistaken for each other. What is *guaranteed* of a cohort is ε of the budget
under which a filter admitted its releases, or ε of all copies of a plan that its budget admits.
What was *spent so far* is the reading of an odometer, a diagnostic: it says what is left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpsynth_assets.privacy.accounting import (
    epsilon_with_inputs,
    gaussian_mu_of,
    profile_with_inputs,
)
from dpsynth_assets.privacy.events import Event, MixtureGaussianEvent, is_post_processing
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import BudgetTerms, CohortSpend, LedgerEntry
from dpsynth_assets.privacy.ledger.schema import TIGHT
from dpsynth_assets.privacy.ledger.statement import PLAN, SWITCHED
from dpsynth_assets.report.label_texts import texts

PROFILE_EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


@dataclass(frozen=True)
class Charged:
    """The subject of a label.

    Attributes:
        charges: The charges it covers, in order.
        terms: Terms of the last of them.
        guarantee: The weakest guarantee among them.
        spend: Statement of their cohort when the label was written.
        whole: Whether they are all charges of the cohort.
        copies: Events of all charged copies of the cohort's plan; empty without one.
    """

    charges: Sequence[LedgerEntry]
    terms: BudgetTerms
    guarantee: GuaranteeType
    spend: CohortSpend
    whole: bool
    copies: Sequence[Event] = ()

    @property
    def accountant(self) -> str:
        """The accountant that computed ε."""
        return self.spend.accountant if self.whole else self.terms.accountant

    @property
    def switched(self) -> bool:
        """Says whether the cohort began with a plan and went on under the filter: δ is doubled."""
        return self.spend.basis == SWITCHED


def guarantee_of(charged: Charged) -> dict[str, Any]:
    """The section `guarantee` of a label."""
    events = [entry.event for entry in charged.charges if entry.event is not None]
    kind = charged.guarantee
    stated: dict[str, Any] = {"type": str(kind), "definition": texts()["definitions"][kind]}
    if charged.terms.secret is not None:
        dp = kind is GuaranteeType.DP
        stated["dp_guarantee"] = "stated here: records were paid for too" if dp else "none"
        stated |= _secret(charged, events)
    dp_events = [event for event in events if not isinstance(event, MixtureGaussianEvent)]
    if kind is GuaranteeType.SECRET:  # What is written for nothing has no ε to show.
        dp_events = [event for event in dp_events if not is_post_processing(event)]
    if (kind is not GuaranteeType.DP and not charged.whole) or not dp_events:
        return stated
    if charged.whole:
        return stated | _of_cohort(charged, dp_events)
    return stated | _of_corpus(charged, dp_events)


def _of_corpus(charged: Charged, events: Sequence[Event]) -> dict[str, Any]:
    """ε of one release and of those it builds on."""
    return {
        "epsilon": epsilon_with_inputs(
            events, charged.terms.delta, charged.accountant, charged.terms.epsilon
        ),
        "delta": charged.spend.delta,
        "accountant": charged.accountant,
        "basis": texts()["of_a_corpus"][charged.accountant],
        **_doubled(charged),
        **_curve(charged, events),
    }


def _of_cohort(charged: Charged, events: Sequence[Event]) -> dict[str, Any]:
    """States what is guaranteed of a cohort's DP releases, and what its odometer reads."""
    spend = charged.spend
    dp = charged.guarantee is GuaranteeType.DP
    name = "epsilon" if dp else "epsilon_of_its_dp_releases_alone"
    covered = charged.copies if spend.basis == PLAN and charged.copies else events
    return {
        name: spend.guaranteed_epsilon,
        "delta": spend.delta,
        "accountant": charged.accountant,
        "basis": texts()["basis"][spend.basis],
        **_doubled(charged),
        "budget_epsilon": spend.budget_epsilon,
        "spent": {
            "epsilon": spend.epsilon,
            "delta": spend.delta,
            "is": texts()["reading"],
            **_curve(charged, covered),
        },
    }


def _doubled(charged: Charged) -> dict[str, str]:
    return {"delta_is_doubled": texts()["doubled"]} if charged.switched else {}


def _curve(charged: Charged, events: Sequence[Event]) -> dict[str, Any]:
    """δ at several ε, and μ where a Gaussian bounds the whole curve."""
    factor = 2.0 if charged.switched else 1.0
    deltas = profile_with_inputs(
        events, PROFILE_EPSILONS, charged.terms.delta, charged.accountant, charged.terms.epsilon
    )
    curve: dict[str, Any] = {
        "privacy_profile": [
            {"epsilon": epsilon, "delta": min(1.0, factor * float(delta))}
            for epsilon, delta in zip(PROFILE_EPSILONS, deltas, strict=True)
        ]
    }
    mu = None if charged.switched else gaussian_mu_of(events)
    return curve if mu is None else curve | {"gaussian_dp_mu": mu}


def _secret(charged: Charged, events: Sequence[Event]) -> dict[str, Any]:
    """(p, r) of the composed dominating pairs, DP releases after group privacy included.

    One bound serves all kinds of secrets; each kind has a prior of its own at which it is read. It
    is 1 where nothing bounds it: with ex-post releases, and outside a fixed plan.
    """
    from dpsynth_assets.privacy.secret_protection import posterior_of_events

    secret = charged.terms.secret
    if secret is None:
        return {}
    unbounded = charged.terms.accountant != TIGHT or charged.guarantee is GuaranteeType.EX_POST
    reached = {
        prior: 1.0
        if unbounded
        else posterior_of_events(events, prior, occurrences=secret.occurrences)
        for prior in dict.fromkeys(prior for prior, _ in secret.bounds)
    }
    named = next((dict(e.parameters) for e in charged.charges if "secrets" in e.parameters), {})
    declared = [{"kind": "declared", "prior": p, "posterior": r} for p, r in secret.bounds]
    kinds: Sequence[Mapping[str, Any]] = named.get("secrets", declared)
    return {
        "prior": secret.prior,
        "posterior": reached[secret.prior],
        "occurrences": secret.occurrences,
        "secret_adjacency": named.get("secret_adjacency", ""),
        "kinds": [
            {**kind, "promised": kind["posterior"], "posterior": reached[kind["prior"]]}
            for kind in kinds
            if kind["prior"] in reached
        ],
    }
