"""What a label guarantees, what it reads, and how both are shown with awkward numbers."""

import json
import re
from decimal import Decimal

import polars as pl
import pytest

from dpsynth_assets.orchestration.metadata import spend_metadata
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.events import POST_PROCESSING, BoundedRangeEvent, GaussianEvent
from dpsynth_assets.privacy.ledger import PlannedRelease
from dpsynth_assets.report.audit_page import audit_page
from dpsynth_assets.report.audit_trail import AuditTrail, entries_of, spends_of
from dpsynth_assets.report.cards import (
    corpus_problems,
    dataset_card,
    privacy_statement,
    releases,
    statement_problems,
)
from dpsynth_assets.report.label import SCHEMA, cohort_label, corpus_label
from dpsynth_assets.report.label_texts import texts
from dpsynth_assets.report.pages import format_cell
from dpsynth_assets_tests.children import dpsynth
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms, sqlite_url

TOKENS = BoundedRangeEvent(eta=0.0944, count=200)  # ε = 3.32327997… at δ = 1e-6 under zcdp
FIRST, SECOND = GaussianEvent(noise_multiplier=2.2), GaussianEvent(noise_multiplier=5.0)
A, B = "tickets/a/corpus", "tickets/b/corpus"


def charge(ledger, asset, event, terms, **changes):
    plan = [PlannedRelease(A, FIRST)] if terms.accountant == "tight" else None
    reservation = ledger.reserve(make_request(asset=asset, event=event, **changes), terms, plan)
    ledger.commit(reservation, artifact_digest="d", artifact_uri="u")
    return reservation


def ledger_shown(tmp_path):
    return dpsynth("ledger", "show", env={"DPSYNTH_LEDGER_URL": sqlite_url(tmp_path)}).output


def statement_of(ledger, label):
    facts = {"releases": releases(ledger.entries(), label), "ledger_ok": True}
    return privacy_statement(label, facts)


def after(text, before):
    """Numbers that stand right behind `before` in a text."""
    found = re.findall(re.escape(before) + r"(\d[0-9.e+-]*)", text)
    return [Decimal(number.rstrip(".")) for number in found]


def test_a_card_and_a_statement_show_no_number_below_the_label(ledger):
    reservation = charge(ledger, A, TOKENS, make_terms(epsilon=4.0))
    label = corpus_label(ledger.entries(), reservation.id)
    whole = cohort_label(ledger.entries(), "tickets")
    exact = Decimal(repr(label["guarantee"]["epsilon"]))
    for text in (
        dataset_card(label, columns=["text"], rows=3),
        statement_of(ledger, whole),
        spend_metadata(ledger, reservation, make_terms(epsilon=4.0))["dpsynth/in_words"],
    ):
        shown = [*after(text, "ε = "), *after(text, "-DP: (")]
        assert all(number >= exact for number in shown)
        profile = "".join(line for line in text.splitlines() if "privacy profile" in line)
        points = re.findall(r"\(([0-9.]+), ([0-9.]+e[-+]\d+)\)", profile)
        profiled = {p["epsilon"]: p["delta"] for p in label["guarantee"]["privacy_profile"]}
        for epsilon, delta in points:
            assert Decimal(delta) >= Decimal(repr(profiled[float(epsilon)]))
    assert "ε = 3.33 " in dataset_card(label, columns=["text"], rows=3)


def test_commands_and_pages_show_no_number_below_the_ledger(ledger, tmp_path):
    charge(ledger, A, TOKENS, make_terms(epsilon=4.0))
    spend = ledger.spend("tickets")
    spent, left = Decimal(repr(spend.epsilon)), Decimal(repr(spend.remaining_epsilon))
    shown = ledger_shown(tmp_path)
    cells = [Decimal(cell) for cell in re.findall(r"\b\d\.\d{2,}\b", shown)]
    assert spent.quantize(Decimal("1e-2"), "ROUND_CEILING") in cells
    assert all(cell >= spent or cell <= left for cell in cells)
    spends = spends_of(ledger, entries_of(ledger.entries(), "tickets"))
    told = {"cohort": "tickets", "ledger_entries": 2, "ledger_head": ""}
    page = audit_page(AuditTrail(**told, spends=spends, files=(), findings=()))
    assert ">3.33<" in page
    assert ">0.676<" in page
    assert "3.32" not in page


@pytest.mark.parametrize(("value", "shown"), [(3.32328, "3.33"), (0.0499999999, "0.05")])
def test_the_report_shows_bounds_rounded_up(value, shown):
    assert format_cell("epsilon", value) == shown
    assert format_cell("delta", 7.103e-2) == "0.0711"


def test_a_cohort_states_what_is_guaranteed_and_what_was_spent(ledger):
    charge(ledger, A, FIRST, make_terms(epsilon=4.0))
    label = cohort_label(ledger.entries(), "tickets")
    spent = epsilon_of([FIRST], 1e-6, "zcdp")
    assert label["schema"] == SCHEMA == "dpsynth/privacy-label/3"
    assert label["guarantee"]["epsilon"] == label["cohort"]["epsilon_guaranteed"] == 4.0
    assert label["guarantee"]["basis"].startswith("a filter")
    assert label["guarantee"]["spent"]["epsilon"] == label["cohort"]["epsilon"] == spent
    assert label["guarantee"]["spent"]["is"] == texts()["reading"]
    text = statement_of(ledger, label)
    assert "ε = 4 at δ = 1e-06 for everything charged to the cohort" in text
    assert "odometer" in text


def test_a_plan_guarantees_what_may_follow_beside_the_curve_of_its_charged_copies(ledger):
    terms = make_terms(epsilon=9.0, accountant="tight")
    plan = [PlannedRelease(A, FIRST), PlannedRelease(B, SECOND)]
    ledger.reserve(make_request(asset=A, event=FIRST), terms, plan)
    stated = cohort_label(ledger.entries(), "tickets")["guarantee"]
    assert stated["spent"]["epsilon"] == epsilon_of([FIRST, SECOND], 1e-6, "tight")
    assert stated["epsilon"] == ledger.spend("tickets").guaranteed_epsilon
    assert stated["spent"]["epsilon"] < stated["epsilon"] <= 9.0
    assert stated["spent"]["gaussian_dp_mu"] == pytest.approx((2.2**-2 + 5**-2) ** 0.5)
    assert "what is guaranteed" not in stated["basis"]


def test_a_label_and_a_statement_tell_days_and_no_finer_time(ledger):
    """Two charges lie as far apart as the private stage between them took."""
    charge(ledger, A, FIRST, make_terms())
    label = cohort_label(ledger.entries(), "tickets")
    times = re.compile(r"\d\d:\d\d")
    assert re.search(r"\| \d{4}-\d\d-\d\d \|", statement_of(ledger, label))
    for text in (json.dumps(label), statement_of(ledger, label)):
        assert not times.search(text)


def test_a_switch_of_accountants_doubles_delta_wherever_it_is_stated(ledger, tmp_path):
    """From one accountant to the other, which rule was the last may depend on what came out."""
    first = charge(ledger, A, FIRST, make_terms(accountant="tight"))
    before = corpus_label(ledger.entries(), first.id)
    second = charge(ledger, B, SECOND, make_terms())
    label = corpus_label(ledger.entries(), second.id)
    whole = cohort_label(ledger.entries(), "tickets")
    assert before["guarantee"]["delta"] == 1e-6
    for told in (label, whole):
        assert told["guarantee"]["delta"] == told["cohort"]["delta"] == 2e-6
        assert told["guarantee"]["delta_is_doubled"] == texts()["doubled"]
        assert "twice" in told["composition"]["rule"]
        assert "gaussian_dp_mu" not in json.dumps(told)
    assert whole["guarantee"]["epsilon"] == make_terms().epsilon
    single = epsilon_of([SECOND], 1e-6, "zcdp")
    assert label["guarantee"]["epsilon"] == single
    card, statement = dataset_card(label, columns=["text"], rows=1), statement_of(ledger, whole)
    for text in (card, statement):
        assert "at δ = 2e-06" in text
        assert "at δ = 1e-06" not in text
    metadata = spend_metadata(ledger, second, make_terms())
    assert metadata["dpsynth/delta"] == 2e-6
    assert metadata["dpsynth/guaranteed_by"] == "plan, then filter"
    assert "2e-06)-DP" in metadata["dpsynth/in_words"]
    shown = ledger_shown(tmp_path)
    assert "2e-06" in shown


def test_the_profile_is_doubled_with_delta(ledger):
    charge(ledger, A, FIRST, make_terms(accountant="tight"))
    alone = cohort_label(ledger.entries(), "tickets")["guarantee"]["spent"]["privacy_profile"]
    charge(ledger, B, GaussianEvent(noise_multiplier=1e6), make_terms())
    both = cohort_label(ledger.entries(), "tickets")["guarantee"]["spent"]["privacy_profile"]
    pairs = zip(both, alone, strict=True)
    assert all(now["delta"] >= min(1.0, 2 * then["delta"]) for now, then in pairs)


def test_a_free_release_under_a_plan_is_no_switch(ledger):
    charge(ledger, A, POST_PROCESSING, make_terms(accountant="tight"))
    charge(ledger, B, SECOND, make_terms())
    assert cohort_label(ledger.entries(), "tickets")["guarantee"]["delta"] == 1e-6


def test_what_another_version_published_is_to_be_published_again(ledger, tmp_path):
    reservation = charge(ledger, A, FIRST, make_terms())
    labels = (
        (corpus_label(ledger.entries(), reservation.id), corpus_problems),
        (cohort_label(ledger.entries(), "tickets"), statement_problems),
    )
    for label, problems in labels:
        folder = tmp_path / problems.__name__
        (folder / "data").mkdir(parents=True)
        pl.DataFrame({"text": ["a letter"]}).write_parquet(folder / "data" / "rows.parquet")
        label["schema"] = "dpsynth/privacy-label/1"
        (folder / "privacy_label.json").write_text(json.dumps(label))
        [problem] = problems(folder, ledger.entries())
        assert "expected dpsynth/privacy-label/3" in problem
        assert "got dpsynth/privacy-label/1 by dpsynth_assets" in problem
        assert "Publish again, at no cost." in problem
