"""A mechanism is paid for before it reads, runs once for its payment, and is reused for nothing."""

import polars as pl
import pytest

from dpsynth_assets.assets.mechanism import Drawn, release_once
from dpsynth_assets.privacy.errors import BudgetExceededError, UnaccountedReleaseError
from dpsynth_assets.privacy.events import BoundedRangeEvent, GaussianEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import BudgetTerms, Ledger, ReleaseRequest
from dpsynth_assets.privacy.release import Cost
from dpsynth_assets.privacy.units import NeighboringRelation, PrivacyUnit
from dpsynth_assets.resources.release_store import ReleaseStore

EVENT = BoundedRangeEvent(eta=0.1, count=100)
TERMS = BudgetTerms(
    epsilon=8.0,
    delta=1e-6,
    accountant="zcdp",
    relation=NeighboringRelation.ADD_REMOVE,
    unit=PrivacyUnit(),
    accepts_ex_post=True,
)


def request(**changes):
    fields = {
        "cohort": "tickets",
        "dataset": "tickets",
        "asset": "tickets/mean/candidate_corpus",
        "mechanism": "mean",
        "guarantee": GuaranteeType.DP,
        "event": EVENT,
        "parameters": {},
        "code_version": "1",
        "data_version": "1",
    }
    return ReleaseRequest(**(fields | changes))


@pytest.fixture
def ledger(tmp_path):
    return Ledger(f"sqlite:///{tmp_path / 'ledger' / 'ledger.sqlite'}")


@pytest.fixture
def store(tmp_path):
    return ReleaseStore(root=str(tmp_path / "releases"))


class Mechanism:
    """Counts its draws; each draws another value."""

    def __init__(self, ledger, cost=None):
        self.ledger, self.draws = ledger, 0
        self.cost = cost or Cost(guarantee=GuaranteeType.DP, event=EVENT)

    def __call__(self, reservation):
        assert self.ledger.is_open(reservation.id), "drawn before it was paid for"
        self.draws += 1
        rows = pl.DataFrame({"text": [f"draw {self.draws}"]})
        return Drawn(facts={"draw": self.draws}, rows=rows, cost=self.cost)


def run(ledger, store, draw, asked=None):
    return release_once(
        ledger=ledger, store=store, request=asked or request(), terms=TERMS, plan=(), draw=draw
    )


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
    assert spent(ledger) == paid > 0


def test_new_release_name_draws_afresh_and_pays_again(ledger, store):
    draw = Mechanism(ledger)
    run(ledger, store, draw)
    paid = spent(ledger)
    again = run(ledger, store, draw, request(release="2"))
    assert draw.draws == 2
    assert not again.reservation.reused
    assert spent(ledger) > paid


def test_over_budget_refuses_before_anything_is_drawn(ledger, store):
    draw = Mechanism(ledger)
    with pytest.raises(BudgetExceededError, match="tickets"):
        run(ledger, store, draw, request(event=GaussianEvent(noise_multiplier=0.1)))
    assert draw.draws == 0
    assert spent(ledger) == 0


def test_cost_other_than_what_was_charged_is_discarded_and_stays_charged(ledger, store):
    cheap = Cost(guarantee=GuaranteeType.DP, event=BoundedRangeEvent(eta=0.1, count=50))
    with pytest.raises(UnaccountedReleaseError, match="discarded"):
        run(ledger, store, Mechanism(ledger, cost=cheap), request())
    assert spent(ledger) > 0
    assert not any(store.folder("x").parent.glob("*"))


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

    def die(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            run(ledger, store, draw)
    paid = spent(ledger)
    stored = run(ledger, store, draw)
    assert draw.draws == 1
    assert stored.facts == {"draw": 1}
    assert spent(ledger) == paid


def test_ex_post_value_without_its_realised_bound_is_drawn_again(ledger, store, monkeypatch):
    cost = Cost(guarantee=GuaranteeType.EX_POST, ex_post_epsilon=1.5)
    draw = Mechanism(ledger, cost=cost)
    asked = request(guarantee=GuaranteeType.EX_POST, event=None)

    def die(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            run(ledger, store, draw, asked)
    run(ledger, store, draw, asked)
    assert draw.draws == 2
    assert ledger.spend("tickets", TERMS).ex_post_epsilon_max == pytest.approx(1.5)
