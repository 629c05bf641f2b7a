"""Workers of a Ray cluster: results in order, no words of a record, no task twice."""

import time
import traceback
from pathlib import Path

import numpy as np
import pytest

from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.methods.shared_histograms import CellCounts
from dpsynth_assets.orchestration.resources.stores import SensitiveStore
from dpsynth_assets.sensitive.read_source import embed_parts, store_records
from dpsynth_assets.sensitive.record_parts import read_whole
from dpsynth_assets.sensitive.stored_parts import StoredParts
from dpsynth_assets.workers import LocalWorkers, WorkerError
from dpsynth_assets.workers.ray_cluster import RayWorkers
from dpsynth_assets_tests.parts.conftest import BY_LABEL, LABELS, MANIFEST, SECRET, declared, store
from dpsynth_assets_tests.parts.test_split_sums import opens_engine, places
from dpsynth_assets_tests.workers import tasks

pytestmark = pytest.mark.slow
__all__ = ["opens_engine", "places", "store"]


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
    return tasks.written(tmp_path)


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


def test_a_part_whose_worker_was_killed_is_counted_when_the_step_is_repeated(
    sessions, tmp_path, store
):
    """As under a charge: Ray calls nothing again, and the next attempt sums the same bits."""
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
