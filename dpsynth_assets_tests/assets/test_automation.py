"""Laws of automation: what costs nothing follows new releases, and nothing else ever does."""

import uuid
from collections.abc import Iterable

import dagster as dg
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.events import DagsterEvent, DagsterEventType

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.files import dataset_folders
from dpsynth_assets.datasets.standing import standing
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.tags import MECHANISM, PRIVACY, SENSITIVE
from dpsynth_assets_tests.assets.declared_cases import definitions_of, letters

PAID = (
    dg.AssetKey(["letters", "dp_fine_tuning", "finetuned_generator"]),
    dg.AssetKey(["letters", "mean_uniform", "candidate_corpus"]),
)


@pytest.fixture
def windows(tmp_path, monkeypatch):
    """A dataset with windows, as its definitions load."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    by_month = {"by": "window", "column": "created", "period": "month", "first": "2026-01-01"}
    return definitions_of(letters(cohorts=by_month))


def automated(graph) -> set[dg.AssetKey]:
    return {
        key for key in graph.get_all_asset_keys() if graph.get(key).automation_condition is not None
    }


def free_descendants(graph, key: dg.AssetKey) -> set[dg.AssetKey]:
    """What follows from an asset through assets that charge nothing."""
    found, stack = set(), [key]
    while stack:
        for child in graph.get(stack.pop()).child_keys:
            if MECHANISM not in graph.get(child).tags and child not in found:
                found.add(child)
                stack.append(child)
    return found


def test_the_mechanisms_of_a_graph_are_what_its_plans_charge_for(graph):
    specs = [file.spec for file in standing(dataset_folders()).usable]
    private = [spec for spec in specs if isinstance(spec, PrivateDatasetSpec)]
    charged = {line.asset for spec in private for line in plan_dataset(spec).releases}
    assert charged
    assert {key.to_user_string() for key in mechanisms(graph)} == charged


def mechanisms(graph) -> set[dg.AssetKey]:
    return {key for key in graph.get_all_asset_keys() if MECHANISM in graph.get(key).tags}


def test_exactly_what_is_free_and_follows_from_a_paid_release_is_automated(graph, windows):
    for each in (graph, windows.resolve_asset_graph()):
        keys, paid = automated(each), mechanisms(each)
        assert paid
        assert not paid & keys
        assert "public" not in {key.path[0] for key in keys}
        assert SENSITIVE not in {each.get(key).tags[PRIVACY] for key in keys}
        assert set().union(*(free_descendants(each, key) for key in paid)) <= keys


def test_every_step_that_checks_follows_its_asset(loaded, windows):
    steps = [*(loaded.asset_checks or ()), *(windows.asset_checks or ())]
    specs = [spec for step in steps for spec in step.check_specs]
    assert specs
    assert all(spec.automation_condition is not None for spec in specs)


def test_a_paid_release_of_a_window_is_followed_in_that_window_alone(windows):
    house = settled(windows, "2026_01", "2026_02")
    paid = dg.AssetKey(["letters", "mean_uniform", "candidate_corpus"])
    house.make([paid], "2026_02")
    followed: set[dg.AssetKey] = set()
    while asked := house.asked():
        assert {partition for _, partition in asked} == {"2026_02"}
        followed |= {key for key, _ in asked}
        house.make({key for key, _ in asked}, "2026_02")
    assert followed == free_descendants(house.graph, paid)


def settled(windows, *partitions):
    """A house whose windows were made, and in which nothing is asked for."""
    house = House(windows, windows.resolve_asset_graph())
    house.instance.add_dynamic_partitions("letters_cohorts", partitions)
    for partition in partitions:
        house.make(house.graph.get_all_asset_keys(), partition)
    while house.asked():
        pass
    return house


def test_a_new_window_asks_for_nothing_before_it_was_paid_for(windows):
    house = settled(windows, "2026_01")
    house.instance.add_dynamic_partitions("letters_cohorts", ["2026_02"])
    assert house.asked() == set()


def test_the_sensor_covers_every_automated_asset_and_starts_switched_off(loaded, graph):
    kind = dg.AutomationConditionSensorDefinition
    (sensor,) = [each for each in loaded.sensors or () if isinstance(each, kind)]
    assert sensor.default_status is dg.DefaultSensorStatus.STOPPED
    assert automated(graph) <= sensor.asset_selection.resolve(graph)


class House:
    """A Dagster instance in which things are made without running them."""

    def __init__(self, loaded, graph) -> None:
        self.loaded, self.graph = loaded, graph
        self.instance, self.cursor = dg.DagsterInstance.ephemeral(), None

    def make(self, keys: Iterable[dg.AssetKey], partition: str | None = None) -> None:
        """Reports assets as made, each with its checks passed."""
        wanted = set(keys)
        for key in self.graph.toposorted_asset_keys:
            if key in wanted:
                self.report(key, partition if self.graph.get(key).is_partitioned else None)

    def report(
        self, key: dg.AssetKey, partition: str | None = None, *, passed: bool = True
    ) -> None:
        """Reports an asset with results of its checks, as a run does: of what was made last."""
        made = dg.AssetMaterialization(key, partition=partition)
        self.instance.report_runless_asset_event(made)
        asked = dg.AssetRecordsFilter(
            asset_key=key, asset_partitions=None if partition is None else [partition]
        )
        (last,) = self.instance.fetch_materializations(asked, limit=1).records
        target = AssetCheckEvaluationTargetMaterializationData(
            storage_id=last.storage_id, run_id="", timestamp=last.timestamp
        )
        kind = DagsterEventType.ASSET_CHECK_EVALUATION.value
        told = {"passed": passed, "partition": partition, "target_materialization_data": target}
        for check in self.graph.get(key).check_keys:
            result = dg.AssetCheckEvaluation(key, check.name, metadata={}, **told)
            event = DagsterEvent(kind, job_name="made", event_specific_data=result)
            self.instance.report_dagster_event(event, run_id=str(uuid.uuid4()))

    def evaluated(self):
        """What the sensor finds now."""
        result = dg.evaluate_automation_conditions(
            defs=self.loaded, instance=self.instance, cursor=self.cursor
        )
        self.cursor = result.cursor
        return result

    def asked(self) -> set[tuple[dg.AssetKey, str | None]]:
        """What the sensor asks for now, with partitions."""
        result = self.evaluated()
        return {
            (key, partition)
            for key in automated(self.graph)
            for partition in result.get_requested_partitions(key)
        }

    def checked(self) -> set[dg.AssetCheckKey]:
        """Checks that the sensor asks for now."""
        asked = {each.key for each in self.evaluated().results if not each.true_subset.is_empty}
        return {key for key in asked if isinstance(key, dg.AssetCheckKey)}

    def tick(self) -> set[dg.AssetKey]:
        """What the sensor asks for now."""
        return {key for key, _ in self.asked()}

    def settle(self) -> None:
        """Makes what the sensor asks for, until it asks for nothing."""
        while asked := self.tick():
            self.make(asked)


@pytest.fixture(scope="module")
def house():
    """Two methods whose assets were made once, and the sensor has seen it."""
    methods = [{"method": name, "budget_share": 0.4} for name in ("mean_uniform", "dp_fine_tuning")]
    definitions = definitions_of(letters(methods=methods, public_facts={"records": 4000}))
    house = House(definitions, definitions.resolve_asset_graph())
    house.tick()
    house.make(house.graph.get_all_asset_keys())
    house.settle()
    return house


@pytest.mark.parametrize("key", PAID)
def test_a_paid_release_is_followed_by_exactly_what_it_leads_to_for_free(house, key):
    house.make([key])
    asked: set[dg.AssetKey] = set()
    while now := house.tick():
        assert not asked & now, "asked for twice"
        asked |= now
        house.make(now)
    assert asked == free_descendants(house.graph, key)


@pytest.mark.parametrize("partition", [None, "2026_01"])
def test_a_corpus_waits_for_the_checks_of_its_candidate(house, windows, partition):
    house = house if partition is None else settled(windows)
    house.report(PAID[1], partition, passed=False)
    assert dg.AssetKey(["letters", "mean_uniform", "corpus"]) not in house.tick()
    house.make([PAID[1]])
    house.settle()


@pytest.mark.parametrize("key", PAID)
def test_checks_are_taken_with_what_follows_and_of_what_was_made_without_them(house, key):
    house.instance.report_runless_asset_event(dg.AssetMaterialization(key))
    gate = house.graph.get(dg.AssetKey([*key.path[:2], "candidate_corpus"])).check_keys
    assert gate <= house.checked()
    house.make([key])
    house.settle()


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
