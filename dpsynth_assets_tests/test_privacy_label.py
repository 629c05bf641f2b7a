"""Laws of the privacy label: all of it follows from the ledger, and an edited card is named."""

import json
import re
from dataclasses import asdict
from functools import partial

import polars as pl
import pytest

from dpsynth_assets.privacy.accounting import epsilon_of_fixed, filter_epsilon
from dpsynth_assets.privacy.directed_rounding import epsilon_up
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import (
    POST_PROCESSING,
    BoundedRangeEvent,
    DiscreteLaplaceEvent,
    GaussianEvent,
    PoissonGaussianEvent,
)
from dpsynth_assets.privacy.gaussian_dp import gaussian_delta, integer_gaussian_delta
from dpsynth_assets.privacy.guarantees import GuaranteeType, NeighboringRelation
from dpsynth_assets.privacy.histogram import NoisyHistogram
from dpsynth_assets.privacy.ledger import Ledger, PlannedRelease
from dpsynth_assets.privacy.ledger.actors import make_key, read_key
from dpsynth_assets.privacy.ledger.proof import ProvenEntry, proven
from dpsynth_assets.privacy.ledger.schema import ApprovalTerms
from dpsynth_assets.report.cards import (
    corpus_problems,
    dataset_card,
    privacy_statement,
    releases,
    statement_problems,
)
from dpsynth_assets.report.label import cohort_label, corpus_label
from dpsynth_assets_tests.declared import audit_result
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms, release, sqlite_url

HISTOGRAM = DiscreteLaplaceEvent(scale=5.0)
TOKENS = BoundedRangeEvent(eta=0.1, count=100)
SECTIONS = {
    "schema", "subject", "method", "guarantee", "privacy_unit", "neighboring_relation",
    "neighboring_relation_definition", "mechanisms", "approvals", "composition", "public_facts",
    "assumptions", "selection", "not_protected", "not_summed", "random_numbers", "audits", "cohort",
}  # fmt: skip


def histogram_and_corpus(ledger, **changes):
    """Releases a histogram and a corpus that builds on it; returns the corpus's reservation."""
    behind = release(ledger, asset="tickets/shared/cluster_histogram", event=HISTOGRAM)
    fields = {"event": TOKENS, "mechanism": "mean_clustered"}
    parameters = {"clip_bound": 10.0, "inputs": {"cluster_histogram": behind, "clusters": "abc"}}
    return release(ledger, **(fields | {"parameters": parameters} | changes))


def ex_post(ledger, bound=None, asset="tickets/median"):
    """Charges for a release that is ex-post, which costs nothing before it is drawn."""
    request = make_request(guarantee=GuaranteeType.EX_POST, event=None, asset=asset)
    paid = ledger.reserve(request, EX_POST_TERMS)
    ledger.commit(paid, artifact_digest="d", artifact_uri="u", ex_post_epsilon=bound)
    return paid.id


EX_POST_TERMS = make_terms(accepts_ex_post=True)
KEPT = {
    "rules": ["language"], "candidates": 40, "acceptance_rate": 0.75,
    "turned_down": {"language": 10},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, ledger):
    """A published corpus."""
    publish(tmp_path / "corpus", ledger, histogram_and_corpus(ledger))
    return tmp_path / "corpus"


def publish(folder, ledger, reservation):
    rows = pl.DataFrame({"text": ["a letter"], "id": ["tickets-0"]})
    (folder / "data").mkdir(parents=True)
    rows.write_parquet(folder / "data" / "train-00000-of-00001.parquet")
    label = corpus_label(ledger.entries(), reservation)
    (folder / "privacy_label.json").write_text(json.dumps(label))
    (folder / "README.md").write_text(dataset_card(label, columns=rows.columns, rows=1))


def test_a_label_has_every_section_an_honest_report_needs(ledger):
    reservation = histogram_and_corpus(ledger)
    label = corpus_label(ledger.entries(), reservation)
    assert set(label) == SECTIONS
    assert label["guarantee"]["type"] == "dp"
    assert label["method"]["paper"].startswith("Amin et al. 2025")
    assert json.loads(json.dumps(label)) == label
    profile = label["guarantee"]["privacy_profile"]
    deltas = [point["delta"] for point in profile]
    assert deltas == sorted(deltas, reverse=True)
    assert next(point["delta"] for point in profile if point["epsilon"] > 4) < 1e-6
    with pytest.raises(PrivacyError, match="reservation"):
        corpus_label(ledger.entries(), "no-such-charge")
    with pytest.raises(PrivacyError, match="charges"):
        cohort_label(ledger.entries(), "nobody")


def test_a_corpus_states_its_own_cost_with_what_it_builds_on_and_nothing_else(ledger):
    reservation = histogram_and_corpus(ledger)
    release(ledger, asset="tickets/other/corpus", event=GaussianEvent(noise_multiplier=3.0))
    label = corpus_label(ledger.entries(), reservation)
    # Under the filter the settings of the corpus may have followed from the histogram.
    expected = filter_epsilon([HISTOGRAM, TOKENS], 1e-6, make_terms().epsilon)
    assert expected > epsilon_of_fixed([HISTOGRAM, TOKENS], 1e-6, "zcdp")
    assert label["guarantee"]["epsilon"] == pytest.approx(expected)
    assert [mechanism["asset"] for mechanism in label["mechanisms"]] == [
        "tickets/shared/cluster_histogram",
        "tickets/mean/corpus",
    ]
    assert label["cohort"]["epsilon"] == ledger.spend("tickets").epsilon
    assert label["cohort"]["epsilon"] > expected


@pytest.mark.parametrize(
    ("relation", "hidden"),
    [("add-remove", "presence"), ("zero-out", "content"), ("replace-one", "content")],
)
def test_a_label_says_what_its_neighbours_hide(ledger, relation, hidden):
    """Ids and places of replaced records are public: that a record is there is then known."""
    terms = make_terms(relation=relation)
    reservation = release(ledger, terms, event=TOKENS)
    label = corpus_label(ledger.entries(), reservation)
    assert f"the guarantee hides the {hidden} of one record" in label["not_protected"][0]
    assert "batches share no record" in label["mechanisms"][0]["in_words"], "a unit's may lie apart"


def test_gaussian_releases_state_their_mu_and_whole_counts_one_that_dominates_them(ledger):
    plain = release(ledger, asset="tickets/plain", event=GaussianEvent(noise_multiplier=2.0))
    stated = corpus_label(ledger.entries(), plain)["guarantee"]
    assert stated["gaussian_dp_mu"] == pytest.approx(0.5)
    counts = NoisyHistogram(
        noise="gaussian", scale=1.5, relation=NeighboringRelation.ADD_REMOVE
    ).event()
    reservation = release(ledger, event=counts)
    label = corpus_label(ledger.entries(), reservation)
    mu = label["guarantee"]["gaussian_dp_mu"]
    assert 1.016 / 1.5 < mu < 1.02 / 1.5  # continuous noise of that σ would have 1 / 1.5
    for point in label["guarantee"]["privacy_profile"]:
        assert integer_gaussian_delta(counts, point["epsilon"]) <= point["delta"] * (1 + 1e-9)
        assert integer_gaussian_delta(counts, point["epsilon"]) <= gaussian_delta(
            mu, point["epsilon"]
        )


def test_a_label_and_a_proof_name_who_charged_and_who_approved(tmp_path):
    for name in ("ann", "ben"):
        make_key(tmp_path / name)
    ann, ben = (
        Ledger(sqlite_url(tmp_path), actor=partial(read_key, tmp_path / name))
        for name in ("ann", "ben")
    )
    key = read_key(tmp_path / "ben").name
    terms = make_terms(approvals=ApprovalTerms(needed=1, keys=(key,)))
    plan = [PlannedRelease(make_request().asset, make_request().event)]
    approval = ben.approve("tickets", "tickets", terms, plan)
    paid, entries = ann.reserve(make_request(), terms, plan), ann.entries()
    label = corpus_label(entries, paid.id)
    assert [each["by"] for each in label["approvals"]] == [key]
    assert label["mechanisms"][0]["charged_by"] == read_key(tmp_path / "ann").name
    shown = [ProvenEntry.from_json(each.to_json()).entry for each in proven(entries, entries)[1]]
    assert corpus_label(shown, paid.id, linked=False)["approvals"] == label["approvals"]
    assert all(each.signature is None for each in shown)
    text = privacy_statement(cohort_label(entries, "tickets"), {"releases": [], "ledger_ok": True})
    assert f"- Plan `{str(approval.plan_digest)[:12]}`, by {key} on " in text


def test_an_ex_post_release_states_no_epsilon_and_no_bound(ledger):
    paid = ex_post(ledger, bound=1.2345678)
    release(ledger, EX_POST_TERMS, asset="tickets/dp/corpus")
    corpus = corpus_label(ledger.entries(), paid)
    whole = cohort_label(ledger.entries(), "tickets")
    assert "epsilon" not in corpus["guarantee"]
    assert "epsilon" not in whole["guarantee"]
    assert whole["guarantee"]["epsilon_of_its_dp_releases_alone"] == EX_POST_TERMS.epsilon
    assert "1.2345" not in json.dumps([corpus, whole])
    assert any("Ex-post" in sentence for sentence in whole["not_summed"])


def test_the_statement_of_a_cohort_with_ex_post_releases_does_not_contradict_itself(ledger):
    ex_post(ledger)
    release(ledger, EX_POST_TERMS, asset="tickets/dp/corpus")
    label = cohort_label(ledger.entries(), "tickets")
    text = privacy_statement(label, {"releases": [], "ledger_ok": True})
    assert "no (ε, δ)-DP guarantee" in text
    with_epsilon = [line for line in text.splitlines() if "ε =" in line or "as (ε, δ)" in line]
    assert len(with_epsilon) >= 4
    guarantees = [line for line in with_epsilon if "(ε = " not in line and "Spent" not in line]
    assert all("alone" in line for line in guarantees)


def test_rows_chosen_from_an_ex_post_corpus_are_ex_post_whatever_was_charged_for_them(ledger):
    event, asset = GaussianEvent(noise_multiplier=10.0), "tickets/shared/topic_histogram"
    histogram = release(ledger, EX_POST_TERMS, asset=asset, event=event)
    behind = {"topic_histogram": histogram, "median": ex_post(ledger, bound=9.9)}
    free = {"mechanism": "resampled", "event": POST_PROCESSING}
    for step in ("chosen", "again"):  # However many steps lie between.
        made_from = free | {"asset": f"tickets/{step}", "parameters": {"inputs": behind}}
        behind = {step: release(ledger, EX_POST_TERMS, **made_from)}
        label = corpus_label(ledger.entries(), *behind.values())
        assert label["guarantee"]["type"] == "ex-post"
        assert "no (ε, δ)-DP guarantee" in label["guarantee"]["definition"]
        assert not {"epsilon", "privacy_profile", "gaussian_dp_mu"} & set(label["guarantee"])
        assert "ex-post" in dataset_card(label, columns=["text"], rows=1)
    assert label["not_summed"] == cohort_label(ledger.entries(), "tickets")["not_summed"]


def test_a_head_that_seals_a_private_bound_is_withheld(ledger):
    release(ledger)
    assert cohort_label(ledger.entries(), "tickets")["cohort"]["ledger_head"] == ledger.head()
    ex_post(ledger, bound=0.5)
    label = cohort_label(ledger.entries(), "tickets")
    assert label["cohort"]["ledger_head"] is None
    hashes = {entry.hash for entry in ledger.entries()}
    assert not any(seal in json.dumps(label) for seal in hashes)


def test_an_untouched_card_agrees_even_after_later_charges_and_an_edited_number_is_named(
    ledger, folder
):
    assert corpus_problems(folder, ledger.entries()) == []
    release(ledger, asset="tickets/later/corpus")
    assert corpus_problems(folder, ledger.entries()) == []
    label, card = json.loads((folder / "privacy_label.json").read_text()), folder / "README.md"
    shown = epsilon_up(label["guarantee"]["epsilon"])
    card.write_text(card.read_text().replace(f"ε = {shown}", "ε = 0.1", 1))
    (problem,) = corpus_problems(folder, ledger.entries())
    assert problem.startswith("README.md:")
    (folder / "privacy_label.json").write_text("{")
    assert len(corpus_problems(folder, ledger.entries())) == 1
    (folder / "privacy_label.json").unlink()
    assert len(corpus_problems(folder, ledger.entries())) == 1


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("guarantee", lambda label: label["guarantee"].update(epsilon=0.1)),
        ("privacy_unit", lambda label: label.update(privacy_unit="one user")),
        ("neighboring_relation", lambda label: label.update(neighboring_relation="replace-one")),
        ("mechanisms", lambda label: label["mechanisms"].pop()),
        ("public_facts", lambda label: label["public_facts"].pop()),
        ("not_protected", lambda label: label["not_protected"].clear()),
        ("cohort", lambda label: label["cohort"].update(epsilon=0.0)),
    ],
)
def test_every_edited_section_of_the_label_is_named(ledger, folder, section, change):
    label = json.loads((folder / "privacy_label.json").read_text())
    change(label)
    (folder / "privacy_label.json").write_text(json.dumps(label))
    problems = corpus_problems(folder, ledger.entries())
    assert any(problem.startswith(f"privacy_label.json: {section} ") for problem in problems)


def test_a_label_of_another_ledger_is_refused(ledger, folder, tmp_path):
    assert corpus_problems(folder, ledger.entries()[:2])
    other = Ledger(sqlite_url(tmp_path / "other"))
    histogram_and_corpus(other)
    assert corpus_problems(folder, other.entries())


def test_a_statement_is_compared_in_the_same_way(ledger, tmp_path):
    histogram_and_corpus(ledger)
    label = cohort_label(ledger.entries(), "tickets")
    facts = {"releases": releases(ledger.entries(), label), "ledger_ok": True}
    (tmp_path / "privacy_label.json").write_text(json.dumps(label))
    text = tmp_path / "privacy_statement.md"
    text.write_text(privacy_statement(label, facts))
    assert statement_problems(tmp_path, ledger.entries()) == []
    text.write_text(text.read_text().replace("released", "charged only", 1))
    assert statement_problems(tmp_path, ledger.entries())


def test_audits_are_printed_on_the_card(ledger):
    audit = asdict(audit_result("mean-token", claimed=0.1, observed=0.1))
    reservation = histogram_and_corpus(ledger)
    for audits, told in (([audit], "mean-token: passed"), ([], "None were run here")):
        label = corpus_label(ledger.entries(), reservation, audits)
        assert told in dataset_card(label, columns=["text"], rows=1)


def test_settings_are_written_as_words_and_a_prompt_as_it_stands(ledger):
    settings = {"public_top_k": None, "chat": False, "prompt": "*Write*\n`it`"}
    reservation = histogram_and_corpus(ledger, parameters=settings)
    card = dataset_card(corpus_label(ledger.entries(), reservation), columns=["text"], rows=1)
    assert "\n  - `chat` no; `prompt` `\"*Write*\\n'it'\"`; `public_top_k` none\n" in card
    assert not re.search(r"^(#+) [^\n]+\n\n\1 ", card, re.MULTILINE), "a heading over nothing"


def training(ledger, **chosen):
    """Charges a training and a corpus written from it; returns the assumptions of its label."""
    event = PoissonGaussianEvent(sampling_probability=0.01, noise_multiplier=2.0, steps=10)
    settings = {"learning_rate": 2e-3, "clip_bound": 1.0, **chosen}
    asset = f"tickets/{len(ledger.entries())}"
    paid = release(ledger, asset=f"{asset}/generator", event=event, parameters=settings)
    written = {**settings, "inputs": {"finetuned_generator": paid}}
    corpus = release(ledger, asset=f"{asset}/corpus", event=POST_PROCESSING, parameters=written)
    return " ".join(corpus_label(ledger.entries(), corpus)["assumptions"])


def test_a_label_says_what_the_sensitivity_of_a_training_rests_on(ledger):
    native, exact = training(ledger), training(ledger, exact_sums=True)
    assert "float32 (Products.NATIVE)" in native
    assert "it is assumed, not proved, that one record" in native
    assert "float64 (Products.FLOAT64)" in exact
    assert "is proved" in exact
    assert "not proved" not in exact
    whole = " ".join(cohort_label(ledger.entries(), "tickets")["assumptions"])
    assert "Products.NATIVE" in whole
    assert "Products.FLOAT64" in whole

    event = PoissonGaussianEvent(sampling_probability=0.01, noise_multiplier=2.0, steps=10)
    sampled = release(ledger, asset="tickets/sampled", event=event)
    stated = " ".join(corpus_label(ledger.entries(), sampled)["assumptions"])
    assert "sampling that is charged" in stated
    assert "gradient" not in stated, "it trains nothing"


def test_a_label_says_what_batch_mates_may_move_and_what_is_kept_back_for_it(ledger):
    shared = {"passes": "shared", "gradient_slack": 2.0**-17, "most_in_company": 360}
    together = training(ledger, rests_on={"gradients": shared})
    assert "moves by at most 7.62e-06 of the clipping bound" in together
    assert "leaves room for 360 such moves" in together
    alone = training(ledger, rests_on={"gradients": {"passes": "alone"}}, exact_sums=True)
    assert "Every record passes through the model alone in training" in alone
    assert "7.62e-06" not in alone


def test_a_label_says_in_which_company_the_states_of_records_were_read(ledger):
    settings = {"vector_noise_multiplier": 2.0, "rests_on": {"states": {"passes": "alone"}}}
    event = GaussianEvent(noise_multiplier=2.0)
    made = release(ledger, asset="tickets/dataset_vectors", event=event, parameters=settings)
    stated = " ".join(corpus_label(ledger.entries(), made)["assumptions"])
    assert "in a pass that holds it alone" in stated


def test_a_card_says_which_rows_were_kept_and_by_what(tmp_path, ledger):
    reservation = histogram_and_corpus(ledger, content={"kept_rows": KEPT})
    publish(tmp_path / "corpus", ledger, reservation)
    assert corpus_problems(tmp_path / "corpus", ledger.entries()) == []
    card = (tmp_path / "corpus" / "README.md").read_text()
    assert "75.0% of 40 written rows were kept; rejected: 10 language." in card
    assert "By public rules that read no record: `rules`" in card
