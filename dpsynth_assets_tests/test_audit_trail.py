"""The audit trail tells every spend, follows every file, and notices every disagreement."""

import csv
import io
import json
import os
from dataclasses import dataclass

import dagster as dg
import polars as pl
import pytest

from dpsynth_assets.defs import sensors
from dpsynth_assets.orchestration.assets import audit_trail as audit_trail_asset
from dpsynth_assets.orchestration.assets.audit_trail import (
    AGREES,
    audit_trail,
    launched_by,
    write_trail,
    written_files,
)
from dpsynth_assets.orchestration.resources.stores import ReleaseStore
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.events import BoundedRangeEvent, GaussianEvent, event_to_json
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.report.audit_page import audit_page, spend_table
from dpsynth_assets.report.audit_trail import to_csv, to_json
from dpsynth_assets.tags import LAUNCHED_BY
from dpsynth_assets_tests.children import dpsynth
from dpsynth_assets_tests.prepared import keep_demo_plans
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms

RUN = "0d9f3c1e-5a77-4b1e-9a53-6a1f0a1b2c3d"
TERMS = make_terms(accepts_ex_post=True)
HISTOGRAM, CORPUS = "letters/shared/cluster_histogram", "letters/mean/candidate_corpus"
ROWS = pl.DataFrame({"text": ["synthetic one", "synthetic two"]})


def request(asset, event, **changes):
    fields = {"cohort": "letters", "dataset": "letters", "run_id": "run-of-" + asset}
    return make_request(asset=asset, event=event, **fields | changes)


@dataclass
class Installation:
    ledger: Ledger
    store: ReleaseStore
    instance: dg.DagsterInstance
    histogram: str
    corpus: str

    def trail(self):
        return audit_trail("letters", self.ledger, self.store, self.instance)

    def findings(self):
        return [(found.kind, found.subject) for found in self.trail().findings]

    def report(self, asset, **metadata):
        key = dg.AssetKey(asset.split("/"))
        self.instance.report_runless_asset_event(dg.AssetMaterialization(key, metadata=metadata))

    def report_spend(self, asset, event, reservation, **changes):
        shown = {
            "dpsynth/ledger_reservation": reservation,
            "dpsynth/accounting_event": dg.MetadataValue.json(event_to_json(event)),
            "dpsynth/guarantee": "dp",
            "dpsynth/reused": False,
        }
        self.report(asset, **(shown | changes))

    def publish(self):
        folder = home().released / "letters" / "mean"
        (folder / "data").mkdir(parents=True, exist_ok=True)
        ROWS.write_parquet(folder / "data" / "train-00000-of-00001.parquet")
        (folder / "README.md").write_text("card")
        shown = {"dpsynth/ledger_reservation": self.corpus, "dpsynth/epsilon": 7.0}
        self.report("letters/mean/corpus", **shown, **written_files(folder))


HISTOGRAM_EVENT = GaussianEvent(noise_multiplier=20.0)
CORPUS_EVENT = BoundedRangeEvent(eta=0.05, count=100)


@pytest.fixture
def installation(own_home, tmp_path, monkeypatch):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    monkeypatch.setenv("DAGSTER_REDACT_USER_CODE_ERRORS", "1")
    umask = os.umask(0o077)
    ledger, store = Ledger(home().ledger_url), ReleaseStore()

    def release(asked):
        reservation = ledger.reserve(asked, TERMS)
        digest, uri = store.save(reservation.id, {"rows": 2}, ROWS)
        ledger.commit(reservation, artifact_digest=digest, artifact_uri=uri)
        return reservation.id

    histogram = release(request(HISTOGRAM, HISTOGRAM_EVENT))
    inputs = {"inputs": {"cluster_histogram": histogram, "language_model": "abc"}}
    corpus = release(request(CORPUS, CORPUS_EVENT, parameters=inputs))
    with dg.DagsterInstance.ephemeral() as instance:
        made = Installation(ledger, store, instance, histogram, corpus)
        made.report_spend(HISTOGRAM, HISTOGRAM_EVENT, histogram)
        made.report_spend(CORPUS, CORPUS_EVENT, corpus)
        made.publish()
        yield made
    os.umask(umask)


def test_records_that_agree_give_no_finding_and_every_spend_is_told_whole(installation):
    trail = installation.trail()
    assert (trail.findings, trail.agrees) == ((), True)
    assert trail.ledger_head == installation.ledger.head()
    assert trail.ledger_head in audit_page(trail)
    first, second = trail.spends
    assert (first.asset, second.asset) == (HISTOGRAM, CORPUS)
    assert second.run_id == "run-of-" + CORPUS
    assert (second.mechanism, second.code_version, second.data_version) == ("mean", "1", "2026-01")
    assert json.loads(second.event)["type"] == "bounded_range"
    assert second.epsilon_cumulative > first.epsilon_cumulative > 0
    assert second.epsilon_cumulative + second.epsilon_remaining == pytest.approx(8.0)
    assert (second.guarantee, second.state) == ("dp", "released")
    assert second.recorded_at > first.recorded_at


def test_the_table_of_spends_answers_five_questions_of_each(installation):
    job = dg.GraphDefinition(name="corpora").to_job()
    tags = {LAUNCHED_BY: "ada, dpsynth run"}
    installation.instance.create_run_for_job(job, run_id=RUN, tags=tags)
    inputs = {"inputs": {"cluster_histogram": installation.histogram}}
    again = request(CORPUS, CORPUS_EVENT, release="2|[x](y)", run_id=RUN, parameters=inputs)
    installation.ledger.reserve(again, TERMS)
    trail = installation.trail()
    first, second, third = trail.spends
    assert first.epsilon_added == pytest.approx(first.epsilon_cumulative)
    assert third.epsilon_added >= third.epsilon_cumulative - second.epsilon_cumulative > 0
    assert third.epsilon_alone > third.epsilon_added  # ρ adds up, ε does not.
    assert (first.builds_on, second.builds_on, third.builds_on) == ((), (1,), (1,))
    assert (second.launched_by, third.launched_by) == ("not recorded", "ada, dpsynth run")
    _, table, _ = spend_table(trail).split("\n\n", maxsplit=2)
    lines = table.strip().splitlines()
    assert f"[{RUN[:8]}](/runs/{RUN})" in lines[-1]
    assert "](/assets/letters/mean/candidate_corpus)" in lines[-1]
    assert "no reader: charged, but nothing was stored" in lines[-1]
    assert "2\\|\\[x\\](y)" in lines[-1]
    assert "released (dp)" in lines[-2]


@pytest.mark.parametrize(
    ("tags", "who"),
    [
        ({"dagster/schedule_name": "regenerate_letters_schedule"}, "schedule regenerate_letters"),
        ({"dagster/sensor_name": "follow_releases"}, "sensor follow_releases"),
        ({"user": "ada@example.org", "dagster/backfill": "b"}, "ada@example.org"),
        ({}, "web UI or API, person not recorded"),
    ],
)
def test_who_launched_a_run_is_told_as_far_as_it_is_known(tags, who):
    assert launched_by(tags).startswith(who)


def test_a_file_leads_to_its_materialisation_its_charge_and_every_charge_behind_it(installation):
    files = {file.path: file for file in installation.trail().files}
    rows = files["letters/mean/data/train-00000-of-00001.parquet"]
    assert rows.asset == "letters/mean/corpus"
    assert rows.reservation == installation.corpus
    assert rows.entries == (1, 3)
    assert rows.entry == 3
    assert {file.problem for file in files.values()} == {""}


def stated(installation, **shown):
    """Publishes a statement; returns what the trail says of its file."""
    path = home().released / "letters" / "privacy_statement.md"
    path.write_text("all of it")
    installation.report("letters/audit/privacy_statement", **shown, **written_files(path))
    return next(f for f in installation.trail().files if f.path.endswith("statement.md"))


def test_a_statement_leads_to_the_charges_it_covers(installation):
    statement = stated(installation, **{"dpsynth/ledger_head": installation.ledger.head()})
    assert (statement.entries, statement.problem) == ((1, 3), "")


def test_a_statement_without_a_head_names_the_last_entry_and_only_where_it_is_withheld(
    installation,
):
    last = len(installation.ledger.entries())
    told = {"dpsynth/ledger_entries": last}
    assert stated(installation, **told).problem == "no ledger entry records it"
    ex_post = request("letters/median/corpus", None, guarantee=GuaranteeType.EX_POST)
    reservation = installation.ledger.reserve(ex_post, TERMS)
    stored = {"artifact_digest": "d", "artifact_uri": "u"}
    installation.ledger.commit(reservation, **stored, ex_post_epsilon=0.5)
    assert stated(installation, **told).problem == "no ledger entry records it"
    told = {"dpsynth/ledger_entries": len(installation.ledger.entries())}
    statement = stated(installation, **told)
    assert (statement.entry, statement.problem) == (last + 2, "")


def test_a_released_file_of_unknown_hash_is_reported(installation):
    folder = home().released / "letters" / "mean"
    (folder / "README.md").write_text("card, edited")
    (folder / "extra.csv").write_text("who wrote this?")
    assert installation.findings() == [
        ("released file", "letters/mean/README.md"),
        ("released file", "letters/mean/extra.csv"),
    ]


def test_rows_replaced_together_with_a_forged_materialisation_are_reported(installation):
    folder = home().released / "letters" / "mean"
    name = "letters/mean/data/train-00000-of-00001.parquet"
    ROWS.with_columns(text=pl.lit("something else")).write_parquet(home().released / name)
    shown = {"dpsynth/ledger_reservation": installation.corpus}
    installation.report("letters/mean/corpus", **shown, **written_files(folder))
    assert installation.findings() == [("released file", name)]


def test_a_release_without_a_materialisation_is_reported(installation):
    installation.instance.wipe_assets([dg.AssetKey(HISTOGRAM.split("/"))])
    assert installation.findings() == [("ledger -> event log", HISTOGRAM)]


def test_a_charge_whose_run_died_is_told_and_is_no_disagreement(installation):
    installation.ledger.reserve(request(CORPUS, CORPUS_EVENT, release="2"), TERMS)
    trail = installation.trail()
    assert trail.spends[-1].state == "charged only"
    assert trail.findings == ()


FORGED = "letters/forged/corpus"
CLAIMS = {
    "unknown charge": (CORPUS, {"dpsynth/ledger_reservation": "0" * 32}),
    "other event": (
        CORPUS,
        {"dpsynth/accounting_event": dg.MetadataValue.json(event_to_json(HISTOGRAM_EVENT))},
    ),
    "other guarantee": (CORPUS, {"dpsynth/guarantee": "ex-post"}),
    "smaller ε": (CORPUS, {"dpsynth/epsilon": 0.001}),
    "charge of another method": (FORGED, {}),
    "price and no charge": (FORGED, None),
}


@pytest.mark.parametrize(("asset", "claim"), CLAIMS.values(), ids=CLAIMS)
def test_a_materialisation_that_claims_what_the_ledger_does_not_say_is_reported(
    installation, asset, claim
):
    if claim is None:
        installation.report(asset, **{"dpsynth/epsilon": 9.0})
    else:
        installation.report_spend(asset, CORPUS_EVENT, installation.corpus, **claim)
    assert installation.findings() == [("event log -> ledger", asset)]


def test_an_altered_and_a_missing_stored_release_are_reported(installation):
    (installation.store.folder(installation.corpus) / "facts.json").write_text("{}")
    assert ("stored release", CORPUS) in installation.findings()
    installation.store.folder(installation.histogram).rename(home().root / "away")
    assert ("stored release", HISTOGRAM) in installation.findings()


def test_a_broken_chain_is_reported(installation, monkeypatch):
    report = installation.ledger.verify(witnessed_head="f" * 64)
    assert not report.ok
    monkeypatch.setattr(Ledger, "verify", lambda self: report)
    assert [found.kind for found in installation.trail().findings] == ["ledger chain"]


def test_realised_ex_post_bounds_are_no_part_of_the_trail(installation):
    asked = request(CORPUS, None, guarantee=GuaranteeType.EX_POST, release="3")
    reservation = installation.ledger.reserve(asked, TERMS)
    digest, uri = installation.store.save(reservation.id, {}, ROWS)
    stored = {"artifact_digest": digest, "artifact_uri": uri}
    installation.ledger.commit(reservation, **stored, ex_post_epsilon=5.4321987)
    trail = installation.trail()
    for text in (to_csv(trail), to_json(trail), audit_page(trail)):
        assert "5.43219" not in text


def test_cells_that_a_spreadsheet_would_run_begin_with_a_quote(installation):
    hostile = '=HYPERLINK("http://evil")'
    versions = {"code_version": "+1", "data_version": "@SUM(1)"}
    asked = request(CORPUS, CORPUS_EVENT, release=hostile, **versions)
    installation.ledger.reserve(asked, TERMS)
    row = list(csv.DictReader(io.StringIO(to_csv(installation.trail()))))[-1]
    assert row["release"] == "'" + hostile
    assert row["code_version"] == "'+1"
    assert row["data_version"] == "'@SUM(1)"
    assert float(row["epsilon_cumulative"]) > 0


def test_written_trails_are_their_owners_alone(installation):
    folder = write_trail(installation.trail())
    files = sorted(folder.glob("audit_trail.*"))
    assert [file.suffix for file in files] == [".csv", ".html", ".json"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert json.loads((folder / "audit_trail.json").read_text())["agrees"] is True


def test_the_command_takes_a_cohort_or_a_command(installation, tmp_path):
    trail = json.loads(dpsynth("audit", "letters", "--json", code=1).stdout)
    assert [spend["asset"] for spend in trail["spends"]] == [HISTOGRAM, CORPUS]
    # The event log of this command's own Dagster home is empty.
    assert {found["kind"] for found in trail["findings"]} >= {"ledger -> event log"}
    page = tmp_path / "a.html"
    dpsynth("audit", "cohort", "letters", "--format", "html", "--output", page, code=1)
    assert page.read_text().startswith("<!DOCTYPE html>")
    dpsynth("audit", "list", code=0)
    assert "'leters'" in dpsynth("audit", "leters", code=2).output


def audit_now(installation, cursor=None):
    """One tick of the hourly audit; returns its message and its cursor."""
    (sensor,) = [each for each in sensors.sensors().sensors if each.name == "audit_hourly"]
    context = dg.build_sensor_context(instance=installation.instance, cursor=cursor)
    told = sensor(context)
    return told.skip_message, context.cursor


def live_result(installation):
    """What the UI shows of the cohort's audit."""
    key = dg.AssetCheckKey(dg.AssetKey(["letters", "audit", "audit_trail"]), AGREES)
    records = installation.instance.event_log_storage.get_asset_check_execution_history(key, 1)
    return [record.status.value == "SUCCEEDED" for record in records]


def test_every_hour_the_audit_runs_by_itself_and_shows_a_forged_claim(
    installation, own_home, monkeypatch, tmp_path_factory
):
    keep_demo_plans(tmp_path_factory, own_home)
    assert audit_now(installation)[0] == "No audit is due."
    assert live_result(installation) == []
    installation.report("letters/audit/audit_trail")
    told, cursor = audit_now(installation)
    assert told == "Audited letters."
    assert live_result(installation) == [True]
    installation.report(CORPUS, **{"dpsynth/ledger_reservation": "ab" * 16})
    assert audit_now(installation, cursor)[0] == "No audit is due."
    monkeypatch.setattr(sensors, "SECONDS_BETWEEN_AUDITS", 0.0)
    assert audit_now(installation, cursor)[0] == "Audited letters."
    assert live_result(installation) == [False]


def test_a_cohort_that_cannot_be_audited_fails_its_check_and_keeps_no_other_from_it(
    installation, monkeypatch
):
    installation.report("letters/audit/audit_trail")
    installation.report("zoo/audit/audit_trail")
    audited = audit_trail_asset.audit_trail

    def unreadable(cohort, *others):
        if cohort == "letters":
            raise OSError("store of Zaphod")
        return audited(cohort, *others)

    monkeypatch.setattr(audit_trail_asset, "audit_trail", unreadable)
    told, cursor = audit_now(installation)
    assert told == (
        "Audited zoo. Could not audit letters (OSError: store of Zaphod): "
        "`dpsynth audit NAME` says why."
    )
    assert set(json.loads(cursor)) == {"letters", "zoo"}
    assert live_result(installation) == [False]
