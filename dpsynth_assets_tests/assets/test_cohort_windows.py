"""Laws of partitioned datasets: disjoint cohorts, known from the calendar, each with an account."""

import json
import os
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import dagster as dg
import polars as pl
import pytest
import typer
from pydantic import ValidationError

from dpsynth_assets.cli.cohorts import find_cohort
from dpsynth_assets.cli.datasets import cohorts as cohorts_command
from dpsynth_assets.datasets import (
    CohortSpec,
    cohort_registry,
    cohorts_of,
    complete_cohort,
    known_cohorts,
    parse_dataset_file,
    registered_part,
)
from dpsynth_assets.datasets.cohort_registry import complete_cohorts, register_cohorts
from dpsynth_assets.datasets.cohort_windows import CohortsSpec
from dpsynth_assets.datasets.files import repeated_names
from dpsynth_assets.defs.sensors import cohorts_sensor
from dpsynth_assets.methods.dataset_plan import stage_request
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.keys import partitions_of
from dpsynth_assets.orchestration.lineage import verify_privacy_lineage
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger
from dpsynth_assets.orchestration.schedules import FIRST_RUNS_A_TICK
from dpsynth_assets.report.pages import asset_address
from dpsynth_assets.tags import COHORT, RELEASE
from dpsynth_assets_tests.assets.declared_cases import definitions_of, letters, loaded, pay_for
from dpsynth_assets_tests.declared import FIELDS, written
from dpsynth_assets_tests.stored import read_private_records

pytestmark = pytest.mark.usefixtures("own_home")

BY_MONTH = {"by": "window", "column": "created", "period": "month", "first": "2026-01-01"}
BY_FILE = {"by": "file", "pattern": "mail-{year}-{month}.jsonl", "settle_minutes": 0}
CANDIDATE = "mean_uniform/candidate_corpus"
PERIODS = {
    "day": "2025-12-31",
    "week": "2025-12-29",
    "month": "2025-12-01",
    "quarter": "2025-10-01",
    "year": "2024-01-01",
}


def rule(**fields) -> CohortsSpec:
    return CohortsSpec.model_validate(fields)


# Windows


@pytest.mark.parametrize(("period", "first"), PERIODS.items())
def test_windows_follow_one_another_without_gap_or_overlap_and_keys_name_them(period, first):
    windows = rule(by="window", column="created", period=period, first=first)
    keys = windows.complete_windows(date(2028, 3, 2))
    spans = [windows.window(key) for key in keys]
    assert len(set(keys)) == len(keys) > 2
    assert keys == sorted(keys)
    assert spans[0].start == date.fromisoformat(first)
    for before, after in pairwise(spans):
        assert before.end == after.start
    assert all(span.start < span.end for span in spans)


def test_a_window_is_complete_once_it_has_ended_and_its_delay_is_over():
    months = rule(**BY_MONTH, delay_days=3)
    assert months.complete_windows(date(2026, 2, 3)) == []
    assert months.complete_windows(date(2026, 2, 4)) == ["2026_01"]


def source_of(tmp_path, days: list[str | None]):
    """Records dated so; the text says which record it is."""
    lines = [
        json.dumps({"text": f"record {number}", "created": day, "id": f"r{number}"})
        for number, day in enumerate(days)
    ]
    path = tmp_path / "letters.jsonl"
    path.write_text("\n".join(lines))
    return path


def by_month(path):
    return letters(source={"path": str(path)}, cohorts=BY_MONTH, held_out_fraction=0.0)


DAYS = [
    "2026-01-01", "2026-01-31T23:59:59Z", " 2026-02-01 00:00:00", "2026-02-28", "2026-03-01",
    "2025-12-31", "01/02/2026", "", None, "2026-02-30",
]  # fmt: skip


def texts(spec) -> set[str]:
    return set(read_private_records(spec).records["text"])


def test_every_dated_record_is_in_the_one_cohort_that_its_date_names(tmp_path):
    """So one record more changes one cohort only."""

    def months(days):
        spec = by_month(source_of(tmp_path, days))
        return [texts(CohortSpec.of(spec, f"2026_0{month}")) for month in (1, 2, 3)]

    held = [{"record 0", "record 1"}, {"record 2", "record 3"}, {"record 4"}]
    assert months(DAYS) == held
    held[1].add("record 10")
    assert months([*DAYS, "2026-02-14"]) == held


def test_an_id_that_repeats_in_another_window_sets_nothing_aside(tmp_path):
    path = tmp_path / "letters.jsonl"
    january, february = (
        json.dumps({"text": text, "created": f"2026-{month}-05", "id": "x"})
        for text, month in (("a", "01"), ("b", "02"))
    )
    for lines in (january, f"{january}\n{february}"):
        path.write_text(lines)
        assert texts(CohortSpec.of(by_month(path), "2026_01")) == {"a"}


def test_an_empty_window_is_a_cohort_like_any_other(tmp_path):
    spec = by_month(source_of(tmp_path, ["2026-01-05"]))
    complete = complete_cohorts(spec.cohorts, spec.source, datetime(2026, 4, 2, tzinfo=UTC))
    assert complete == ["2026_01", "2026_02", "2026_03"]
    empty = read_private_records(CohortSpec.of(spec, "2026_02"))
    assert empty.records.is_empty()
    assert empty.records.columns == ["record_id", "unit_id", "text", "label"]


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_dates_of_typed_columns_are_read_as_they_stand(tmp_path, suffix):
    path = tmp_path / f"letters.{suffix}"
    moments = pl.Series(["2026-01-31T23:30", "2026-02-01T00:30"]).str.to_datetime()
    frame = pl.DataFrame({"text": ["a", "b"], "id": ["1", "2"], "created": moments})
    frame.write_parquet(path) if suffix == "parquet" else frame.write_csv(path)
    assert texts(CohortSpec.of(by_month(path), "2026_01")) == {"a"}
    assert texts(CohortSpec.of(by_month(path), "2026_02")) == {"b"}


# Files


@pytest.fixture
def mail(tmp_path):
    folder = tmp_path / "mail"
    folder.mkdir()
    for name in ("mail-2026-01.jsonl", "mail-2026-02.jsonl", "mail-of-alice.jsonl"):
        (folder / name).write_text(json.dumps({"text": f"in {name}", "id": name}))
    return folder


def by_file(folder, **changes):
    partitioned = {
        "source": {"path": f"{folder}/*.jsonl"}, "cohorts": BY_FILE, "held_out_fraction": 0.0
    }  # fmt: skip
    return letters(**{**partitioned, **changes})


def test_every_file_of_the_pattern_is_a_cohort_and_no_other_is(mail):
    spec = by_file(mail)
    now = datetime.now(UTC) + timedelta(seconds=5)
    assert complete_cohorts(spec.cohorts, spec.source, now) == ["2026_01", "2026_02"]
    assert texts(CohortSpec.of(spec, "2026_02")) == {"in mail-2026-02.jsonl"}


def test_a_file_counts_once_it_has_settled(mail):
    spec = by_file(mail, cohorts={**BY_FILE, "settle_minutes": 30})
    old = (datetime.now(UTC) - timedelta(hours=1)).timestamp()
    os.utime(mail / "mail-2026-01.jsonl", (old, old))
    assert complete_cohorts(spec.cohorts, spec.source, datetime.now(UTC)) == ["2026_01"]


def test_names_of_files_and_keys_are_the_same_thing():
    files = rule(by="file", pattern="a.{number}-{year}(x).csv")
    assert files.file_key("a.17-2026(x).csv") == "17_2026"
    assert files.file_name("17_2026") == "a.17-2026(x).csv"
    assert files.file_key("ab17-2026(x).csv") is None
    assert files.file_key("a.17-2026(x).csv.part") is None


# What is refused


@pytest.fixture
def declared(tmp_path, monkeypatch):
    """The folder of a dataset file of this installation."""
    own = {"name": "letters", "columns": {"id": "id"}, "cohorts": BY_MONTH}
    file = written(tmp_path / "files" / "letters.yaml", FIELDS | own)
    monkeypatch.setenv("DPSYNTH_DATASETS", str(file.parent))
    return file.parent


ELSEWHERE = {"cohorts": BY_FILE, "source": {"path": "s3://bucket/mail/*.jsonl"}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"neighboring_relation": "replace-one"}, "A replaced record may move"),
        (
            {"neighboring_relation": "zero-out", "public_facts": {"records": 9}},
            "add-remove where the source is partitioned",
        ),
        (
            {"privacy_unit": {"column": "customer", "max_records": 2}},
            "a unit with records in several cohorts".capitalize(),
        ),
        ({"columns": {}}, "recognised by its id"),
        ({"name": "a" * 60}, "since a cohort's key is added"),
        (ELSEWHERE, "a local folder and a pattern of file names"),
        ({**ELSEWHERE, "source": {"path": "data/*/mail.jsonl"}}, "a local folder and a pattern"),
    ],
)
def test_what_would_not_compose_in_parallel_is_refused(changes, words):
    with pytest.raises(ValidationError, match=words):
        letters(**{"cohorts": BY_MONTH, **changes})


@pytest.mark.parametrize(
    ("cohorts", "words"),
    [
        ({**BY_MONTH, "first": "2026-01-15"}, "the first day of a month, e.g. 2026-01-01"),
        ({**BY_MONTH, "pattern": "x"}, "no pattern for by: window, got one. Drop it"),
        ({"by": "window", "column": "created", "period": "month"}, "got none. Write first"),
        ({"by": "file", "pattern": "mail.jsonl"}, "Without one, all files"),
        ({"by": "file", "pattern": "{who}.jsonl"}, "placeholders among"),
        ({"by": "file", "pattern": "{year}/{month}.jsonl"}, "write folders in source.path"),
    ],
)
def test_a_rule_that_does_not_part_is_refused(cohorts, words):
    with pytest.raises(ValidationError, match=words):
        rule(**cohorts)


# The registry, and what loads from it


def test_the_registry_only_grows_and_is_read_once_a_key():
    assert register_cohorts("letters", ["2026_02", "2026_01"]) == ["2026_02", "2026_01"]
    assert register_cohorts("letters", ["2026_01", "2026_03"]) == ["2026_03"]
    assert known_cohorts("letters") == ["2026_01", "2026_02", "2026_03"]
    assert known_cohorts("others") == []


def test_all_cohorts_are_partitions_of_one_set_of_assets_and_checks():
    alone = definitions_of(letters()).resolve_asset_graph()
    register_cohorts("letters", ["2026_01", "2026_02"])
    loaded = definitions_of(letters(cohorts=BY_MONTH, schedule={"cron": "0 3 1 * *"}))
    dg.Definitions.validate_loadable(loaded)
    verify_privacy_lineage(loaded)
    graph = loaded.resolve_asset_graph()
    assert graph.get_all_asset_keys() == alone.get_all_asset_keys()
    assert graph.asset_check_keys == alone.asset_check_keys
    partitions = partitions_of("letters")
    for key in graph.get_all_asset_keys():
        own = partitions if key.path[0] == "letters" else None
        assert graph.get(key).partitions_def == own
        for same in ("parent_keys", "description", "tags", "pools"):
            assert getattr(graph.get(key), same) == getattr(alone.get(key), same)
    for key in graph.asset_check_keys:
        own, bare = graph.get_check_spec(key), alone.get_check_spec(key)
        assert (own.description, own.blocking) == (bare.description, bare.blocking)
        assert own.partitions_def == graph.get(key.asset_key).partitions_def


def test_accounts_and_releases_are_called_as_they_always_were():
    """A ledger of an earlier version names these: another name would pay again."""
    cohort = CohortSpec.of(letters(cohorts=BY_MONTH), "2026_01")
    plan = plan_dataset(cohort)
    for part, name in zip(plan.parts, ("shared/cluster_histogram", CANDIDATE), strict=True):
        (stage,) = part.plan.stages
        asked = stage_request(cohort, part, stage, release="1")
        assert (asked.cohort, asked.dataset) == ("letters_2026_01", "letters")
        assert asked.asset == f"letters_2026_01/{name}"
        assert asked.asset in {each.asset for each in plan.releases}
    assert plan.budget.partition == "month of created"


@pytest.mark.parametrize(
    ("rule_of", "known", "unknown"),
    [
        (BY_MONTH, ["2026_01", "2031_12"], ["2025_12", "2026_1", "2026_13", "2026", "x", ""]),
        (
            {**BY_MONTH, "period": "week", "first": "2026-01-05"},
            ["2026_w02", "2026_w53"],
            ["2026_w01", "2026_w54", "2026_02", "2026_wxx"],
        ),
        (BY_FILE, ["2026_01", "1999_99"], ["2026", "2026_01_01", "a_b", "../2026_01"]),
    ],
)
def test_a_rule_knows_its_keys(rule_of, known, unknown):
    rule_ = rule(**rule_of)
    assert all(rule_.has_key(key) for key in known)
    assert not any(rule_.has_key(key) for key in unknown)


def test_a_window_that_is_not_complete_is_refused_in_one_line(declared, today):
    today("2026-02-01")
    with pytest.raises(typer.BadParameter) as raised:
        find_cohort("letters_2026_01")
    assert "complete on 2026-02-02" in raised.value.message
    assert "\n" not in raised.value.message
    assert known_cohorts("letters") == []
    today("2026-02-02")
    cohort = find_cohort("letters_2026_01")
    assert (cohort.dataset, cohort.window.start) == ("letters", date(2026, 1, 1))
    assert known_cohorts("letters") == ["2026_01"]


def test_no_dataset_may_have_the_name_of_a_cohort_of_another(declared):
    """Both would pay from one account."""
    for file, name in (("taken", "letters_2027_05"), ("free", "letters_2025_05")):
        written(declared / f"{file}.yaml", FIELDS | {"name": name})
    files = [each for path in declared.iterdir() for each in parse_dataset_file(path)[0]]
    assert {(Path(p.file).name, p.got.split(",")[0]) for p in repeated_names(files)} == {
        ("taken.yaml", "'letters_2027_05'"),
        ("letters.yaml", "'letters'"),
    }


def test_a_name_leads_to_its_dataset_and_partition():
    register_cohorts("letters", ["2026_01"])
    register_cohorts("letters_of_2026", ["01"])
    assert registered_part("letters_2026_01") == ("letters", "2026_01")
    assert registered_part("letters_of_2026_01") == ("letters_of_2026", "01")
    assert registered_part("letters_2026_02") == ("letters_2026_02", None)
    assert asset_address("letters_2026_01/m/corpus") == (
        "/assets/letters/m/corpus?view=partitions&partition=2026_01"
    )
    assert asset_address("letters_2026_01") == "/assets/letters"
    assert asset_address("other/m/corpus") == "/assets/other/m/corpus"


PUBLIC_ASSETS = (
    *("public_corpus", "text_embedder", "public_embeddings"),
    *("public_clusters", "public_language_model"),
)
ONE_ROUND = {
    "schedule": {"cron": "0 3 1 * *"},
    "budget": {"epsilon": 60.0, "delta": 1e-6, "rounds": 1},
}


class Sensor:
    """The sensor and the schedule of `letters`, loaded once, in one instance of Dagster."""

    def __init__(self, instance: dg.DagsterInstance, **changes) -> None:
        self.spec = letters(**{"cohorts": {**BY_MONTH, "first": "2026-01-01"}, **changes})
        self.definitions = loaded(self.spec)
        self.cursor: str | None = None
        self.instance = instance

    @property
    def partitions(self):
        return list(self.instance.get_dynamic_partitions(partitions_of("letters").name))

    def tick(self, made=PUBLIC_ASSETS):
        for name in made:
            key = dg.AssetKey(["public", "demo", name])
            self.instance.report_runless_asset_event(dg.AssetMaterialization(key))
        context = dg.build_sensor_context(
            instance=self.instance,
            instance_ref=self.instance.get_ref(),  # As the daemon: Dagster looks keys up with it.
            cursor=self.cursor,
            resources={"ledger": PrivacyLedger()},
            definitions=self.definitions,
        )
        sensor = self.definitions.resolve_sensor_def("letters_new_cohorts")
        data = sensor.evaluate_tick(context)
        self.cursor = data.cursor
        return data

    def on_schedule(self, hour=3):
        with dg.build_schedule_context(
            instance=self.instance,
            scheduled_execution_time=datetime(2030, 1, 1, hour, tzinfo=UTC),
            resources={"ledger": PrivacyLedger()},
            repository_def=self.definitions.get_repository_def(),
        ) as context:
            schedule = self.definitions.resolve_schedule_def("regenerate_letters_schedule")
            return schedule.evaluate_tick(context)


@pytest.fixture
def instance(tmp_path):
    """One with a place: Dagster resolves dynamic partitions in no other."""
    (tmp_path / "instance").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "instance")) as kept:
        yield kept


@pytest.fixture
def today(monkeypatch):
    """Sets the day that the calendar shows."""

    def set_day(text: str) -> None:
        moment = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
        monkeypatch.setattr(cohort_registry.time, "time", lambda: moment)

    return set_day


@pytest.fixture
def january(today):
    """The day on which the first window is complete, and known."""
    today("2026-02-02")
    register_cohorts("letters", ["2026_01"])


def test_the_sensor_starts_switched_off_and_has_nothing_to_run_before_the_first_cohort(
    today, instance
):
    today("2026-01-20")
    sensor = Sensor(instance)
    assert sensor.definitions.resolve_sensor_def("letters_new_cohorts").default_status is (
        dg.DefaultSensorStatus.STOPPED
    )
    assert "the next window has not ended" in sensor.tick().skip_message
    assert not sensor.tick(made=()).run_requests, "a base that no cohort waits for"
    assert known_cohorts("letters") == []


def test_a_new_window_is_a_partition_and_released_without_a_reload(today, instance):
    today("2026-02-02")
    sensor = Sensor(instance)
    (request,) = sensor.tick().run_requests
    assert sensor.partitions == ["2026_01"]
    assert (request.run_key, request.partition_key) == ("letters_2026_01:first", "2026_01")
    assert {key.path[0] for key in request.asset_selection} == {"letters"}
    assert {key.path[1] for key in request.asset_selection} >= {"shared", "mean_uniform", "audit"}
    assert request.tags[COHORT] == "letters_2026_01"
    today("2026-03-02")
    (request,) = sensor.tick().run_requests
    assert request.partition_key == "2026_02"
    assert sensor.partitions == ["2026_01", "2026_02"]


def test_a_sensor_that_always_runs_adds_partitions_and_asks_for_nothing(declared, today):
    today("2026-03-02")
    sensor = cohorts_sensor()
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    with dg.DagsterInstance.ephemeral() as instance:
        ticks = [sensor.evaluate_tick(dg.build_sensor_context(instance=instance)) for _ in range(2)]
        assert list(instance.get_dynamic_partitions("letters_cohorts")) == ["2026_01", "2026_02"]
    assert not any(tick.run_requests for tick in ticks)
    assert ticks[0].skip_message == "Added letters_2026_01, letters_2026_02."
    assert "No file or window" in ticks[1].skip_message


# The schedule


def test_a_tick_makes_the_newest_complete_window_and_then_regenerates_it(today, instance):
    today("2026-01-20")
    sensor = Sensor(instance, schedule={"cron": "0 3 1 * *"})
    assert "complete yet" in sensor.on_schedule().skip_message
    today("2026-03-02")
    (first,) = sensor.on_schedule().run_requests
    assert (first.run_key, first.partition_key) == ("letters_2026_02:first", "2026_02")
    assert sensor.partitions == ["2026_01", "2026_02"]
    pay_for(cohorts_of(sensor.spec)[1], "1")
    (again,) = sensor.on_schedule().run_requests
    assert again.run_key == "letters_2026_02:2030-01-01T03:00Z"
    assert again.partition_key == "2026_02"
    assert again.tags[RELEASE] == "2030-01-01T03:00Z"
    assert "shared" not in {key.path[1] for key in again.asset_selection}
    today("2026-04-02")
    (newer,) = sensor.on_schedule().run_requests
    assert newer.run_key == "letters_2026_03:first"


def test_a_tick_goes_on_with_a_killed_draw_of_the_newest_window_and_then_says_why_not(
    january, instance
):
    """Of its first run with everything of it, also where the budget holds no other round."""
    sensor = Sensor(instance, **ONE_ROUND)
    (cohort,) = cohorts_of(sensor.spec)
    charged = pay_for(cohort, "1", killed=True)
    (request,) = sensor.on_schedule().run_requests
    assert request.run_key == "letters_2026_01:first:2030-01-01T03:00Z"
    assert request.tags[RELEASE] == "1"
    assert "shared" in {key.path[1] for key in request.asset_selection}
    for paid in charged:
        PrivacyLedger().open().commit(paid, artifact_digest="0" * 64, artifact_uri="nowhere")
    said = sensor.on_schedule().skip_message
    assert said.startswith("letters_2026_01: ")
    assert "budget.rounds is 1" in said


def test_a_window_that_a_clock_set_forward_registered_is_none_until_it_has_ended(today, instance):
    today("2031-01-05")
    sensor = Sensor(instance, schedule={"cron": "0 3 1 * *"})
    assert complete_cohort(sensor.spec, "2030_12").name == "letters_2030_12"
    register_cohorts("letters", ["2026_01"])
    today("2026-02-02")
    assert [each.name for each in cohorts_of(sensor.spec)] == ["letters_2026_01"]
    with pytest.raises(ValueError, match="is complete on 2031-01-02"):
        complete_cohort(sensor.spec, "2030_12")
    (request,) = sensor.on_schedule().run_requests
    assert request.partition_key == "2026_01"
    today("2031-01-05")
    assert "letters_2030_12" in {each.name for each in cohorts_of(sensor.spec)}


# The sensor for first runs


def test_a_base_that_was_never_made_is_asked_for_first_and_once(january, instance):
    sensor = Sensor(instance)
    (first,) = sensor.tick(made=()).run_requests
    assert {key.path[-1] for key in first.asset_selection} == set(PUBLIC_ASSETS)
    (again,) = sensor.tick(made=PUBLIC_ASSETS[:3]).run_requests
    assert again.run_key == first.run_key  # Dagster launches a key once, however often it is asked.
    (cohort,) = sensor.tick().run_requests
    assert cohort.run_key == "letters_2026_01:first"


def test_a_cohort_that_was_charged_is_not_asked_for_even_by_a_sensor_without_memory(
    january, instance
):
    sensor = Sensor(instance)
    pay_for(cohorts_of(sensor.spec)[0], "1")
    assert not sensor.tick().run_requests


def test_many_windows_are_worked_off_little_by_little(today, instance):
    today("2026-08-02")
    register_cohorts("letters", [f"2026_{month:02d}" for month in range(1, 8)])
    sensor = Sensor(instance)
    rounds = [len(sensor.tick().run_requests or ()) for _ in range(3)]
    assert rounds == [FIRST_RUNS_A_TICK, 2, 0]


def test_a_cohort_whose_first_run_does_not_fit_is_skipped_with_the_reason(january, instance):
    short = {"epsilon": 0.01, "delta": 1e-6}
    said = Sensor(instance, budget=short).tick().skip_message
    assert "mean_uniform: Expected at least" in said


# Accounts


def test_the_command_registers_what_is_complete_and_lists_it(
    declared, tmp_path, monkeypatch, today, capsys
):
    today("2026-03-02")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    cohorts_command(as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "letters": ["letters_2026_01", "letters_2026_02"]
    }
    assert known_cohorts("letters") == ["2026_01", "2026_02"]
    with dg.DagsterInstance.get() as instance:
        assert list(instance.get_dynamic_partitions("letters_cohorts")) == ["2026_01", "2026_02"]
