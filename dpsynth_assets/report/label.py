"""The privacy label: what a reader must know to judge a release, recomputed from the ledger.

Everything a label states about privacy is a function of ledger entries, so it can be built again
by anyone who holds the ledger, and a card that was edited no longer equals it.
"""

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpsynth_assets.methods.registry import REGISTRY
from dpsynth_assets.privacy.accounting import (
    epsilon_of_fixed,
    epsilon_with_inputs,
    gaussian_mu_of,
    profile_with_inputs,
)
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import (
    Event,
    MixtureGaussianEvent,
    event_to_json,
    is_post_processing,
)
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import BudgetTerms, ChargeGraph, CohortSpend, LedgerEntry
from dpsynth_assets.privacy.ledger.accounts import Book, CohortAccount
from dpsynth_assets.privacy.ledger.schema import APPROVAL, COMMIT, KEPT, TIGHT
from dpsynth_assets.privacy.ledger.statement import PLAN, SWITCHED, charged_copies, cohort_spend
from dpsynth_assets.privacy.pld import DISCRETIZATION
from dpsynth_assets.report.label_texts import (
    assumptions,
    is_recall,
    losses_of_ledger,
    mechanism_sentence,
    not_protected,
    not_summed,
    texts,
)

# The guarantee on a privacy label: what holds, beside what an odometer reads.
#
# Two numbers must not be mistaken for each other. What is *guaranteed* of a cohort is ε of the
# budget under which a filter admitted its releases, or ε of all copies of a plan that its budget
# admits. What was *spent so far* is the reading of an odometer, a diagnostic: it says what is left.

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
        stated["dp_guarantee"] = "stated here, since records are protected too" if dp else "none"
        stated |= _secret(charged, events)
    dp_events = [event for event in events if not isinstance(event, MixtureGaussianEvent)]
    if kind is GuaranteeType.SECRET:  # What is written at no cost has no ε to show.
        dp_events = [event for event in dp_events if not is_post_processing(event)]
    if (kind is not GuaranteeType.DP and not charged.whole) or not dp_events:
        return stated
    stated |= {"delta": charged.spend.delta, "accountant": charged.accountant}
    if charged.switched:
        stated["delta_is_doubled"] = texts()["doubled"]
    return stated | (_of_cohort if charged.whole else _of_corpus)(charged, dp_events)


def _of_corpus(charged: Charged, events: Sequence[Event]) -> dict[str, Any]:
    """ε of one release and of those it builds on."""
    return {
        "epsilon": epsilon_with_inputs(
            events, charged.terms.delta, charged.accountant, charged.terms.epsilon
        ),
        "basis": texts()["of_a_corpus"][charged.accountant],
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
        "basis": texts()["basis"][spend.basis],
        "budget_epsilon": spend.budget_epsilon,
        "spent": {
            "epsilon": spend.epsilon,
            "delta": spend.delta,
            "is": texts()["reading"],
            **_curve(charged, covered),
        },
    }


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


SCHEMA = "dpsynth/privacy-label/3"
"""Raised where what a label states changes."""

CODE = f"dpsynth_assets {importlib.metadata.version('dpsynth_assets')}"
"""Writer of a label, as `composition.code` says."""

LIBRARY = f"dp_accounting {importlib.metadata.version('dp_accounting')}"
"""Library of accountants, as `composition.library` says."""

Label = dict[str, Any]


CORPUS, GENERATOR, ROWS = "corpus", "generator", "rows"
"""Kinds of releases that a label may be about, beside a whole cohort."""


def corpus_label(
    entries: Sequence[LedgerEntry],
    reservation: str,
    audits: Sequence[Mapping[str, Any]] = (),
    *,
    kind: str = CORPUS,
    linked: bool = True,
) -> Label:
    """States what one release guarantees, with the releases it builds on.

    **Privacy** The guarantee is the weakest of the corpus and of all it builds on: post-processing
    keeps what it is given and adds nothing to it.

    Args:
        entries: The ledger up to the moment of the label, of all cohorts, in order.
        reservation: The charge that paid for it.
        audits: Results of mechanism audits on this installation, already public.
        kind: What was released: a corpus, or a generator.
        linked: Whether the entries are a chain; those of a proof are shown one by one, and of the
            result only `cohort.as_of_entry` and `cohort.ledger_head` depend on the others.

    Raises:
        PrivacyError: The ledger holds no such charge.
    """
    charged = ChargeGraph(entries).charges_behind(reservation)
    paid = charged[-1]
    subject = {
        "kind": kind,
        "dataset": paid.dataset,
        "cohort": paid.cohort,
        "asset": paid.asset,
        "release": paid.release,
        "reservation": reservation,
        "data_version": paid.data_version,
        "code_version": paid.code_version,
    }
    method = REGISTRY.get(paid.mechanism)
    described = {
        "name": paid.mechanism,
        "title": method.title if method else paid.mechanism,
        "paper": method.paper if method else "",
    }
    account = _account(entries, paid.cohort, linked=linked)
    label = _label(entries, account, charged, subject, audits)
    commits = (e for e in entries if e.kind == COMMIT and e.reservation == reservation)
    told = next((commit.parameters for commit in commits), {})
    return label | {"method": described} | ({KEPT: told[KEPT]} if KEPT in told else {})


def cohort_label(
    entries: Sequence[LedgerEntry], cohort: str, audits: Sequence[Mapping[str, Any]] = ()
) -> Label:
    """States what everything charged to one cohort guarantees together.

    Raises:
        PrivacyError: Nothing was charged to the cohort.
    """
    charges = [e for e in entries if e.kind == "reserve" and e.cohort == cohort]
    if not charges:
        raise PrivacyError(
            f"Expected charges of cohort {cohort!r} in the ledger, got none. Release first."
        )
    subject = {"kind": "cohort", "dataset": charges[0].dataset, "cohort": cohort}
    return _label(entries, _account(entries, cohort), charges, subject, audits)


def weakest(charges: Sequence[LedgerEntry]) -> GuaranteeType:
    """States what holds for several releases seen together."""
    kinds = {GuaranteeType(entry.guarantee) for entry in charges}
    weaker = (kind for kind in (GuaranteeType.EX_POST, GuaranteeType.SECRET) if kind in kinds)
    return next(weaker, GuaranteeType.DP)


def _label(
    entries: Sequence[LedgerEntry],
    account: CohortAccount,
    charges: Sequence[LedgerEntry],
    subject: Mapping[str, Any],
    audits: Sequence[Mapping[str, Any]],
) -> Label:
    terms, guarantee = charges[-1].terms, weakest(charges)
    if terms is None:
        raise PrivacyError("Expected terms in a ledger charge, got none. Verify the ledger.")
    spend = cohort_spend(account.cohort, account)
    kinds = {str(entry.guarantee) for entry in charges}
    charged = Charged(
        charges, terms, guarantee, spend, subject["kind"] == "cohort", charged_copies(account)
    )
    return {
        "schema": SCHEMA,
        "subject": dict(subject),
        "guarantee": guarantee_of(charged),
        "privacy_unit": terms.unit.describe(),
        "neighboring_relation": str(terms.relation),
        "neighboring_relation_definition": texts()["relations"][terms.relation],
        "mechanisms": [_mechanism(entry, terms) for entry in charges],
        "approvals": _approvals(entries, charges),
        "composition": _composition(charged),
        "public_facts": [
            *spend.public_facts,
            "every parameter named in this label, and the dataset file",
            "which public base, language model and clusters were used",
        ],
        "assumptions": [*assumptions(charges), *losses_of_ledger(entries)],
        "selection": texts()["selection"],
        "not_protected": not_protected(kinds, terms.unit.describe(), terms.relation),
        "not_summed": not_summed(kinds),
        "random_numbers": texts()["random_numbers"],
        "audits": [dict(result) for result in audits],
        "cohort": _cohort(spend, entries),
    } | _detectors(audits)


def _detectors(audits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Reports secrets that detectors miss, by planted ones; nothing if none were run."""
    recall = [dict(result) for result in audits if is_recall(result)]
    return {"detectors": recall} if recall else {}


def _mechanism(entry: LedgerEntry, terms: BudgetTerms) -> dict[str, Any]:
    event = entry.event
    alone = None
    if event is not None and entry.guarantee == GuaranteeType.DP:
        alone = epsilon_of_fixed([event], terms.delta, terms.accountant)
    return {
        "asset": entry.asset,
        "release": entry.release,
        "mechanism": entry.mechanism,
        "guarantee": entry.guarantee,
        "in_words": "" if event is None else mechanism_sentence(event),
        "event": None if event is None else event_to_json(event),
        "epsilon_alone": alone,
        "parameters": entry.parameters,
        "charged_by": entry.acted_by,
    }


def _approvals(
    entries: Sequence[LedgerEntry], charges: Sequence[LedgerEntry]
) -> list[dict[str, Any]]:
    """Who approved the plans of these charges before they were made."""
    last = {charge.plan_digest: charge.seq for charge in charges}
    return [
        {
            "entry": each.seq,
            "day": each.recorded_at[:10],
            "plan": each.plan_digest,
            "by": each.actor,
        }
        for each in entries
        if each.kind == APPROVAL and each.seq < last.get(each.plan_digest, 0)
    ]


def _composition(charged: Charged) -> dict[str, Any]:
    accountant = charged.accountant
    return {
        "accountant": accountant,
        "rule": texts()["composition"][SWITCHED if charged.switched else accountant],
        "library": LIBRARY,
        "code": CODE,
        "discretization": DISCRETIZATION if accountant == "tight" else None,
        "rounding": "every bound is rounded up, where it is computed and where it is written",
    }


def public_head(entries: Sequence[LedgerEntry]) -> str | None:
    """Hash of the last entry, where it may be published; None where it may not.

    A realised ex-post bound is a column of its commit and so is sealed by every later hash. It is a
    function of private data without noise, and a hash of it would let a guess be checked.
    """
    return None if any(map(seals_private_value, entries)) else entries[-1].hash


def seals_private_value(entry: LedgerEntry) -> bool:
    """Says whether the hash of an entry depends on a private value without noise."""
    return entry.ex_post_epsilon is not None


def _account(entries: Sequence[LedgerEntry], cohort: str, *, linked: bool = True) -> CohortAccount:
    """A cohort's account when the last of these entries was written."""
    book = Book()
    post = book.post if linked else book.take_in
    for entry in entries:
        post(entry)
    return book.accounts[cohort]


def _cohort(spend: CohortSpend, entries: Sequence[LedgerEntry]) -> dict[str, Any]:
    """The whole cohort: `epsilon_guaranteed` holds, `epsilon` is what its odometer reads."""
    return {
        "name": spend.cohort,
        "epsilon_guaranteed": spend.guaranteed_epsilon,
        "basis": spend.basis,
        "epsilon": spend.epsilon,
        "delta": spend.delta,
        "budget_epsilon": spend.budget_epsilon,
        "remaining_epsilon": spend.remaining_epsilon,
        "guarantee": spend.total_guarantee,
        "as_of_entry": entries[-1].seq,
        "ledger_head": public_head(entries),
    }
