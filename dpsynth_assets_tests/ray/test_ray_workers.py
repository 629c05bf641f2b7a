"""Workers of a Ray cluster: results in order, no words of a record, no task twice."""

import time
import traceback
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.cluster_histogram import CellCounts
from dpsynth_assets.methods.fine_tuning.private_training import StepOfPart
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs
from dpsynth_assets.methods.private_prediction.config import MeanUniformConfig
from dpsynth_assets.methods.private_prediction.declared_batches import DeclaredBatches
from dpsynth_assets.methods.private_prediction.split_batches import split_batches
from dpsynth_assets.models.fine_tuning import FineTuningSettings
from dpsynth_assets.orchestration.resources.stores import SensitiveStore
from dpsynth_assets.privacy.guarantees import NeighboringRelation, PrivacyUnit
from dpsynth_assets.privacy.per_example import Products
from dpsynth_assets.privacy.poisson_sampling import SampledSum
from dpsynth_assets.sensitive.part_tasks import SECRETS_TABLE, find_in_parts
from dpsynth_assets.sensitive.read_source import embed_parts, store_records
from dpsynth_assets.sensitive.record_parts import read_table, read_whole
from dpsynth_assets.sensitive.stored_parts import StoredParts
from dpsynth_assets.workers import LocalWorkers, WorkerError
from dpsynth_assets.workers.ray_cluster import RayWorkers
from dpsynth_assets_tests.parts import test_split_sums as sums
from dpsynth_assets_tests.parts.conftest import BY_LABEL, LABELS, MANIFEST, SECRET, declared, store
from dpsynth_assets_tests.parts.shown_passes import Shows
from dpsynth_assets_tests.parts.test_secret_parts import DECLARED
from dpsynth_assets_tests.parts.test_split_sums import opens_reader, places
from dpsynth_assets_tests.parts.training_tasks import RECORDS, Marks
from dpsynth_assets_tests.workers import tasks

pytestmark = pytest.mark.slow
__all__ = ["opens_reader", "places", "store"]

TERMS = CohortTerms(
    cohort="letters",
    relation=NeighboringRelation.ADD_REMOVE,
    unit=PrivacyUnit(),
    epsilon=8.0,
    delta=1e-6,
    accountant="zcdp",
    labels=LABELS,
    label_texts=LABELS,
)


@pytest.fixture(scope="module")
def sessions(cluster):
    """Connects this process to the cluster; where that keeps its logs and objects."""
    patch = pytest.MonkeyPatch()
    for name, value in cluster.variables.items():
        patch.setenv(name, value)
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    ray.init(
        address=cluster.address,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": cluster.variables["PYTHONPATH"]}},
    )
    yield cluster.folder
    ray.shutdown()
    patch.undo()


@pytest.fixture
def parts(tmp_path):
    places = [tmp_path / f"{number:05d}-of-00005" for number in range(5)]
    for number, place in enumerate(places):
        place.write_text(tasks.SECRET + "x" * number)
    return places


@pytest.mark.parametrize("count", [1, 2])
def test_results_come_in_the_order_of_parts(sessions, parts, count):
    made = list(RayWorkers(count).map_parts(tasks.length, parts))
    assert made == [len(tasks.SECRET) + number for number in range(5)]


def test_opened_workers_stay_with_what_they_keep_until_the_block_ends(sessions, parts):
    with RayWorkers(2).opened() as workers:
        told = [each for _ in range(3) for each in workers.map_parts(tasks.kept_here, parts)]
        processes = {process for process, _ in told}
        assert 1 <= len(processes) <= 2
        assert max(times for _, times in told) >= 15 / 2
        order = list(workers.map_parts(tasks.slow_for_the_first, parts))
        assert order == [len(tasks.SECRET) + number for number in range(5)]
        with pytest.raises(WorkerError, match="00000-of-00005 in a worker failed with ValueError"):
            list(workers.map_parts(tasks.quotes_a_record, parts))
        again = {process for process, _ in workers.map_parts(tasks.kept_here, parts)}
        assert not again & processes, "a map that failed ends its actors"
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{process}").exists() for process in again | processes):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_an_error_of_a_worker_quotes_no_record_anywhere(sessions, parts, capfd):
    with pytest.raises(WorkerError, match="00000-of-00005 in a worker failed with ValueError") as e:
        list(RayWorkers(2).map_parts(tasks.quotes_a_record, parts))
    told = "".join(traceback.format_exception(e.value)) + "".join(capfd.readouterr())
    kept = [path.read_bytes() for path in sessions.rglob("*") if path.is_file()]
    assert tasks.SECRET not in told
    assert not [1 for content in kept if tasks.SECRET.encode() in content]


def test_a_cohort_in_parts_is_what_one_process_makes_of_it(sessions, tmp_path):
    """Read, embedded and counted by tasks: equal bits, and no text of a record with Ray."""
    made = {}
    for name, workers in (("here", LocalWorkers(1)), ("there", RayWorkers(2))):
        house = SensitiveStore.at(str(tmp_path / name))
        store_records(declared(tmp_path, parts=3), house, workers)
        places = house.parts("letters").places
        made_by = embed_parts(MANIFEST, places, workers, lambda *_: None)
        centers = np.eye(4, 384, dtype=np.float32)
        count = CellCounts(labels=LABELS, centers=centers, kept=[range(4)] * 2)
        read = read_whole(places, "source", with_embeddings=True)
        counts = StoredParts(places, workers).summed(count)
        made[name] = (read.records, read.embeddings.tobytes(), counts.tolist(), made_by)
    assert made["here"][0].equals(made["there"][0])
    assert made["here"][1:] == made["there"][1:]
    kept = [path.read_bytes() for path in sessions.rglob("*") if path.is_file()]
    assert not [1 for content in kept if SECRET.encode() in content]


def test_a_step_of_a_training_over_parts_is_the_sum_of_one_process(sessions, tmp_path):
    """Weights go by the store, and the model is opened once an actor."""
    house = SensitiveStore.at(str(tmp_path / "house"))
    store_records(declared(tmp_path, parts=3), house, LocalWorkers(1))
    places = house.parts("letters").places
    exchange = house.folder("letters") / "passes" / "r-1" / "exchange"
    exchange.mkdir(parents=True, mode=0o700)
    step = StepOfPart(
        run="marks",
        inputs=Marks(),
        settings=FineTuningSettings(learning_rate=1.0, products=Products.FLOAT64),
        sampled=SampledSum(sampling_probability=1.0, l2_bound=2.0),
    )
    weights = [np.linspace(0, 1, RECORDS, dtype=np.float32)[None]]
    found = []
    for kind in (LocalWorkers(1), RayWorkers(2)):
        with kind.opened() as workers:
            parts = StoredParts(places, workers, False, exchange)
            found += [parts.summed(step, weights).tolist() for _ in range(2)]
    assert found[0][-1] > 10
    assert all(each == found[0] for each in found)
    assert not list(exchange.iterdir())


def test_passes_that_tasks_draw_have_the_inputs_that_one_process_gives_them(sessions, tmp_path):
    """Sorted and kept by tasks: equal values, and no text of a record with Ray."""
    config = MeanUniformConfig(
        expected_batch_size=4, batches_per_label=3, max_batches=6, batches_per_forward=2
    )
    batches = DeclaredBatches(config=config, terms=TERMS, clustered=False)
    made = {}
    for name, workers in (("here", LocalWorkers(1)), ("there", RayWorkers(2))):
        house = SensitiveStore.at(str(tmp_path / name))
        store_records(declared(tmp_path, parts=3), house, workers)
        passes = house.passes("letters", SimpleNamespace(id="r-1"))
        passes.begin()
        release = house.folder("letters") / "passes" / "r-1"
        parts = StoredParts(house.parts("letters").places, workers, False, release=release)
        private = PrivateInputs(records=pl.DataFrame(), parts=parts)
        split = split_batches(batches, private, PublicInputs(salt="public"))
        steps, draw = split.steps(range(3), 3), Shows(split)
        assert list(parts.draw_passes(steps, draw, range(3), memory=1 << 20)) == [0, 1, 2]
        made[name] = [passes.load(number) for number in range(3)]
    assert made["here"] == made["there"]
    assert SECRET in str(made["there"])
    kept = [path.read_bytes() for path in sessions.rglob("*") if path.is_file()]
    assert not [1 for content in kept if SECRET.encode() in content]


def test_a_worker_that_is_killed_is_not_called_again(sessions, parts, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    with pytest.raises(WorkerError, match="00000-of-00005 in a worker failed with"):
        list(RayWorkers(2).map_parts(tasks.DiesOnce(marks), parts))
    assert {mark.read_text() for mark in marks.iterdir()} == {"x"}


def test_a_part_whose_worker_was_killed_is_counted_when_the_step_is_repeated(
    sessions, tmp_path, store
):
    """As under a charge: the step fails in one line, and the next attempt sums the same bits."""
    marks = tmp_path / "marks"
    marks.mkdir()
    store_records(declared(tmp_path, parts=3), store, LocalWorkers(1))
    places = store.parts("letters").places
    whole = read_whole(places, "source", with_embeddings=False)
    inputs = PrivateInputs(
        records=whole.records.clear(),
        parts=StoredParts(places, RayWorkers(2), with_embeddings=False),
    )
    count = tasks.CountsAfterADeath(marks, BY_LABEL)
    with pytest.raises(WorkerError, match="in a worker failed with"):
        inputs.counted(count)
    assert len(list(marks.iterdir())) == 1
    assert np.array_equal(inputs.counted(count), BY_LABEL(whole))


def test_sums_of_secpe_and_epsvec_are_those_of_one_process(
    sessions, tmp_path, places, opens_reader
):
    countings = (
        sums.difference_sums(sums.task_of(opens_reader)),
        sums.cluster_sums()[0],
        sums.shot_votes(),
    )
    whole = sums.whole_of(places)
    expected = np.concatenate([counting(whole).reshape(-1) for counting in countings])
    inputs = PrivateInputs(records=whole.records.clear(), parts=StoredParts(places, RayWorkers(2)))
    assert np.array_equal(inputs.counted(sums.Several(countings)), expected)
    kept = [path.read_bytes() for path in sessions.rglob("*") if path.is_file()]
    assert not [1 for content in kept if SECRET.encode() in content]


def test_secrets_are_found_by_tasks_as_by_one_process(sessions, tmp_path, store):
    store_records(declared(tmp_path, parts=3), store, LocalWorkers(1))
    places, found = store.parts("letters").places, []
    for workers in (LocalWorkers(1), RayWorkers(2)):
        made = find_in_parts(DECLARED, places, workers, lambda _: None)
        tables = [read_table(place, SECRETS_TABLE) for place in places]
        found.append([made.secrets.rows(), *(table.rows() for table in tables)])
    assert found[0] == found[1]
    kept = [path.read_bytes() for path in sessions.rglob("*") if path.is_file()]
    assert not [1 for content in kept if SECRET.encode() in content]
