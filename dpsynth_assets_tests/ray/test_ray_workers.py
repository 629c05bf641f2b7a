"""Workers of a Ray cluster: results in order, no words of a record, no task twice."""

import traceback

import numpy as np
import pytest

from dpsynth_assets.assets.parted_records import store_in_parts
from dpsynth_assets.methods.cluster_histogram import CellCounts
from dpsynth_assets.methods.counted_labels import LabelCounts
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.resources.parted_source import StoredParts, embed_parts
from dpsynth_assets.resources.record_parts import read_table, read_whole
from dpsynth_assets.resources.secret_parts import TABLE, find_in_parts
from dpsynth_assets.resources.sensitive_store import SensitiveStore
from dpsynth_assets.workers import LocalWorkers, WorkerError
from dpsynth_assets.workers.ray_cluster import RayWorkers
from dpsynth_assets_tests.parts import test_split_sums as sums
from dpsynth_assets_tests.parts.conftest import LABELS, MANIFEST, SECRET, declared, store
from dpsynth_assets_tests.parts.test_secret_parts import DECLARED
from dpsynth_assets_tests.parts.test_split_sums import opens_reader, places
from dpsynth_assets_tests.workers import tasks

pytestmark = pytest.mark.slow
__all__ = ["opens_reader", "places", "store"]


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


def test_an_error_of_a_worker_quotes_no_record_anywhere(sessions, parts, capfd):
    with pytest.raises(WorkerError, match="00000-of-00005 failed in a worker with ValueError") as e:
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
        store_in_parts(declared(tmp_path, parts=3), house, workers)
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


def test_a_worker_that_is_killed_is_not_called_again(sessions, parts, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    with pytest.raises(WorkerError, match="00000-of-00005 failed in a worker with"):
        list(RayWorkers(2).map_parts(tasks.DiesOnce(marks), parts))
    assert {mark.read_text() for mark in marks.iterdir()} == {"x"}


def test_a_part_whose_worker_was_killed_is_counted_when_the_step_is_repeated(
    sessions, tmp_path, store
):
    """As under a charge: the step fails in one line, and the next attempt sums the same bits."""
    marks = tmp_path / "marks"
    marks.mkdir()
    store_in_parts(declared(tmp_path, parts=3), store, LocalWorkers(1))
    places = store.parts("letters").places
    whole = read_whole(places, "source", with_embeddings=False)
    inputs = PrivateInputs(
        records=whole.records.clear(),
        parts=StoredParts(places, RayWorkers(2), with_embeddings=False),
    )
    count = tasks.CountsAfterADeath(marks, LabelCounts(labels=LABELS))
    with pytest.raises(WorkerError, match="failed in a worker with"):
        inputs.counted(count)
    assert len(list(marks.iterdir())) == 1
    assert np.array_equal(inputs.counted(count), LabelCounts(labels=LABELS)(whole))


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
    store_in_parts(declared(tmp_path, parts=3), store, LocalWorkers(1))
    places, found = store.parts("letters").places, []
    for workers in (LocalWorkers(1), RayWorkers(2)):
        made = find_in_parts(DECLARED, places, workers, lambda _: None)
        tables = [read_table(place, TABLE) for place in places]
        found.append([made.secrets.rows(), *(table.rows() for table in tables)])
    assert found[0] == found[1]
    kept = [path.read_bytes() for path in sessions.rglob("*") if path.is_file()]
    assert not [1 for content in kept if SECRET.encode() in content]
