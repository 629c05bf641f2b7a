"""Labels of releases that protect secrets: with and without the protection of records."""

from dpsynth_assets.orchestration.metadata import spend_metadata
from dpsynth_assets.privacy.events import (
    POST_PROCESSING,
    MixtureGaussianEvent,
    PoissonGaussianEvent,
)
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import PlannedRelease, SecretTerms
from dpsynth_assets.privacy.ledger.chain import sealed
from dpsynth_assets.privacy.secret_protection import posterior_of_events
from dpsynth_assets.report.cards import dataset_card, privacy_statement
from dpsynth_assets.report.label import cohort_label, corpus_label
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms

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


TERMS = make_terms(accountant="tight", secret=SECRET)


def labels(ledger, event, guarantee):
    """Of a corpus that is written for nothing from a paid release, and of its cohort."""
    asset = "tickets/secpe/secret_clusters"
    asked = {"asset": asset, "event": event, "guarantee": guarantee, "parameters": PARAMETERS}
    plan = [PlannedRelease(asset, event)]
    paid = ledger.reserve(make_request(mechanism="secpe", **asked), TERMS, plan)
    asked |= {"asset": "tickets/secpe/candidate_corpus", "event": POST_PROCESSING}
    asked |= {"parameters": {"inputs": {"secret_clusters": paid.id}}}
    free = ledger.reserve(make_request(mechanism="secpe", **asked), TERMS, plan)
    entries = ledger.entries()
    return corpus_label(entries, free.id, [RECALL]), cohort_label(entries, "tickets", [RECALL])


def test_secrets_alone_leave_no_trace_of_an_epsilon_and_each_kind_has_its_own_posterior(ledger):
    corpus, cohort = labels(ledger, MIXTURE, GuaranteeType.SECRET)
    for label in (corpus, cohort):
        assert not any("hides" in sentence for sentence in label["not_protected"])
        guarantee = label["guarantee"]
        assert guarantee["dp_guarantee"] == "none"
        assert not {"privacy_profile", "gaussian_dp_mu"} & set(guarantee)
        assert not any("epsilon" in name for name in guarantee)
    kinds = corpus["guarantee"]["kinds"]
    assert [kind["posterior"] for kind in kinds] == [
        posterior_of_events([MIXTURE], kind["prior"]) for kind in KINDS
    ]
    assert [kind["promised"] for kind in kinds] == [0.5, 0.9]


def test_metadata_of_a_secret_release_shows_its_posterior_and_no_epsilon(ledger):
    asked = make_request(event=MIXTURE, guarantee=GuaranteeType.SECRET, parameters=PARAMETERS)
    paid = ledger.reserve(asked, TERMS, [PlannedRelease(asked.asset, MIXTURE)])
    shown = spend_metadata(ledger, paid, TERMS)
    assert (shown["dpsynth/guarantee"], shown["dpsynth/dp_guarantee"]) == ("secret", "none")
    assert "dpsynth/epsilon" not in shown
    assert shown["dpsynth/secret_posterior"] == ledger.spend("tickets").secret_posterior <= 0.5


def test_records_that_were_paid_for_show_their_epsilon_and_the_posterior_apart(ledger):
    guarantee = labels(ledger, RECORDS, GuaranteeType.DP)[0]["guarantee"]
    assert guarantee["type"] == "dp"
    assert guarantee["epsilon"] > 0
    assert guarantee["posterior"] == posterior_of_events([RECORDS], 1e-4, occurrences=2)
    assert guarantee["dp_guarantee"] != "none"


def test_a_dp_corpus_of_records_with_declared_secrets_states_what_it_tells_of_them(ledger):
    plan = [PlannedRelease("tickets/mean/corpus", RECORDS)]
    paid = ledger.reserve(make_request(event=RECORDS), TERMS, plan)
    corpus = corpus_label(ledger.entries(), paid.id)
    cohort = cohort_label(ledger.entries(), "tickets")
    told = dataset_card(corpus, columns=["text"], rows=3), privacy_statement(cohort, FACTS)
    reached = [posterior_of_events([RECORDS], prior, occurrences=2) for prior, _ in SECRET.bounds]
    for label, written in zip((corpus, cohort), told, strict=True):
        guarantee = label["guarantee"]
        assert [kind["posterior"] for kind in guarantee["kinds"]] == reached
        assert [kind["promised"] for kind in guarantee["kinds"]] == [0.5, 0.9]
        assert guarantee["epsilon"] > 0
        assert "detectors" not in label
        assert "at most 0.5 after all that may ever be charged (" in written


def test_the_card_shows_recall_beside_the_guarantee_and_not_among_the_audits(ledger):
    label, _ = labels(ledger, MIXTURE, GuaranteeType.SECRET)
    card = dataset_card(label, columns=["text"], rows=3)
    guarantee, rest = card.split("### Mechanisms")
    assert "found 170 of 200 planted secrets, recall 0.850, at least 0.800" in guarantee
    assert "DP guarantee: none" in guarantee
    assert "lacks every record that holds the secret" in guarantee
    assert "detector_recall" not in rest.split("### Audits on this installation")[1]
    assert "secret-protection]" in card
    assert "differential-privacy" not in card


def test_releases_outside_a_plan_leave_a_posterior_of_one(ledger):
    """As an entry may hold them that was written before promises were checked."""
    ledger.reserve(make_request(), make_terms())
    (entry,) = ledger.entries()
    assert "dp_guarantee" not in cohort_label([entry], "tickets")["guarantee"]
    unplanned = entry._replace(terms_json=make_terms(secret=SECRET).to_json())
    label = cohort_label([sealed(unplanned)], "tickets")
    assert label["guarantee"]["posterior"] == 1.0
    assert "may ever be charged" not in privacy_statement(label, FACTS), "nothing bounds it"
