"""Decisions of a release gate in the ledger: recorded first, counted, sealed, and free."""

import csv
import io
import json
import re
import sqlite3

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from dpsynth_assets.cli.ledger import app
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import Checkpoint, GateQuestion, Ledger
from dpsynth_assets.privacy.ledger.export import history, to_csv
from dpsynth_assets.privacy.ledger.triggers import widening
from dpsynth_assets_tests.privacy.ledger_cases import (
    edit,
    make_request,
    make_terms,
    release,
    sqlite_file,
    sqlite_url,
)


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request, tmp_path):
    if request.param == "sqlite":
        return Ledger(sqlite_url(tmp_path))
    return Ledger(request.getfixturevalue("postgres_url"))


def question(reservation, candidate="c1", **changes):
    fields = {
        "cohort": "tickets",
        "check": "no_copied_span",
        "candidate": candidate,
        "release": reservation,
        "code_version": "1",
    }
    return GateQuestion(**fields | changes)


def never():
    raise AssertionError("private text was read again")


@pytest.mark.parametrize("answer", [True, False])
def test_a_candidate_is_asked_about_once_and_its_answer_is_final(ledger, answer):
    asked = question(release(ledger))
    assert ledger.decision(asked) is None
    assert ledger.decide(asked, lambda: answer) is answer
    assert ledger.decide(asked, never) is answer
    assert ledger.decision(asked) is answer
    assert [entry.kind for entry in ledger.entries()] == ["reserve", "commit", "decision"]


def test_decisions_charge_nothing_and_are_counted_for_their_cohort(ledger):
    asked = release(ledger)
    other = release(ledger, cohort="mail", dataset="mail", asset="mail/mean/corpus")
    before = ledger.spend("tickets")
    for number, answer in enumerate([True, False, True]):
        ledger.decide(question(asked, f"c{number}"), lambda answer=answer: answer)
    ledger.decide(question(other, cohort="mail"), lambda: True)
    after = ledger.spend("tickets")
    assert (after.epsilon, after.rho) == (before.epsilon, before.rho)
    assert (after.releases, after.reserved_uncommitted) == (1, 0)
    assert (after.gate_decisions, ledger.spend("mail").gate_decisions) == (3, 1)
    decided = [entry for entry in ledger.entries("tickets") if entry.kind == "decision"]
    told = [(entry.parameters["count"], entry.parameters["outcome"]) for entry in decided]
    assert told == [(1, "pass"), (2, "hold"), (3, "pass")]
    assert ledger.verify().ok
    assert release(ledger, release="2")  # The chain goes on behind a decision.
    assert ledger.verify().ok


def test_an_answer_is_in_the_ledger_before_it_is_told(tmp_path):
    ledger = Ledger(sqlite_url(tmp_path))
    asked = question(release(ledger))

    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    book = ledger.decision
    ledger.decision = lambda q: None if book(q) is None else die()
    with pytest.raises(Killed):
        ledger.decide(asked, lambda: False)
    assert Ledger(sqlite_url(tmp_path)).decide(asked, never) is False


def test_an_answer_that_fails_records_nothing(ledger):
    asked = question(release(ledger))
    with pytest.raises(ZeroDivisionError):
        ledger.decide(asked, lambda: 1 / 0)
    assert ledger.decision(asked) is None


def test_two_processes_that_ask_at_once_get_the_first_answer(tmp_path):
    ledger = Ledger(sqlite_url(tmp_path))
    asked = question(release(ledger))

    def slow():
        Ledger(sqlite_url(tmp_path)).decide(asked, lambda: False)
        return True

    assert ledger.decide(asked, slow) is False
    assert ledger.spend("tickets").gate_decisions == 1


def test_a_candidate_that_nobody_paid_for_is_not_asked_about(ledger):
    of_another_cohort = release(ledger, cohort="mail", dataset="mail", asset="mail/mean/corpus")
    for reservation in ("unknown", of_another_cohort):
        with pytest.raises(PrivacyError, match="charged to cohort 'tickets'"):
            ledger.decide(question(reservation), never)


def test_a_checkpoint_keeps_decisions(tmp_path, monkeypatch):
    monkeypatch.setattr("dpsynth_assets.privacy.ledger.store.ENTRIES_BETWEEN", 2)
    kept = Checkpoint(tmp_path / "ledger", sqlite_url(tmp_path))
    ledger = Ledger(sqlite_url(tmp_path), checkpoint=kept)
    asked = question(release(ledger))
    ledger.decide(asked, lambda: False)
    release(ledger, release="2")
    ledger.spend("tickets")
    assert ledger.verify().ok
    opened = Ledger(sqlite_url(tmp_path), checkpoint=kept)
    assert kept.load().seq == 5
    assert opened.decide(asked, never) is False
    assert opened.spend("tickets").gate_decisions == 1


def test_show_and_export_tell_decisions(tmp_path):
    ledger = Ledger(sqlite_url(tmp_path))
    asked = release(ledger)
    ledger.decide(question(asked), lambda: False)
    shown = CliRunner().invoke(app, ["show", "--ledger", sqlite_url(tmp_path), "--json"])
    document = json.loads(shown.stdout)
    assert document["cohorts"][0]["gate_decisions"] == 1
    assert len(document["charges"]) == 1
    tables = CliRunner().invoke(app, ["show", "--ledger", sqlite_url(tmp_path)]).stdout
    assert "1 gate decisions" in tables
    rows = list(csv.DictReader(io.StringIO(to_csv(ledger.entries()))))
    assert [row["kind"] for row in rows] == ["reserve", "commit", "decision"]
    assert [line.committed for line in history(ledger).lines] == [True]


FORGERIES = {
    "outcome": ("replace(parameters_json, 'hold', 'pass')", "content does not match"),
    "count": ("replace(parameters_json, '\"count\":1', '\"count\":7')", "content does not match"),
}


@pytest.mark.parametrize("forged", FORGERIES)
def test_an_altered_decision_is_found(tmp_path, forged):
    ledger = Ledger(sqlite_url(tmp_path))
    ledger.decide(question(release(ledger)), lambda: False)
    value, message = FORGERIES[forged]
    edit(tmp_path, f"UPDATE privacy_ledger SET parameters_json = {value} WHERE seq = 3")
    problems = [str(problem) for problem in Ledger(sqlite_url(tmp_path)).verify().problems]
    assert any(message in problem for problem in problems)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parameters_json": '{"candidate":"c1","count":9,"outcome":"hold"}'}, "decision 1 of"),
        ({"parameters_json": '{"candidate":"c1","count":1,"outcome":"maybe"}'}, "key or outcome"),
        ({"parameters_json": '{"candidate":"c2","count":1,"outcome":"hold"}'}, "key or outcome"),
        ({"parameters_json": "{}"}, "cannot be read as a decision"),
        ({"event_json": '{"type":"gaussian"}'}, "holds a charge"),
        ({"cohort": "mail"}, "charged nothing"),
    ],
)
def test_a_well_sealed_entry_that_is_no_decision_is_found(tmp_path, changes, message):
    from dpsynth_assets.privacy.ledger.chain import sealed, verify_chain

    ledger = Ledger(sqlite_url(tmp_path))
    ledger.decide(question(release(ledger)), lambda: False)
    *before, decision = ledger.entries()
    report = verify_chain([*before, sealed(decision._replace(**changes))])
    assert any(message in str(problem) for problem in report.problems)


def test_a_ledger_made_before_decisions_verifies_and_takes_them(tmp_path):
    ledger = Ledger(sqlite_url(tmp_path))
    reservation = release(ledger)
    connection = sqlite3.connect(sqlite_file(tmp_path))
    made = connection.execute("SELECT sql FROM sqlite_master WHERE type='table'").fetchone()[0]
    older = re.sub(r"kind IN \([^)]*\)", "kind IN ('reserve', 'commit')", made)
    assert older != made
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_master SET sql = ? WHERE type = 'table'", (older,))
    connection.commit()
    connection.close()
    connection = sqlite3.connect(sqlite_file(tmp_path))
    with pytest.raises(sqlite3.IntegrityError, match="privacy_ledger_kind"):
        connection.execute(
            "INSERT INTO privacy_ledger SELECT seq + 1, recorded_at, 'decision', "
            f"{', '.join(_columns_after_kind(connection))} FROM privacy_ledger WHERE seq = 2"
        )
    connection.close()
    older_ledger = Ledger(sqlite_url(tmp_path))
    head = older_ledger.head()
    assert older_ledger.verify(head).ok
    assert older_ledger.decide(question(reservation), lambda: True) is True
    assert older_ledger.verify(head).ok
    assert Ledger(sqlite_url(tmp_path)).spend("tickets").gate_decisions == 1
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        sqlite3.connect(sqlite_file(tmp_path)).execute("DELETE FROM privacy_ledger")


def test_an_older_postgres_table_takes_decisions_from_its_owner_and_names_the_way_to_others(
    postgres_url,
):
    ledger = Ledger(postgres_url)
    reservation = release(ledger)
    engine = sa.create_engine(postgres_url, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(widening(("reserve", "commit")))
        connection.exec_driver_sql("DROP ROLE IF EXISTS steps")
        connection.exec_driver_sql("CREATE ROLE steps LOGIN PASSWORD 'steps'")
        connection.exec_driver_sql("GRANT USAGE ON SCHEMA public TO steps")
        connection.exec_driver_sql("GRANT SELECT, INSERT ON privacy_ledger TO steps")
    lesser = sa.make_url(postgres_url).set(username="steps", password="steps")
    steps = Ledger(lesser.render_as_string(hide_password=False))
    with pytest.raises(PrivacyError, match="ALTER TABLE privacy_ledger") as refused:
        steps.decide(question(reservation), never)
    assert "\n" not in str(refused.value)
    assert ledger.decide(question(reservation), lambda: True)
    assert steps.decide(question(reservation, "c2"), lambda: False) is False
    assert ledger.verify().ok
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP OWNED BY steps")
        connection.exec_driver_sql("DROP ROLE steps")


def _columns_after_kind(connection):
    names = [row[1] for row in connection.execute("PRAGMA table_info(privacy_ledger)")]
    return names[names.index("kind") + 1 :]


def test_a_decision_takes_nothing_from_the_budget(tmp_path):
    ledger = Ledger(sqlite_url(tmp_path))
    reservation = release(ledger)
    left = ledger.preview(make_request(release="2"), make_terms()).total_epsilon
    ledger.decide(question(reservation), lambda: True)
    assert ledger.preview(make_request(release="2"), make_terms()).total_epsilon == left
