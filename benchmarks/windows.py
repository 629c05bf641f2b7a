"""Times one dataset with many time windows: as partitions, and as a copy of the assets for each.

    PYTHONPATH=. python benchmarks/windows.py [--windows 200] [--charges 4] [--copies]

The dataset and its windows lie in a temporary folder; the ledger is filled with the charges of all
windows but the newest three. Definitions are loaded, and ticks evaluated, as the code server does.
`--copies` measures beside it, in the same process, what a window was before it was a partition: a
set of assets of its own, with a schedule. Nothing private is read; no model is loaded.
"""

import argparse
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from schedules import DATASET, SCHEDULE, WINDOWS, fill, following, make_base, report

if TYPE_CHECKING:
    import dagster as dg

NEW = 3


def declare(folder: Path) -> None:
    text = DATASET.format(name="parted", folder=folder, more=f"{WINDOWS}\n  {SCHEDULE}")
    (folder / "parted.yaml").write_text(text)


def measure(folder: Path, windows: int, charges: int, *, copies: bool) -> None:
    import dagster as dg

    from dpsynth_assets.datasets import known_cohorts
    from dpsynth_assets.datasets.cohort_registry import register_cohorts
    from dpsynth_assets.datasets.cohort_windows import CohortsSpec
    from dpsynth_assets.definitions import defs
    from dpsynth_assets.paths import home

    rule = CohortsSpec.model_validate(
        {"by": "window", "column": "created", "period": "day", "first": "2026-01-01"}
    )
    defs()  # Calibrates the demo's plans, once for an installation.
    report("load definitions of the demo alone", defs)
    os.environ["DPSYNTH_DATASETS"] = str(folder)
    register_cohorts(
        "parted", rule.complete_windows(datetime(2030, 1, 1, tzinfo=UTC).date())[:windows]
    )
    names = [f"parted_{key}" for key in known_cohorts("parted")]
    loaded: list[dg.Definitions] = []
    report(f"load definitions of the demo and {windows} windows", lambda: loaded.append(defs()))
    entries = fill(home().ledger_url, names[:-NEW], charges, "parted", rule.rule)
    print(f"the ledger holds {entries} entries")
    place = folder.parent / "instance"
    place.mkdir()
    with dg.DagsterInstance.local_temp(str(place)) as instance:
        ticks(instance, loaded[0], windows)
        follow(instance, loaded[0], "nothing made")
        make_all(instance, loaded[0])
        follow(instance, loaded[0], "all windows made")
    if copies:
        measure_copies(names)


def ticks(instance: "dg.DagsterInstance", loaded: "dg.Definitions", windows: int) -> None:
    """The sensors and the schedule of the dataset."""
    import dagster as dg

    from dpsynth_assets.defs.sensors import cohorts_sensor
    from dpsynth_assets.orchestration.resources.stores import PrivacyLedger

    def sense(sensor: "dg.SensorDefinition") -> "object":
        context = dg.build_sensor_context(
            instance=instance,
            instance_ref=instance.get_ref(),
            resources={"ledger": PrivacyLedger()},
            definitions=loaded,
        )
        return sensor.evaluate_tick(context)

    def schedule() -> None:
        context = dg.build_schedule_context(
            instance=instance,
            scheduled_execution_time=datetime(2030, 1, 1, 3, tzinfo=UTC),
            resources={"ledger": PrivacyLedger()},
            repository_def=loaded.get_repository_def(),
        )
        found = loaded.resolve_schedule_def("regenerate_parted_schedule").evaluate_tick(context)
        assert found.run_requests, found.skip_message

    loaded.get_repository_def()
    report(f"sensor that registers, {windows} new partitions", lambda: sense(cohorts_sensor()))
    report("sensor that registers, nothing new (best of 3)", lambda: sense(cohorts_sensor()), 3)
    make_base(instance, loaded)
    own = loaded.resolve_sensor_def("parted_new_cohorts")
    report("sensor for first runs (best of 3)", lambda: sense(own), 3)
    report("schedule tick (best of 3)", schedule, 3)


def follow(instance: "dg.DagsterInstance", loaded: "dg.Definitions", state: str) -> None:
    """Ticks of `follow_releases`: the first, and later ones."""
    assets, tick = (
        len(loaded.resolve_asset_graph().get_all_asset_keys()),
        following(instance, loaded),
    )
    report(f"follow_releases, {assets} assets, {state}, first tick", tick)
    report(f"follow_releases, {assets} assets, {state}, later (best of 3)", tick, 3)


def make_all(instance: "dg.DagsterInstance", loaded: "dg.Definitions") -> None:
    """Notes every asset as made, in every partition that it has."""
    import dagster as dg

    graph = loaded.resolve_asset_graph()
    keys = instance.get_dynamic_partitions("parted_cohorts")
    for key in graph.toposorted_asset_keys:
        partitioned = graph.get(key).is_partitioned and key.path[0] == "parted"
        for partition in keys if partitioned else [None]:
            if partitioned or not graph.get(key).is_partitioned:
                made = dg.AssetMaterialization(key, partition=partition)
                instance.report_runless_asset_event(made)


def measure_copies(names: list[str]) -> None:
    """A set of assets, checks and a schedule for each window, all loaded at once."""
    import dagster as dg

    from dpsynth_assets.cli.cohorts import find_cohort
    from dpsynth_assets.definitions import defs
    from dpsynth_assets.orchestration.components.cohort import declared_definitions
    from dpsynth_assets.orchestration.lineage import verify_privacy_lineage
    from dpsynth_assets.orchestration.metadata import as_shown

    specs = [find_cohort(name) for name in names]
    os.environ.pop("DPSYNTH_DATASETS")
    demo = defs()
    loaded: list[dg.Definitions] = []

    def load() -> None:
        copies = dg.Definitions.merge(demo, *(declared_definitions(spec) for spec in specs))
        copies = copies.map_asset_specs(func=as_shown)
        verify_privacy_lineage(copies)
        loaded.append(copies)

    report(f"copies: load {len(names)} windows beside the demo", load)
    place = Path(os.environ["DPSYNTH_HOME"]).parent / "of_copies"
    place.mkdir()
    with dg.DagsterInstance.local_temp(str(place)) as instance:
        make_base(instance, loaded[0])
        follow(instance, loaded[0], "copies")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=200)
    parser.add_argument("--charges", type=int, default=4, help="charges each window has made")
    parser.add_argument("--copies", action="store_true", help="measure a copy for each window too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "datasets"
        folder.mkdir()
        declare(folder)
        os.environ["DPSYNTH_HOME"] = str(Path(root) / "home")
        os.environ.pop("DPSYNTH_LEDGER_URL", None)
        os.environ.pop("DPSYNTH_DATASETS", None)
        measure(folder, arguments.windows, arguments.charges, copies=arguments.copies)


if __name__ == "__main__":
    main()
