"""Laws of windows as partitions: an account each, nothing paid twice, none before its time."""

import json
import random
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dpsynth_assets.datasets import CohortSpec, PrivateDatasetSpec, cohort_registry, known_cohorts
from dpsynth_assets.orchestration.assets.audit_trail import (
    audit_trail,
    audited_cohorts,
    report_agreement,
)
from dpsynth_assets.orchestration.assets.keys import (
    finished_datasets,
    partitions_of,
    register_partitions,
)
from dpsynth_assets.orchestration.assets.privacy_budgets import last_findings
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger, ReleaseStore
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets_tests.end_to_end.conftest import (
    definitions_of,
    documents,
    installation_in,
    keep_audits,
    private_spec,
    public_spec,
)

pytestmark = pytest.mark.slow

KEYS = ["2026_01", "2026_02"]
NAMES = [f"letters_{key}" for key in KEYS]
CORPUS, CANDIDATE = (
    dg.AssetKey(["letters", "mean_uniform", name]) for name in ("corpus", "candidate_corpus")
)
WHOLE = 'key:"letters/*"'
QUICK = f'{WHOLE} and not (key:"letters/evaluation/*" or key:"*_test" or key:"*/mechanism_audits")'
"""All but what takes long and charges nothing: one window is made whole."""

PAYS = 'key:"letters/shared/*" or key:"letters/mean_uniform/candidate_corpus"'


def write_windows(folder: Path) -> None:
    """400 private records, dated evenly over January to April 2026."""
    draw = random.Random(3)
    rows = [
        {**row, "id": f"T{number}", "created": f"2026-{draw.randrange(1, 5):02d}-05"}
        for number, row in enumerate(documents(400, seed=2, tone="I am upset that ").to_dicts())
    ]
    (folder / "private.jsonl").write_text("\n".join(json.dumps(row) for row in rows))


def windowed(folder: Path, **changes: Any) -> PrivateDatasetSpec:
    by_month = {"by": "window", "column": "created", "period": "month", "first": "2026-01-01"}
    return private_spec(
        folder,
        **{
            "cohorts": by_month,
            "methods": private_spec(folder).methods[:1],
            "evaluation": {"rows": 20, "references": False},
            "budget": {"epsilon": 60.0, "delta": 1e-5, "rounds": 2},
            **changes,
        },
    )


class Windows:
    """A house of one dataset with windows, and the calendar of its machine."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance, patch: Any) -> None:
        self.folder, self.instance, self.patch = folder, instance, patch
        self.spec = windowed(folder)
        self.definitions = definitions_of(public_spec(folder), self.spec)

    def on(self, day: str) -> None:
        """Sets the calendar."""
        moment = datetime.fromisoformat(day).replace(tzinfo=UTC)
        self.patch.setattr(cohort_registry, "_now", lambda: moment)

    def run(self, selection: str, key: str | None = None, definitions: Any = None) -> Any:
        """Runs a selection, of one partition."""
        loaded = definitions or self.definitions
        keys = list(dg.AssetSelection.from_string(selection).resolve(loaded.resolve_asset_graph()))
        return loaded.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=self.instance, asset_selection=keys, partition_key=key, raise_on_error=False
        )

    @property
    def ledger(self) -> Ledger:
        return PrivacyLedger().open()

    def spent(self) -> dict[str, float]:
        """Account -> ε of its charges."""
        accounts = sorted({entry.cohort for entry in self.ledger.entries()})
        return {name: self.ledger.spend(name).epsilon for name in accounts}


@pytest.fixture(scope="module")
def windows(tmp_path_factory, tiny_base):
    folder = tmp_path_factory.mktemp("windows") / "copy"
    shutil.copytree(tiny_base, folder)
    write_windows(folder)
    with installation_in(folder) as instance, pytest.MonkeyPatch.context() as patch:
        house = Windows(folder, instance, patch)
        keep_audits(tmp_path_factory, folder / "home", CohortSpec.of(house.spec, KEYS[0]))
        house.on("2026-03-02")
        yield house


def failures(result: Any) -> list[str]:
    return [
        event.event_specific_data.user_failure_data.description
        for event in result.all_events
        if event.is_step_failure
    ]


def test_windows_that_are_complete_become_partitions(windows):
    assert register_partitions(windows.instance, windows.spec) == KEYS
    assert register_partitions(windows.instance, windows.spec) == []
    assert list(windows.instance.get_dynamic_partitions(partitions_of("letters").name)) == KEYS


def test_a_backfill_pays_each_window_once_and_again_nothing(windows):
    for key, selection in zip(KEYS, (WHOLE, QUICK), strict=True):
        result = windows.run(selection, key)
        assert result.success, failures(result)
    spent = windows.spent()
    assert sorted(spent) == NAMES
    assert all(epsilon > 0 for epsilon in spent.values())
    charges = windows.ledger.count_charges()
    for key in KEYS:
        assert windows.run(PAYS, key).success
    assert windows.spent() == spent
    assert windows.ledger.count_charges() == charges


def test_every_window_has_values_records_and_files_of_its_own(windows):
    home = windows.folder / "home"
    for name in NAMES:
        assert (home / "released" / name / "mean_uniform").is_dir()
        assert (home / "artifacts" / name / "mean_uniform" / "candidate_corpus.parquet").exists()
    assert not (home / "artifacts" / "letters").exists()
    assert not (home / "released" / "letters").exists()


def test_the_grid_shows_what_is_made_and_each_check_of_each_window(windows):
    assert windows.instance.get_materialized_partitions(CORPUS) == set(KEYS)
    every_check_passed(windows)


def every_check_passed(windows):
    """The newest result of each check of corpus and candidate, in each window: none is left out."""
    graph = windows.definitions.resolve_asset_graph()
    checks = [key for asset in (CORPUS, CANDIDATE) for key in graph.get(asset).check_keys]
    assert len(checks) > 1
    for key in checks:
        history = windows.instance.event_log_storage.get_asset_check_execution_history(key, 99)
        newest = {each.partition: each.status.value for each in reversed(history)}
        assert newest == dict.fromkeys(KEYS, "SUCCEEDED"), key


def test_a_scheduled_window_has_each_check_of_its_new_corpus(windows):
    spec = windowed(windows.folder, schedule={"cron": "@monthly"})
    scheduled = definitions_of(public_spec(windows.folder), spec)
    with dg.build_schedule_context(
        instance=windows.instance,
        scheduled_execution_time=datetime(2026, 3, 2, tzinfo=UTC),
        resources={"ledger": PrivacyLedger()},
        repository_def=scheduled.get_repository_def(),
    ) as context:
        schedule = scheduled.resolve_schedule_def("regenerate_letters_schedule")
        (request,) = schedule.evaluate_tick(context).run_requests
    quick = dg.AssetSelection.from_string(QUICK).resolve(scheduled.resolve_asset_graph())
    charges = windows.ledger.count_charges()
    result = scheduled.resolve_job_def("regenerate_letters").execute_in_process(
        instance=windows.instance,
        partition_key=request.partition_key,
        asset_selection=[key for key in request.asset_selection if key in quick],
        tags=request.tags,
        raise_on_error=False,
    )
    assert result.success, failures(result)
    assert windows.ledger.count_charges() > charges
    every_check_passed(windows)


def test_ledger_and_event_log_agree_about_every_window(windows):
    assert set(NAMES) <= set(audited_cohorts(windows.instance))
    for name in NAMES:
        trail = audit_trail(name, windows.ledger, ReleaseStore(), windows.instance)
        assert trail.findings == ()
        assert trail.spends
        assert trail.files
        report_agreement(name, windows.ledger, ReleaseStore(), windows.instance)
    assert last_findings(NAMES, windows.instance) == dict.fromkeys(NAMES, 0)


def test_records_in_parts_change_no_release_of_a_window(windows):
    in_parts = definitions_of(public_spec(windows.folder), windowed(windows.folder, parts=3))
    charges = windows.ledger.count_charges()
    result = windows.run(PAYS, KEYS[-1], definitions=in_parts)
    assert result.success, failures(result)
    assert windows.ledger.count_charges() == charges


def test_a_finished_window_is_told_by_its_name(windows):
    result = windows.run('key:"letters/audit/privacy_statement"', "2026_02")
    assert finished_datasets(windows.instance, result.run_id) == ["letters_2026_02"]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("2026_05", "complete on 2026-06-02"),
        ("../other", "which is not one"),
    ],
)
def test_a_window_that_is_not_complete_is_refused_in_one_line_before_a_charge(windows, key, words):
    """A person may add any partition in the web UI."""
    windows.on("2026-05-02")
    windows.instance.add_dynamic_partitions(partitions_of("letters").name, [key])
    charges = windows.ledger.count_charges()
    result = windows.run(PAYS, key)
    assert not result.success
    for line in failures(result):
        assert words in line
        assert "\n" not in line
    assert windows.ledger.count_charges() == charges
    assert key not in known_cohorts("letters")
