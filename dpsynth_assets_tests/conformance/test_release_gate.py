"""Law of the release gate: neighbours decide alike about every candidate, since no record is read.

The planted bug lets the comparison with private text decide, as a gate did before 0.2.0: the law
notices it. About 3 s of CPU.
"""

import random
import types

import polars as pl
import pytest

from dpsynth_assets.checks import (
    GATE,
    NO_COPIED_SPAN,
    Candidate,
    evaluate_conditions,
    evaluate_gate,
)
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.privacy.events import POST_PROCESSING
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.releases.store import StoredReleases
from dpsynth_assets.report.gate_conditions import PAID_FOR
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms, sqlite_url

OTHERS = [f"an ordinary letter number {i} about trains and delays in the city" for i in range(60)]
RECORD = (
    "hello, my claim number was lost by the clinic on the third of may and nobody ever called me "
    "back about it although i asked them four times in writing, regards"
)
CANARY = "ZK4Q-99XM-B2"
PUBLIC = pl.DataFrame({"text": ["mild weather", "trains and delays in the city"]})
TERMS = make_terms()


class Store:
    """Records of one dataset; counts how often they are read."""

    def __init__(self, texts):
        self.texts, self.reads = texts, 0

    def counted_internal(self, *_, **__):
        self.reads += 1
        units = [str(number) for number in range(len(self.texts))]
        return PrivateInputs(records=pl.DataFrame({"text": self.texts, "unit_id": units}))


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    return Ledger(sqlite_url(tmp_path_factory.mktemp("gate")))


@pytest.fixture(scope="module")
def charged(ledger, tmp_path_factory):
    return candidates(ledger, StoredReleases(tmp_path_factory.mktemp("releases")))


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    canaries = tmp_path_factory.mktemp("canaries") / "canaries.txt"
    canaries.write_text(CANARY + "\n")
    declared = types.SimpleNamespace(canaries=str(canaries))
    return types.SimpleNamespace(name="tickets", account="tickets", evaluation=declared)


def sealed(ledger, store, number, texts):
    """A candidate of these texts, written from what was released, stored and committed."""
    rows = pl.DataFrame(
        {"text": texts, "label": [""] * len(texts)}, schema={"text": pl.String, "label": pl.String}
    )
    request = make_request(event=POST_PROCESSING, release=str(number))
    reservation = ledger.reserve(request, TERMS)
    digest, place = store.save(reservation.id, {}, rows)
    ledger.commit(reservation, artifact_digest=digest, artifact_uri=place)
    named = rows.with_columns(pl.lit(reservation.id).alias("reservation"))
    return Candidate(named, request.asset, store)


def candidates(ledger, store):
    """Candidates that copy the differing record in many ways, and some that copy nothing."""
    draw = random.Random(0)
    words = RECORD.split()
    texts = [
        [RECORD],
        [RECORD.upper()],
        ["", " "],
        [],
        [f"my code is {CANARY.lower()}"],
        [OTHERS[3]],
    ]
    for length in range(1, len(words) + 1):
        start = draw.randrange(len(words) - length + 1)
        texts.append(["a train", " ".join(words[start : start + length])])
    texts += [[" ".join(draw.sample(words, len(words))), draw.choice(OTHERS)] for _ in range(10)]
    return [sealed(ledger, store, number, rows) for number, rows in enumerate(texts)]


NEIGHBOURS = {
    "add-remove": (OTHERS, [*OTHERS, RECORD]),
    "zero-out": ([*OTHERS, ""], [*OTHERS, RECORD]),
    "replace-one": ([*OTHERS, "a letter about nothing at all"], [*OTHERS, RECORD]),
}


def differing(spec, ledger, charged, pair, **asked):
    """Candidates about which the two datasets decide differently."""
    found = []
    for rows in charged:
        stores = [Store(texts) for texts in pair]
        decided = [
            evaluate_gate(spec, TERMS, rows, PUBLIC, ledger, store, **asked) for store in stores
        ]
        if decided[0] != decided[1] or (not asked and any(store.reads for store in stores)):
            found.append(rows)
    return found


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_neighbours_decide_alike_about_every_candidate(spec, ledger, charged, relation):
    assert differing(spec, ledger, charged, NEIGHBOURS[relation]) == []


def test_the_gate_still_holds_back_what_it_can_see_without_a_record(spec, ledger, charged):
    held = [
        name
        for rows in charged
        for name, passed in evaluate_gate(spec, TERMS, rows, None, ledger).items()
        if not passed
    ]
    # Without a row nothing names the release.
    assert set(held) == {"corpus_not_empty", "no_canary", PAID_FOR}
    assert held.count(PAID_FOR) == 1
    assert NO_COPIED_SPAN not in GATE


def test_what_a_check_shows_quotes_no_row_and_no_canary(spec, ledger, charged):
    for rows in charged:
        conditions = evaluate_conditions(spec, TERMS, rows, ledger)
        assert set(conditions) == set(GATE)
        shown = " ".join(text for c in conditions.values() for text in c.shown().values())
        assert all(condition.expected and condition.observed for condition in conditions.values())
        assert CANARY.lower() not in shown.lower()
        assert not any(text in shown for text in rows.texts if len(text) > 4)


def test_a_gate_that_decides_by_private_text_is_noticed(spec, tmp_path):
    """The planted bug: each dataset with a ledger of its own, as neighbours would have."""
    notices = 0
    ledgers = [Ledger(sqlite_url(tmp_path / name)) for name in ("with", "without")]
    charged = [candidates(ledger, StoredReleases(tmp_path / "releases")) for ledger in ledgers]
    for first, second in zip(*charged, strict=True):
        decided = [
            evaluate_gate(
                spec, TERMS, rows, PUBLIC, ledger, Store(texts), deciding=(NO_COPIED_SPAN,)
            )
            for rows, ledger, texts in zip(
                (first, second), ledgers, NEIGHBOURS["add-remove"], strict=True
            )
        ]
        notices += decided[0] != decided[1]
    assert notices >= 10
    # Nothing is answered without a line of the ledger.
    asked = sum(1 for rows in charged[0] if _may_be_asked(spec, ledgers[0], rows))
    assert ledgers[0].spend("tickets").gate_decisions == asked


def _may_be_asked(spec, ledger, rows):
    return all(evaluate_gate(spec, TERMS, rows, None, ledger).values())
