"""Laws of automation: what costs nothing follows new releases, and nothing else ever does."""

from collections.abc import Iterable

import dagster as dg
import pytest

from dpsynth_assets.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.cohort_registry import register_cohorts
from dpsynth_assets.datasets.files import dataset_folders, load_dataset_files
from dpsynth_assets.definitions import defs
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.tags import MECHANISM, PRIVACY, SENSITIVE
from dpsynth_assets_tests.assets.declared_cases import definitions_of, letters

PAID = (
    ("savings", "ctcl", "finetuned_generator"),
    ("tickets", "mean_clustered", "candidate_corpus"),
)


@pytest.fixture(scope="module")
def loaded():
    return defs()


@pytest.fixture(scope="module")
def graph(loaded):
    return loaded.resolve_asset_graph()


def partitioned(home, monkeypatch):
    """Two windows of a partitioned dataset, as their definitions load."""
    monkeypatch.setenv("DPSYNTH_HOME", str(home))
    register_cohorts("letters", ["2026_01", "2026_02"])
    by_month = {"by": "window", "column": "created", "period": "month", "first": "2026-01-01"}
    return definitions_of(letters(cohorts=by_month))


def automated(graph) -> set[dg.AssetKey]:
    return {
        key for key in graph.get_all_asset_keys() if graph.get(key).automation_condition is not None
    }


def charged(specs: Iterable[PrivateDatasetSpec]) -> set[str]:
    """Names of the assets that some plan charges for."""
    return {line.asset for spec in specs for line in plan_dataset(spec).releases}


def free_descendants(graph, key: dg.AssetKey) -> set[dg.AssetKey]:
    """What follows from an asset through assets that charge nothing."""
    found, stack = set(), [key]
    while stack:
        for child in graph.get(stack.pop()).child_keys:
            if MECHANISM not in graph.get(child).tags and child not in found:
                found.add(child)
                stack.append(child)
    return found


def test_no_automated_asset_charges_the_ledger_or_holds_private_records(graph):
    specs = [file.spec for file in load_dataset_files(dataset_folders())]
    paid = charged(spec for spec in specs if isinstance(spec, PrivateDatasetSpec))
    assert paid
    for key in automated(graph):
        tags = graph.get(key).tags
        assert MECHANISM not in tags, key
        assert tags[PRIVACY] != SENSITIVE, key
        assert key.to_user_string() not in paid


def test_everything_free_that_follows_from_a_paid_release_is_automated(graph):
    mechanisms = [key for key in graph.get_all_asset_keys() if MECHANISM in graph.get(key).tags]
    assert mechanisms
    for mechanism in mechanisms:
        assert free_descendants(graph, mechanism) <= automated(graph), mechanism


def test_cohorts_of_a_parted_dataset_keep_the_same_laws(tmp_path, monkeypatch):
    graph = partitioned(tmp_path, monkeypatch).resolve_asset_graph()
    keys = automated(graph)
    assert {key.path[0] for key in keys} == {"letters_2026_01", "letters_2026_02"}
    for key in sorted(graph.get_all_asset_keys()):
        if MECHANISM in graph.get(key).tags:
            assert key not in keys
            assert free_descendants(graph, key) <= keys


def test_the_sensor_covers_every_automated_asset_and_starts_switched_off(loaded, graph):
    sensors = [
        sensor
        for sensor in loaded.sensors or ()
        if isinstance(sensor, dg.AutomationConditionSensorDefinition)
    ]
    (sensor,) = sensors
    assert sensor.default_status is dg.DefaultSensorStatus.STOPPED
    assert automated(graph) <= sensor.asset_selection.resolve(graph)


class House:
    """A Dagster instance in which things are made without running them."""

    def __init__(self, loaded, graph) -> None:
        self.loaded, self.graph = loaded, graph
        self.instance, self.cursor = dg.DagsterInstance.ephemeral(), None

    def make(self, keys: Iterable[dg.AssetKey]) -> None:
        """Reports assets as made, each with its checks passed."""
        wanted = set(keys)
        for key in self.graph.toposorted_asset_keys:
            if key in wanted:
                self.instance.report_runless_asset_event(dg.AssetMaterialization(key))
                for check in self.graph.get(key).check_keys:
                    self.instance.report_runless_asset_event(
                        dg.AssetCheckEvaluation(
                            asset_key=key, check_name=check.name, passed=True, metadata={}
                        )
                    )

    def tick(self) -> set[dg.AssetKey]:
        """What the sensor asks for now."""
        result = dg.evaluate_automation_conditions(
            defs=self.loaded, instance=self.instance, cursor=self.cursor
        )
        self.cursor = result.cursor
        keys = automated(self.graph)
        return {key for key in keys if result.get_num_requested(key)}


@pytest.fixture(scope="module")
def house(loaded, graph):
    """Everything was made once, and the sensor has seen it."""
    house = House(loaded, graph)
    house.tick()
    house.make(graph.get_all_asset_keys())
    while asked := house.tick():
        house.make(asked)
    return house


def test_nothing_new_asks_for_nothing(house):
    assert house.tick() == set()


@pytest.mark.parametrize("path", PAID)
def test_a_paid_release_is_followed_by_exactly_what_it_leads_to_for_free(house, graph, path):
    key = dg.AssetKey(list(path))
    house.make([key])
    asked: set[dg.AssetKey] = set()
    while now := house.tick():
        assert not asked & now, "asked for twice"
        asked |= now
        house.make(now)
    assert asked == free_descendants(graph, key)


def test_a_corpus_waits_for_the_checks_of_its_candidate(loaded, graph, house):
    candidate = dg.AssetKey(["tickets", "mean_uniform", "candidate_corpus"])
    house.instance.report_runless_asset_event(dg.AssetMaterialization(candidate))
    for check in graph.get(candidate).check_keys:
        house.instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(
                asset_key=candidate, check_name=check.name, passed=False, metadata={}
            )
        )
    assert dg.AssetKey(["tickets", "mean_uniform", "corpus"]) not in house.tick()


def test_what_a_run_made_itself_is_not_asked_for_again():
    @dg.asset
    def paid() -> None: ...

    @dg.asset(deps=[paid], automation_condition=FOLLOWS_RELEASES)
    def published() -> None: ...

    small = dg.Definitions(assets=[paid, published])
    instance = dg.DagsterInstance.ephemeral()
    job = small.resolve_implicit_global_asset_job_def()
    cursor = dg.evaluate_automation_conditions(defs=small, instance=instance).cursor
    job.execute_in_process(instance=instance)
    result = dg.evaluate_automation_conditions(defs=small, instance=instance, cursor=cursor)
    assert result.total_requested == 0
    job.execute_in_process(instance=instance, asset_selection=[paid.key])
    again = dg.evaluate_automation_conditions(defs=small, instance=instance, cursor=result.cursor)
    assert (again.total_requested, again.get_num_requested(published.key)) == (1, 1)
