"""The privacy label: what a reader must know to judge a release, recomputed from the ledger.

Everything a label states about privacy is a function of ledger entries, so it can be built again
by anyone who holds the ledger, and a card that was edited no longer equals it.
"""

import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any

from dpsynth_assets.methods.registry import REGISTRY
from dpsynth_assets.privacy.accounting import epsilon_of_fixed
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import event_to_json, flatten
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import BudgetTerms, ChargeGraph, CohortSpend, LedgerEntry
from dpsynth_assets.privacy.ledger.accounts import Book, CohortAccount
from dpsynth_assets.privacy.ledger.schema import COMMIT, KEPT
from dpsynth_assets.privacy.ledger.statement import SWITCHED, charged_copies, cohort_spend
from dpsynth_assets.privacy.pld import DISCRETIZATION
from dpsynth_assets.report.label_assumptions import (
    assumptions,
    embedding_assumptions,
    exact_logits_of_draws,
    exact_sums_of_training,
    pass_assumptions,
)
from dpsynth_assets.report.label_guarantee import Charged, guarantee_of
from dpsynth_assets.report.label_texts import (
    is_recall,
    losses_of_ledger,
    mechanism_sentence,
    not_protected,
    not_summed,
    texts,
)

SCHEMA = "dpsynth/privacy-label/2"
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
    events = [entry.event for entry in charges if entry.event is not None]
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
        "composition": _composition(charged),
        "public_facts": [
            *spend.public_facts,
            "every parameter named in this label, and the dataset file",
            "which public base, language model and clusters were used",
        ],
        "assumptions": [
            *assumptions(
                [atom for event in events for atom in flatten(event)],
                exact_sums_of_training(charges),
                exact_logits_of_draws(charges),
            ),
            *pass_assumptions(charges),
            *embedding_assumptions(charges),
            *losses_of_ledger(entries),
        ],
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
    }


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
