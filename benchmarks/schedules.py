"""Times schedules with many cohorts: a tick, a sensor's tick, and what the ledger adds to a step.

    PYTHONPATH=. python benchmarks/schedules.py [--cohorts 200] [--charges 8]

Half of the cohorts are dataset files with a schedule each, the others are windows of one parted
dataset, all in a temporary folder. The ledger is filled with the charges that cohorts have made,
and ticks are evaluated as the code server does. `ledger check` is what a step does before it may
read: open the ledger, verify its chain, reserve. Nothing private is read; no model is loaded.
"""

import argparse
import logging
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import dagster as dg

    from dpsynth_assets.privacy.ledger import ReleaseRequest

DATASET = """\
type: dpsynth_assets.components.PrivateDataset
attributes:
  name: {name}
  source: {{path: {folder}/{name}.jsonl}}
  columns: {{labels: [label], id: id}}
  public_facts: {{labels: {{label: [billing, delivery]}}}}
  budget: {{epsilon: 60.0, delta: 1.0e-6, rounds: 3}}
  cluster_histogram: {{budget_share: 0.02}}
  methods:
    - {{method: mean_uniform, settings: {{expected_batch_size: 40}}}}
    - {{method: mean_clustered, settings: {{expected_batch_size: 40}}}}
  {more}
"""
SCHEDULE = 'schedule: {cron: "0 3 1 * *"}'
WINDOWS = "cohorts: {by: window, column: created, period: day, first: 2026-01-01}"


def write_files(folder: Path, cohorts: int) -> None:
    names = [f"cohort_{number:03d}" for number in range(cohorts)]
    files = [*((name, SCHEDULE) for name in names), ("parted", WINDOWS)]
    for name, more in files:
        text = DATASET.format(name=name, folder=folder, more=more)
        (folder / f"{name}.yaml").write_text(text)


def fill(url: str, names: list[str], charges: int, dataset: str = "", rule: str = "") -> int:
    """Writes charges and commits of every cohort in one transaction; returns their number.

    Args:
        url: The ledger.
        names: The cohorts.
        charges: Of each.
        dataset: The dataset that they are windows of; empty: each is one.
        rule: How it is partitioned, in words.
    """
    from dpsynth_assets.privacy.events import GaussianEvent
    from dpsynth_assets.privacy.guarantees import GuaranteeType, NeighboringRelation, PrivacyUnit
    from dpsynth_assets.privacy.ledger import BudgetTerms, ReleaseRequest
    from dpsynth_assets.privacy.ledger.accounts import Book, commit_entry, reserve_entry
    from dpsynth_assets.privacy.ledger.database import TABLE, Database

    terms = BudgetTerms(
        epsilon=60.0,
        delta=1e-6,
        accountant="zcdp",
        relation=NeighboringRelation.ADD_REMOVE,
        unit=PrivacyUnit(),
        public_facts=("label set of label",),
        partition=rule or None,
    )
    book, rows = Book(), []
    for number in range(charges):
        for name in names:
            asked = ReleaseRequest(
                cohort=name,
                dataset=dataset or name,
                asset=f"{name}/mean_uniform/candidate_corpus",
                mechanism="mean_uniform",
                guarantee=GuaranteeType.DP,
                event=GaussianEvent(noise_multiplier=60.0),
                parameters={"clip_bound": 10.0, "expected_batch_size": 40, "temperature": 1.5},
                code_version="1",
                data_version="1",
                release=f"{number}",
                run_id="0123456789abcdef",
            )
            reserve = reserve_entry(book, asked, terms, None)
            book.post(reserve)
            commit = commit_entry(book, reserve, "0" * 64, "corpus.parquet", None)
            book.post(commit)
            rows += [reserve._asdict(), commit._asdict()]
    with Database(url).appending() as appender:
        appender._connection.execute(TABLE.insert(), rows)
    return len(rows)


def report(what: str, run: Callable[[], object], times: int = 1) -> None:
    """Prints the best of some tries: other work on the machine only adds to a time."""
    walls, processors = [], []
    for _ in range(times):
        wall, processor = time.perf_counter(), time.process_time()
        run()
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    print(f"{what:<68}{min(walls):8.3f} s wall{min(processors):8.3f} s processor")


def measure(declared: Path, cohorts: int, charges: int) -> None:
    import dagster as dg

    from dpsynth_assets.datasets.cohort_registry import register_cohorts
    from dpsynth_assets.datasets.cohort_windows import CohortsSpec
    from dpsynth_assets.definitions import defs
    from dpsynth_assets.orchestration.resources.stores import PrivacyLedger
    from dpsynth_assets.paths import home

    rule = CohortsSpec.model_validate(
        {"by": "window", "column": "created", "period": "day", "first": "2026-01-01"}
    )
    days = rule.complete_windows(datetime(2030, 1, 1, tzinfo=UTC).date())
    windows = cohorts // 2
    register_cohorts("parted", days[:windows])
    names = [f"cohort_{number:03d}" for number in range(cohorts - windows)]
    defs()  # Calibrates the demo's plans, once for an installation.
    report("load definitions of the demo alone", defs)
    os.environ["DPSYNTH_DATASETS"] = str(declared)
    loaded: list[dg.Definitions] = []
    report(f"load definitions of the demo and {cohorts} cohorts", lambda: loaded.append(defs()))
    entries = fill(home().ledger_url, names, 2 * charges)
    print(f"the ledger holds {entries} entries")

    place = declared.parent / "instance"
    place.mkdir()
    with dg.DagsterInstance.local_temp(str(place)) as instance:

        def tick(name: str) -> object:
            context = dg.build_schedule_context(
                instance=instance,
                scheduled_execution_time=datetime(2030, 1, 1, 3, tzinfo=UTC),
                resources={"ledger": PrivacyLedger()},
            )
            schedule = loaded[0].resolve_schedule_def(f"regenerate_{name}_schedule")
            return schedule.evaluate_tick(context)

        report("schedule tick, first of the process", lambda: tick(names[0]))
        report("schedule tick, later ones (best of 10)", lambda: tick(names[-1]), 10)

        make_base(instance, loaded[0])

        def sense() -> None:
            context = dg.build_sensor_context(
                instance=instance,
                instance_ref=instance.get_ref(),
                resources={"ledger": PrivacyLedger()},
                definitions=loaded[0],
            )
            data = loaded[0].resolve_sensor_def("parted_new_cohorts").evaluate_tick(context)
            assert len(data.run_requests or []) == 5, data.skip_message

        report(f"sensor tick over {windows} windows (best of 3)", sense, 3)
        assets = len(loaded[0].resolve_asset_graph().get_all_asset_keys())
        tick_of_all = following(instance, loaded[0])
        tick_of_all()
        report(f"automation tick over {assets} assets, nothing new", tick_of_all)

    check(home().ledger_url, names)


def following(instance: "dg.DagsterInstance", loaded: "dg.Definitions") -> Callable[[], None]:
    """A function that takes the next tick of `follow_releases`, as the daemon takes it.

    `dagster.evaluate_automation_conditions`, which tests use, asks the instance for the partitions
    of every condition of every asset again; the daemon keeps them for a tick.
    """
    import dagster as dg
    from dagster._core.definitions.asset_daemon_cursor import AssetDaemonCursor
    from dagster._core.definitions.automation_tick_evaluation_context import (
        AutomationTickEvaluationContext,
    )

    graph, cursors = loaded.resolve_asset_graph(), [AssetDaemonCursor.empty()]

    def tick() -> None:
        _, cursor, _ = AutomationTickEvaluationContext(
            evaluation_id=cursors[-1].evaluation_id + 1,
            instance=instance,
            asset_graph=graph,
            cursor=cursors[-1],
            materialize_run_tags={},
            observe_run_tags={},
            auto_observe_asset_keys=set(),
            asset_selection=dg.AssetSelection.all(),
            logger=logging.getLogger("benchmark"),
            emit_backfills=False,
        ).evaluate()
        cursors.append(cursor)

    return tick


def make_base(instance: "dg.DagsterInstance", definitions: "dg.Definitions") -> None:
    """Notes the demo's public base as made, so that the sensor asks for cohorts."""
    import dagster as dg

    for key in definitions.resolve_asset_graph().get_all_asset_keys():
        if key.path[:2] == ["public", "demo"]:
            instance.report_runless_asset_event(dg.AssetMaterialization(key))


def check(url: str, names: list[str]) -> None:
    """What the ledger adds to a step, in a fresh `Ledger`, as a step's own process has one."""
    from dpsynth_assets.cli.cohorts import find_cohort
    from dpsynth_assets.methods.dataset_plan import stage_request
    from dpsynth_assets.methods.planning import plan_dataset
    from dpsynth_assets.orchestration.resources.stores import PrivacyLedger
    from dpsynth_assets.privacy.events import GaussianEvent
    from dpsynth_assets.privacy.ledger import Ledger

    spec = find_cohort(names[-1])
    plan = plan_dataset(spec)
    number = iter(range(10_000))

    def asked() -> "ReleaseRequest":
        whole = stage_request(
            spec, plan.methods[0], plan.methods[0].plan.stages[0], release=f"new {next(number)}"
        )
        return replace(whole, event=GaussianEvent(noise_multiplier=60.0))

    def reserve() -> None:
        PrivacyLedger().open().reserve(asked(), plan.budget, plan.releases)

    def preview() -> None:
        PrivacyLedger().open().preview(asked(), plan.budget, plan.releases)

    def verify_all() -> None:
        Ledger(url).reserve(asked(), plan.budget, plan.releases)

    report("ledger check of a step: open, verify, reserve (best of 10)", reserve, 10)
    report("the same without writing (best of 10)", preview, 10)
    report("the same without a checkpoint (best of 10)", verify_all, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cohorts", type=int, default=200)
    parser.add_argument("--charges", type=int, default=4, help="charges each cohort has made")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        declared = Path(folder) / "datasets"
        declared.mkdir()
        write_files(declared, arguments.cohorts - arguments.cohorts // 2)
        os.environ["DPSYNTH_HOME"] = str(Path(folder) / "home")
        os.environ.pop("DPSYNTH_LEDGER_URL", None)
        os.environ.pop("DPSYNTH_DATASETS", None)
        measure(declared, arguments.cohorts, arguments.charges)


if __name__ == "__main__":
    main()
