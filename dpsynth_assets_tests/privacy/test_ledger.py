"""Laws of the ledger: what counts as spent, what is reused, and what survives a crash or a race."""

import stat
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest

from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.directed_rounding import rounded_down
from dpsynth_assets.privacy.errors import BudgetExceededError, LedgerIntegrityError, PrivacyError
from dpsynth_assets.privacy.events import DiscreteLaplaceEvent, GaussianEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType, NeighboringRelation, PrivacyUnit
from dpsynth_assets.privacy.ledger import Ledger, Reservation
from dpsynth_assets.privacy.ledger.admission import remaining
from dpsynth_assets_tests.privacy.ledger_cases import (
    HALF_RHO,
    make_request,
    make_terms,
    release,
    sqlite_file,
    sqlite_url,
)


def test_a_committed_release_is_reused_at_no_cost(ledger):
    first = release(ledger)
    again = ledger.reserve(make_request(run_id="a retry"), make_terms())
    assert (again.id, again.reused) == (first, True)
    assert (again.artifact_digest, again.artifact_uri) == ("d1", "corpus.parquet")
    assert ledger.spend("tickets").rho == Fraction(1, 2)
    assert len(ledger.entries()) == 2


def test_an_uncommitted_reservation_is_charged_again(ledger):
    crashed = ledger.reserve(make_request(), make_terms())
    retried = ledger.reserve(make_request(), make_terms())
    assert not retried.reused
    assert ledger.spend("tickets").rho == 1
    assert [r.id for r in ledger.pending(make_request())] == [crashed.id, retried.id]


def test_the_release_that_was_committed_first_is_the_one_reused_for_good(ledger):
    slow, fast = (ledger.reserve(make_request(), make_terms()) for _ in range(2))
    ledger.commit(fast, artifact_digest="first", artifact_uri="u")
    ledger.commit(slow, artifact_digest="second", artifact_uri="u")
    again = ledger.reserve(make_request(), make_terms())
    assert (again.id, again.artifact_digest) == (fast.id, "first")
    assert ledger.spend("tickets").rho == 1


def test_a_pending_reservation_can_be_completed_without_a_new_charge(ledger):
    ledger.reserve(make_request(), make_terms())
    (pending,) = ledger.pending(make_request())
    ledger.commit(pending, artifact_digest="d1", artifact_uri="u")
    assert ledger.pending(make_request()) == []
    assert ledger.reserve(make_request(), make_terms()).reused
    assert ledger.spend("tickets").rho == Fraction(1, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"asset": "tickets/other"},
        {"mechanism": "median"},
        {"event": GaussianEvent(noise_multiplier=2.0)},
        {"parameters": {"clip_bound": 11.0}},
        {"code_version": "2"},
        {"data_version": "2026-02"},
        {"release": "2"},
    ],
)
def test_any_difference_of_a_release_pays_again(ledger, change):
    release(ledger)
    request = make_request(**change)
    assert not ledger.reserve(request, make_terms()).reused
    spend = ledger.spend("tickets")
    assert spend.rho == Fraction(1, 2) + request.event.rho
    assert spend.epsilon == pytest.approx(epsilon_of([HALF_RHO, request.event], 1e-6, "zcdp"))


def test_the_order_of_parameters_is_no_difference(ledger):
    release(ledger, parameters={"a": 1, "b": 2})
    assert ledger.reserve(make_request(parameters={"b": 2, "a": 1}), make_terms()).reused


def test_over_budget_is_refused_with_what_is_left_and_nothing_is_appended(ledger):
    terms = make_terms(epsilon=6.0)
    release(ledger, terms)
    before = ledger.head()
    with pytest.raises(BudgetExceededError, match="would overspend cohort 'tickets'") as refusal:
        ledger.reserve(make_request(release="2"), terms)
    assert ledger.head() == before
    told = ledger.preview(make_request(release="2"), terms)
    assert told.refusal == str(refusal.value)
    left = rounded_down(remaining(6.0, told.spent_epsilon), ".2f")
    assert f"remaining ε={left} of 6.00 (δ=1e-06)" in told.refusal


def test_a_preview_spends_nothing(ledger):
    told = ledger.preview(make_request(), make_terms())
    assert told.admitted
    assert told.spent_epsilon == 0 < told.total_epsilon <= make_terms().epsilon
    assert ledger.entries() == []


def test_only_an_open_reservation_allows_reading(ledger):
    reservation = ledger.reserve(make_request(), make_terms())
    assert ledger.is_open(reservation.id)
    assert not ledger.is_open("forged")
    ledger.commit(reservation, artifact_digest="d1", artifact_uri="u")
    assert not ledger.is_open(reservation.id)


def test_a_commit_needs_a_reserve_and_names_one_artifact(ledger):
    forged = Reservation("forged", make_request())
    with pytest.raises(PrivacyError, match="Reserve first"):
        ledger.commit(forged, artifact_digest="d", artifact_uri="u")
    reservation = ledger.reserve(make_request(), make_terms())
    ledger.commit(reservation, artifact_digest="d", artifact_uri="u")
    ledger.commit(reservation, artifact_digest="d", artifact_uri="u")
    with pytest.raises(PrivacyError, match="new release name"):
        ledger.commit(reservation, artifact_digest="other", artifact_uri="u")
    assert len(ledger.entries()) == 2


def test_a_charge_beyond_floats_is_refused(ledger):
    huge = GaussianEvent(noise_multiplier=1e-200)
    with pytest.raises(BudgetExceededError):
        ledger.reserve(make_request(event=huge), make_terms(epsilon=1e300))


def test_rho_is_the_sum_over_all_reserves_rounded_up(ledger):
    events = [GaussianEvent(noise_multiplier=7.3), DiscreteLaplaceEvent(scale=11.1), HALF_RHO]
    for event in events:
        release(ledger, event=event)
    exact = sum((event.rho for event in events), Fraction(0))
    assert exact <= ledger.spend("tickets").rho <= exact + Fraction(3, 2**2200)


@pytest.mark.parametrize(
    ("name", "terms", "request_changes"),
    [
        ("delta", {"delta": 1e-5}, {}),
        ("relation", {"relation": NeighboringRelation.ZERO_OUT}, {}),
        ("privacy unit", {"unit": PrivacyUnit(column="customer", max_records=3)}, {}),
        ("dataset", {}, {"dataset": "other"}),
    ],
)
def test_what_composition_relies_on_is_fixed_by_the_first_entry(
    ledger, name, terms, request_changes
):
    release(ledger)
    with pytest.raises(PrivacyError, match=f"Restore {name}"):
        ledger.reserve(make_request(release="2", **request_changes), make_terms(**terms))
    assert len(ledger.entries()) == 2


def test_no_guarantee_and_no_event_are_refused(ledger):
    with pytest.raises(PrivacyError, match="Do not release"):
        ledger.reserve(make_request(guarantee=GuaranteeType.NONE), make_terms())
    for guarantee in (GuaranteeType.DP, GuaranteeType.SECRET):
        with pytest.raises(PrivacyError, match="infinite ε"):
            ledger.reserve(make_request(guarantee=guarantee, event=None), make_terms())
    assert ledger.entries() == []


def test_an_entry_restores_its_request_and_terms(ledger):
    terms = make_terms(public_facts=("label set", "n"))
    ledger.reserve(make_request(run_id="r"), terms)
    (entry,) = ledger.entries()
    assert entry.request() == make_request(run_id="r")
    assert entry.terms == terms
    assert ledger.spend("tickets").public_facts == ("label set", "n")


def test_the_ledger_file_is_its_owners_alone(tmp_path, ledger):
    release(ledger)
    file = sqlite_file(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_failure_while_the_lock_is_held_spends_nothing(ledger, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dpsynth_assets.privacy.ledger.database.Appender.append", fail)
    with pytest.raises(KeyboardInterrupt):
        ledger.reserve(make_request(), make_terms())
    monkeypatch.undo()
    assert ledger.entries() == []
    assert release(ledger)


def test_a_clock_that_goes_backwards_changes_no_sum_and_no_order(ledger):
    day, event = datetime(2026, 3, 8, tzinfo=UTC), GaussianEvent(noise_multiplier=7.3)
    for number in range(3):
        earlier = Ledger(ledger.url, clock=lambda number=number: day - number * timedelta(7))
        release(earlier, release=str(number), event=event)
    times = [entry.recorded_at for entry in ledger.entries()]
    assert times == sorted(times, reverse=True)
    assert [entry.seq for entry in ledger.entries()] == list(range(1, 7))
    assert ledger.verify().ok
    assert ledger.spend("tickets").rho >= 3 * event.rho
    assert ledger.reserve(make_request(release="1", event=event), make_terms()).reused


@pytest.mark.parametrize("content", [b"not a database " * 100, b"SQLite format 3\0" + b"x" * 5000])
def test_an_unreadable_ledger_gives_one_line(tmp_path, content):
    (tmp_path / "ledger").mkdir()
    sqlite_file(tmp_path).write_bytes(content)
    with pytest.raises(LedgerIntegrityError) as refusal:
        Ledger(sqlite_url(tmp_path))
    assert "\n" not in str(refusal.value)
    assert "backup" in str(refusal.value)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_ledger_that_dies_with_the_process_is_refused(url):
    with pytest.raises(PrivacyError, match="outlives the process"):
        Ledger(url)


def test_parameters_must_be_finite_json(ledger):
    for value in (float("nan"), object()):
        with pytest.raises(ValueError, match="Expected finite JSON"):
            ledger.reserve(make_request(parameters={"a": value}), make_terms())
    assert ledger.entries() == []
