"""A mechanism is paid for before it reads, runs once for its payment, and is reused for nothing."""

import contextlib
import threading
from functools import partial

import polars as pl
import pytest

from dpsynth_assets.files.whole import Room
from dpsynth_assets.methods.stages import StageRelease
from dpsynth_assets.orchestration.resources.stores import ReleaseStore, SensitiveStore
from dpsynth_assets.privacy.errors import (
    BudgetExceededError,
    LedgerIntegrityError,
    PrivacyError,
    UnaccountedReleaseError,
)
from dpsynth_assets.privacy.events import BoundedRangeEvent, GaussianEvent
from dpsynth_assets.privacy.guarantees import RESTS_ON, SELF_TEST, Cost, GuaranteeType, Release
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.releases.once import PublicInputError
from dpsynth_assets.releases.store import StoreUnavailableError
from dpsynth_assets.releases.waiting import UnagreedChargeError, paying_only
from dpsynth_assets.report.label_texts import assumptions
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms
from dpsynth_assets_tests.stored import release_once

EVENT = BoundedRangeEvent(eta=0.1, count=100)
TERMS = make_terms(accepts_ex_post=True)


def request(**changes):
    asset = "tickets/mean/candidate_corpus"
    return make_request(**{"asset": asset, "event": EVENT, "parameters": {}, **changes})


@pytest.fixture
def store(tmp_path):
    return ReleaseStore.at(str(tmp_path / "releases"))


@pytest.fixture
def sensitive(tmp_path):
    return SensitiveStore.at(str(tmp_path / "sensitive"))


class Killed(BaseException):
    """Stands for SIGKILL."""


@contextlib.contextmanager
def killed_at(monkeypatch, owner, name, instead=None):
    """What runs inside is killed in a method of a class, after what stands in its place."""

    def die(*arguments, **options):
        if instead is not None:
            instead(*arguments, **options)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, die)
        with pytest.raises(Killed):
            yield


class Mechanism:
    """Counts its draws; each draws another value."""

    def __init__(self, ledger, cost=None):
        self.ledger, self.draws = ledger, 0
        self.cost = cost or Cost(guarantee=GuaranteeType.DP, event=EVENT)

    def __call__(self, reservation):
        assert self.ledger.is_open(reservation.id), "drawn before it was paid for"
        self.draws += 1
        rows = pl.DataFrame({"text": [f"draw {self.draws}"]})
        return Release(value=StageRelease(facts={"draw": self.draws}, rows=rows), cost=self.cost)


def run(ledger, store, draw, asked=None, **more):
    given = {"ledger": ledger, "store": store, "terms": TERMS, "plan": (), "draw": draw}
    return release_once(request=asked or request(), **given, **more)


def spent(ledger):
    return ledger.spend("tickets", TERMS).epsilon


def test_same_request_returns_the_stored_value_and_pays_once(ledger, store):
    draw = Mechanism(ledger)
    first = run(ledger, store, draw)
    paid = spent(ledger)
    second = run(ledger, store, draw)
    assert draw.draws == 1
    assert second.reservation.reused
    assert second.facts == first.facts
    assert second.rows.equals(first.rows)
    assert second.digest == first.digest == store.digest(first.reservation.id)
    assert spent(ledger) == paid > 0
    another = run(ledger, store, draw, request(release="2"))
    assert not another.reservation.reused
    assert (draw.draws, another.digest != first.digest) == (2, True)
    assert spent(ledger) > paid


@pytest.mark.parametrize(
    ("edited", "named"),
    [
        ({"event": GaussianEvent(noise_multiplier=30.0)}, "the noise that the budget pays for"),
        ({"data_version": "another"}, "the version of the source"),
        ({"parameters": {"rows": 7}}, "`rows`"),
    ],
)
def test_an_edited_declaration_pays_again_and_the_log_names_what_was_edited(
    ledger, store, caplog, edited, named
):
    run(ledger, store, Mechanism(ledger))
    assert "paid for before" not in caplog.text
    asked = request(**edited)
    cost = Cost(guarantee=GuaranteeType.DP, event=asked.event)
    run(ledger, store, Mechanism(ledger, cost), asked)
    assert "paid for before as release" in caplog.text
    assert named in caplog.text
    caplog.clear()
    run(ledger, store, Mechanism(ledger), request(release="2"))
    run(ledger, store, Mechanism(ledger))
    assert "paid for before" not in caplog.text


def test_over_budget_refuses_before_anything_is_drawn(ledger, store):
    draw = Mechanism(ledger)
    with pytest.raises(BudgetExceededError, match="tickets"):
        run(ledger, store, draw, request(event=GaussianEvent(noise_multiplier=0.1)))
    assert draw.draws == 0
    assert spent(ledger) == 0
    run(ledger, store, draw)
    with pytest.raises(BudgetExceededError, match=r"the noise that the budget .* differed\."):
        run(ledger, store, draw, request(event=GaussianEvent(noise_multiplier=0.1)))
    assert draw.draws == 1


def test_nothing_is_charged_that_nobody_agreed_to_pay(ledger, store):
    draw = Mechanism(ledger)
    with (
        paying_only({"tickets/other/candidate_corpus"}),
        pytest.raises(UnagreedChargeError, match=r"Nothing was charged. Add --yes to pay."),
    ):
        run(ledger, store, draw)
    assert (ledger.entries(), draw.draws) == ([], 0)
    with paying_only({request().asset}):
        paid = run(ledger, store, draw)
    another = request(parameters={"inputs": {"public_language_model": "made anew"}})
    with paying_only(set()):
        assert run(ledger, store, draw).reservation.id == paid.reservation.id
        with pytest.raises(UnagreedChargeError, match="ε"):
            run(ledger, store, draw, another)
    assert (ledger.count_charges(), draw.draws) == (1, 1)
    with paying_only(None):
        run(ledger, store, draw, another)
    assert (ledger.count_charges(), draw.draws) == (2, 2)


def test_what_does_not_fit_on_a_disk_is_found_before_the_charge(ledger, store):
    draw = Mechanism(ledger)
    with pytest.raises(StoreUnavailableError, match="Nothing was charged: free space") as told:
        run(ledger, store, draw, prepare=lambda: Room(release=1 << 60))
    assert "\n" not in str(told.value)
    assert (ledger.entries(), draw.draws) == ([], 0)
    run(ledger, store, draw, prepare=Room)
    run(ledger, store, draw, prepare=lambda: Room(release=1 << 60))  # Reused: nothing is stored.
    assert draw.draws == 1


@pytest.mark.parametrize(
    "error", [FileNotFoundError("no such model"), ValueError("Expected a self-test that passes")]
)
def test_what_cannot_be_opened_or_fails_its_test_costs_nothing(ledger, store, error):
    def failing():
        raise error

    draw = Mechanism(ledger)
    with pytest.raises(PublicInputError, match=str(error)):
        run(ledger, store, draw, prepare=failing)
    assert (draw.draws, spent(ledger), len(ledger.entries())) == (0, 0, 0)


def test_models_are_opened_for_a_draw_alone(ledger, store):
    opened = []

    def prepare():
        opened.append(len(ledger.entries()))
        return Room()

    run(ledger, store, Mechanism(ledger), prepare=prepare)
    run(ledger, store, Mechanism(ledger), prepare=prepare)  # Reused.
    dear = request(event=GaussianEvent(noise_multiplier=0.1))
    with pytest.raises(BudgetExceededError):
        run(ledger, store, Mechanism(ledger), dear, prepare=prepare)
    assert opened == [0]


def test_cost_other_than_what_was_charged_is_discarded_and_stays_charged(ledger, store):
    cheap = Cost(guarantee=GuaranteeType.DP, event=BoundedRangeEvent(eta=0.1, count=50))
    with pytest.raises(UnaccountedReleaseError, match="discarded"):
        run(ledger, store, Mechanism(ledger, cost=cheap), request())
    assert spent(ledger) > 0
    assert not any(store.base.glob("*/facts.json"))


def test_crash_while_drawing_stays_charged_and_the_next_attempt_pays_again(ledger, store):
    def crash(reservation):
        raise MemoryError

    with pytest.raises(MemoryError):
        run(ledger, store, crash)
    once = spent(ledger)
    run(ledger, store, Mechanism(ledger))
    assert spent(ledger) > once > 0


def test_value_stored_by_a_run_that_died_before_its_commit_is_committed_not_redrawn(
    ledger, store, monkeypatch
):
    draw = Mechanism(ledger)
    with killed_at(monkeypatch, Ledger, "commit"):
        run(ledger, store, draw)
    paid = spent(ledger)
    stored = run(ledger, store, draw)
    assert draw.draws == 1
    assert stored.facts == {"draw": 1}
    assert spent(ledger) == paid


def test_a_stored_value_that_was_altered_is_not_reused(ledger, store):
    release = run(ledger, store, Mechanism(ledger))
    facts = store.folder(release.reservation.id) / "facts.json"
    facts.write_text(facts.read_text().replace("1", "7"))
    with pytest.raises(LedgerIntegrityError, match="altered"):
        run(ledger, store, Mechanism(ledger))


def test_a_self_test_is_kept_with_the_charge_and_stated_by_the_label(ledger, store):
    asked = request(parameters={"logit_slack": 0.0, RESTS_ON: {"before": "x"}})
    made_by = {"engine": "vllm 0.32.0", "device": "a GPU", "dtype": "bfloat16"}
    tested = {SELF_TEST: {"passed": True, "contexts": 128, "companies": 19, **made_by}}
    run(ledger, store, Mechanism(ledger), asked, prepare=Room, rests_on=lambda: tested)
    (charge, _) = ledger.entries()
    assert charge.parameters[RESTS_ON] == {"before": "x", **tested}
    (stated,) = [s for s in assumptions([charge]) if "self-test" in s]
    assert "128 public contexts in 19 arrangements" in stated
    assert "(vllm 0.32.0, a GPU, bfloat16)" in stated
    again = run(ledger, store, Mechanism(ledger), asked, prepare=Room, rests_on=pytest.fail)
    assert again.reservation.reused  # It is no part of what a release is known by.


def test_the_first_value_stored_under_a_charge_is_the_release(ledger, store):
    def draw(reservation):
        store.save(reservation.id, {"draw": "of a run that was taken for dead"})
        return Mechanism(ledger)(reservation)

    made = run(ledger, store, draw)
    assert made.facts == {"draw": "of a run that was taken for dead"}
    assert ledger.count_charges() == 1
    assert ledger.entries()[-1].artifact_digest == store.digest(made.reservation.id)


def resumed(ledger, store, sensitive, draw, prepare=Room, **changes):
    passes = partial(sensitive.passes, "tickets")
    return run(ledger, store, draw, request(**changes), passes=passes, prepare=prepare)


def killed(ledger, store, sensitive, draws=lambda _: None, **changes):
    """A draw that is killed after what it draws; returns what it was charged for."""
    charged = []

    def draw(reservation):
        charged.append(reservation)
        draws(reservation)
        raise Killed

    with pytest.raises(Killed):
        resumed(ledger, store, sensitive, draw, **changes)
    return charged[0]


def test_a_killed_run_is_continued_under_its_own_charge(ledger, store, sensitive):
    kept = {"documents": [1]}
    killed(ledger, store, sensitive, lambda r: sensitive.passes("tickets", r).save(0, kept))
    paid, begun = spent(ledger), []

    def goes_on(reservation):
        begun.append(sensitive.passes("tickets", reservation).load(0))
        return Mechanism(ledger)(reservation)

    release = resumed(ledger, store, sensitive, goes_on)
    assert begun == [kept]
    assert spent(ledger) == paid > 0
    assert len(ledger.entries()) == 2
    assert not sensitive.passes("tickets", release.reservation).begun


def test_what_a_continued_run_lacks_is_said_in_public_and_its_charge_is_kept(
    ledger, store, sensitive
):
    def missing():
        raise FileNotFoundError("no such model")

    killed(ledger, store, sensitive)
    paid, draw = spent(ledger), Mechanism(ledger)
    with pytest.raises(PublicInputError, match="no such model"):
        resumed(ledger, store, sensitive, draw, prepare=missing)
    assert draw.draws == 0
    resumed(ledger, store, sensitive, draw)
    assert (draw.draws, spent(ledger)) == (1, paid)


def test_another_request_does_not_continue_a_killed_run(ledger, store, sensitive):
    killed(ledger, store, sensitive)
    paid = spent(ledger)
    resumed(ledger, store, sensitive, Mechanism(ledger), parameters={"temperature": 2.0})
    assert spent(ledger) > paid


def test_what_a_killed_run_kept_is_gone_so_another_draw_is_another_release(
    ledger, store, sensitive
):
    """Kept draws were reported: other draws under their charge would be paid for by nobody."""
    charged = killed(ledger, store, sensitive, lambda r: sensitive.passes("tickets", r).save(0, {}))
    sensitive.passes("tickets", charged).remove()  # As `dpsynth purge --unfinished`.
    resumed(ledger, store, sensitive, Mechanism(ledger))
    assert ledger.count_charges() == 2


EX_POST = {"guarantee": GuaranteeType.EX_POST, "event": None}


def test_an_ex_post_value_is_committed_with_its_own_cost(ledger, store, sensitive, monkeypatch):
    draw = Mechanism(ledger, Cost(guarantee=GuaranteeType.EX_POST, ex_post_epsilon=1.25))
    with killed_at(monkeypatch, Ledger, "commit"):
        resumed(ledger, store, sensitive, draw, **EX_POST)
    released = resumed(ledger, store, sensitive, draw, **EX_POST)
    assert (draw.draws, released.facts) == (1, {"draw": 1})
    assert [entry.ex_post_epsilon for entry in ledger.entries()] == [None, 1.25]
    assert not list((sensitive.base / "tickets" / "passes").iterdir())


def test_a_cost_never_labels_another_value(ledger, store, sensitive, monkeypatch):
    """Two runs drew under one charge: the cost of the one is not that of the other's value."""
    draw = Mechanism(ledger, Cost(guarantee=GuaranteeType.EX_POST, ex_post_epsilon=1.25))
    save = ReleaseStore.save

    def another_run_stores(self, reservation, facts, rows, files):
        save(self, reservation, {"draw": "of another run"}, rows, files)

    with killed_at(monkeypatch, ReleaseStore, "save", another_run_stores):
        resumed(ledger, store, sensitive, draw, **EX_POST)
    assert resumed(ledger, store, sensitive, draw, **EX_POST).facts == {"draw": 2}
    assert ledger.count_charges() == 2


def test_an_ex_post_value_whose_cost_lies_elsewhere_is_drawn_anew(ledger, store, sensitive):
    killed(ledger, store, sensitive, lambda r: store.save(r.id, {"draw": 0}), **EX_POST)
    draw = Mechanism(ledger, Cost(guarantee=GuaranteeType.EX_POST, ex_post_epsilon=1.0))
    assert resumed(ledger, store, sensitive, draw, **EX_POST).facts == {"draw": 1}


def test_the_lock_is_the_ledgers_whatever_store_a_value_goes_to(ledger, sensitive, tmp_path):
    """A run into another store never takes over the charge of a run that is alive."""
    one, two = (ReleaseStore.at(str(tmp_path / name)) for name in ("one", "two"))
    drawing, second = threading.Event(), []

    def slow(reservation):
        drawing.set()
        thread.join(1.0)  # The other run waits for the lock all the while.
        second.append(thread.is_alive())
        return Mechanism(ledger)(reservation)

    def other():
        drawing.wait(30)
        with contextlib.suppress(PrivacyError):  # The value lies in the other store.
            resumed(ledger, two, sensitive, Mechanism(ledger))

    thread = threading.Thread(target=other)
    thread.start()
    resumed(ledger, one, sensitive, slow)
    thread.join(60)
    assert second == [True]
    assert ledger.count_charges() == 1
    assert not list((tmp_path / "two").glob("*/facts.json"))
