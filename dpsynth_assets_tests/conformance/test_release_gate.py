"""Law of the release gate: neighbours decide alike about every candidate, since no record is read.

The planted bug is a gate that compares with private text, as before 0.2.0: the law notices it.
"""

import random
import types

import polars as pl
import pytest

from dpsynth_assets.attacks.overlap import verbatim_share
from dpsynth_assets.orchestration.checks import GATE, PAID_FOR, Candidate, evaluate_conditions
from dpsynth_assets.orchestration.resources.stores import SensitiveStore
from dpsynth_assets.privacy.events import POST_PROCESSING
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.releases.store import StoredReleases
from dpsynth_assets.sensitive.scored_source import ScoredSource
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms, sqlite_url
from dpsynth_assets_tests.stored import write_records

OTHERS = [f"an ordinary letter number {i} about trains and delays in the city" for i in range(60)]
RECORD = (
    "hello, my claim number was lost by the clinic on the third of may and nobody ever called me "
    "back about it although i asked them four times in writing, regards"
)
CANARY = "ZK4Q-99XM-B2"
PUBLIC = ["mild weather", "trains and delays in the city"]
TERMS = make_terms()


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


def gate(spec, rows, ledger):
    """The product's gate."""
    return {name: c.holds for name, c in evaluate_conditions(spec, TERMS, rows, ledger).items()}


def comparing_gate(spec, rows, ledger):
    """The planted bug: it looks for copied spans in the records of this installation."""
    seen = ScoredSource(store=SensitiveStore(), dataset=spec.name)
    copies = verbatim_share(rows.rows["text"].to_list(), seen, PUBLIC)
    return gate(spec, rows, ledger) | {"no_copied_span": not copies}


@pytest.fixture
def homes(tmp_path, monkeypatch):
    """Two installations whose records differ in one; no gate may tell them apart."""
    found = []
    for name, last in (("one", RECORD), ("other", "a letter about nothing at all")):
        texts = [*OTHERS, last]
        ids = [str(number) for number in range(len(texts))]
        table = {"record_id": ids, "unit_id": ids, "text": texts, "label": [""] * len(texts)}
        monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / name))
        write_records(SensitiveStore(), "tickets", "source", pl.DataFrame(table))
        found.append(tmp_path / name)
    return found


def differing(decide, homes, spec, ledger, charged, monkeypatch):
    """How many candidates the two installations decide about differently."""
    decided = []
    for home in homes:
        monkeypatch.setenv("DPSYNTH_HOME", str(home))
        decided.append([decide(spec, rows, ledger) for rows in charged])
    return sum(one != other for one, other in zip(*decided, strict=True))


def test_neighbours_decide_alike_about_every_candidate(homes, spec, ledger, charged, monkeypatch):
    assert differing(gate, homes, spec, ledger, charged, monkeypatch) == 0


def test_a_gate_that_decides_by_private_text_is_noticed(homes, spec, ledger, charged, monkeypatch):
    assert differing(comparing_gate, homes, spec, ledger, charged, monkeypatch) >= 10


def test_the_gate_still_holds_back_what_it_can_see_without_a_record(spec, ledger, charged):
    held = [
        name for rows in charged for name, passed in gate(spec, rows, ledger).items() if not passed
    ]
    # Without a row nothing names the release.
    assert set(held) == {"corpus_not_empty", "no_canary", PAID_FOR}
    assert held.count(PAID_FOR) == 1


def test_what_a_check_shows_quotes_no_row_and_no_canary(spec, ledger, charged):
    for rows in charged:
        conditions = evaluate_conditions(spec, TERMS, rows, ledger)
        assert set(conditions) == set(GATE)
        shown = " ".join(text for c in conditions.values() for text in c.shown().values())
        assert all(condition.expected and condition.observed for condition in conditions.values())
        assert CANARY.lower() not in shown.lower()
        assert not any(text in shown for text in rows.rows["text"].to_list() if len(text) > 4)
