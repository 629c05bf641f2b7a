"""Labels of releases that protect secrets: with and without the protection of records."""

import pytest

from dpsynth_assets.orchestration.metadata import spend_metadata
from dpsynth_assets.privacy.events import (
    POST_PROCESSING,
    MixtureGaussianEvent,
    PoissonGaussianEvent,
)
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Ledger, PlannedRelease, SecretTerms
from dpsynth_assets.privacy.ledger.chain import sealed
from dpsynth_assets.privacy.secret_protection import posterior_of_events
from dpsynth_assets.report.cards import dataset_card, privacy_statement
from dpsynth_assets.report.label import cohort_label, corpus_label
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms, sqlite_url

SECRET = SecretTerms(prior=1e-4, posterior=0.5, occurrences=2, others=((0.1, 0.9),))
KINDS = [
    {"kind": "email", "prior": 1e-4, "posterior": 0.5, "max_records": 2},
    {"kind": "name", "prior": 0.1, "posterior": 0.9, "max_records": 1},
]
FACTS = {"releases": [], "ledger_ok": True}
PARAMETERS = {"secrets": KINDS, "secret_adjacency": "add-remove"}
MIXTURE = MixtureGaussianEvent(noise_std=5.0, shifts=(2.0,), probabilities=(1.0,))
RECORDS = PoissonGaussianEvent(sampling_probability=1.0, noise_multiplier=5.0, steps=1)
RECALL = {
    "name": "tickets/detector_recall/email", "kind": "email", "detector": "presidio",
    "planted": 200, "found": 170, "recall": 0.85, "recall_at_least": 0.8, "note": "Made up.",
}  # fmt: skip


def labelled(tmp_path, event, guarantee, *, of="corpus"):
    ledger = Ledger(sqlite_url(tmp_path))
    terms = make_terms(accountant="tight", secret=SECRET)
    plan = [PlannedRelease("tickets/secpe/secret_clusters", event)]

    def reserved(name, event, parameters):
        asked = {"asset": f"tickets/secpe/{name}", "event": event, "parameters": parameters}
        request = make_request(guarantee=guarantee, mechanism="secpe", **asked)
        return ledger.reserve(request, terms, plan)

    paid = reserved("secret_clusters", event, PARAMETERS)
    free = reserved("candidate_corpus", POST_PROCESSING, {"inputs": {"secret_clusters": paid.id}})
    if of == "cohort":
        return cohort_label(ledger.entries(), "tickets", [RECALL])
    return corpus_label(ledger.entries(), free.id, [RECALL])


def test_metadata_of_a_secret_release_shows_its_posterior_and_no_epsilon(tmp_path):
    ledger, terms = Ledger(sqlite_url(tmp_path)), make_terms(accountant="tight", secret=SECRET)
    asked = make_request(event=MIXTURE, guarantee=GuaranteeType.SECRET, parameters=PARAMETERS)
    paid = ledger.reserve(asked, terms, [PlannedRelease(asked.asset, MIXTURE)])
    shown = spend_metadata(ledger, paid, terms)
    assert (shown["dpsynth/guarantee"], shown["dpsynth/dp_guarantee"]) == ("secret", "none")
    assert "dpsynth/epsilon" not in shown
    assert shown["dpsynth/secret_posterior"] == ledger.spend("tickets").secret_posterior <= 0.5


@pytest.mark.parametrize("of", ["corpus", "cohort"])
def test_secrets_alone_leave_no_trace_of_an_epsilon(tmp_path, of):
    label = labelled(tmp_path, MIXTURE, GuaranteeType.SECRET, of=of)
    assert not any("hides" in sentence for sentence in label["not_protected"])
    guarantee = label["guarantee"]
    assert guarantee["dp_guarantee"] == "none"
    assert not {"epsilon", "privacy_profile", "gaussian_dp_mu"} & set(guarantee)
    assert not any("epsilon" in name for name in guarantee)


def test_each_kind_is_read_at_its_own_prior(tmp_path):
    kinds = labelled(tmp_path, MIXTURE, GuaranteeType.SECRET)["guarantee"]["kinds"]
    assert [kind["posterior"] for kind in kinds] == [
        posterior_of_events([MIXTURE], kind["prior"]) for kind in KINDS
    ]
    assert [kind["promised"] for kind in kinds] == [0.5, 0.9]


def test_records_that_were_paid_for_show_their_epsilon_and_the_posterior_apart(tmp_path):
    guarantee = labelled(tmp_path, RECORDS, GuaranteeType.DP)["guarantee"]
    assert guarantee["type"] == "dp"
    assert guarantee["epsilon"] > 0
    assert guarantee["posterior"] == posterior_of_events([RECORDS], 1e-4, occurrences=2)
    assert guarantee["dp_guarantee"] != "none"


def test_the_card_shows_recall_beside_the_guarantee_and_not_among_the_audits(tmp_path):
    label = labelled(tmp_path, MIXTURE, GuaranteeType.SECRET)
    card = dataset_card(label, columns=["text"], rows=3)
    guarantee, rest = card.split("### Mechanisms")
    assert "found 170 of 200 planted secrets, recall 0.850, at least 0.800" in guarantee
    assert "DP guarantee: none" in guarantee
    assert "lacks every record that holds the secret" in guarantee
    assert "detector_recall" not in rest.split("### Audits on this installation")[1]
    assert "secret-protection]" in card
    assert "differential-privacy" not in card


def test_a_label_without_secrets_has_no_detectors(tmp_path):
    ledger = Ledger(sqlite_url(tmp_path))
    paid = ledger.reserve(make_request(), make_terms())
    label = corpus_label(ledger.entries(), paid.id)
    assert "detectors" not in label
    assert "dp_guarantee" not in label["guarantee"]


@pytest.mark.parametrize("of", ["corpus", "cohort"])
def test_a_dp_corpus_of_records_with_declared_secrets_states_what_it_tells_of_them(tmp_path, of):
    ledger = Ledger(sqlite_url(tmp_path))
    terms = make_terms(accountant="tight", secret=SECRET)
    plan = [PlannedRelease("tickets/mean/corpus", RECORDS)]
    paid = ledger.reserve(make_request(event=RECORDS), terms, plan)
    if of == "cohort":
        label = cohort_label(ledger.entries(), "tickets")
        written = privacy_statement(label, FACTS)
    else:
        label = corpus_label(ledger.entries(), paid.id)
        written = dataset_card(label, columns=["text"], rows=3)
    guarantee = label["guarantee"]
    reached = [posterior_of_events([RECORDS], prior, occurrences=2) for prior, _ in SECRET.bounds]
    assert [kind["posterior"] for kind in guarantee["kinds"]] == reached
    assert [kind["promised"] for kind in guarantee["kinds"]] == [0.5, 0.9]
    assert guarantee["epsilon"] > 0
    assert "at most 0.5 after all that may ever be charged (" in written


def test_releases_outside_a_plan_leave_a_posterior_of_one(tmp_path):
    """As an entry may hold them that was written before promises were checked."""
    ledger = Ledger(sqlite_url(tmp_path))
    ledger.reserve(make_request(), make_terms())
    (entry,) = ledger.entries()
    unplanned = entry._replace(terms_json=make_terms(secret=SECRET).to_json())
    label = cohort_label([sealed(unplanned)], "tickets")
    assert label["guarantee"]["posterior"] == 1.0
    assert "may ever be charged" not in privacy_statement(label, FACTS), "nothing bounds it"
