"""Sums and votes of SecPE and EPSVec over parts: the same bits for any parts and any workers."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.methods.epsvec import EpsVec
from dpsynth_assets.methods.epsvec.config import EpsVecConfig
from dpsynth_assets.methods.epsvec.negatives import Negatives
from dpsynth_assets.methods.epsvec.plan import VectorNoise
from dpsynth_assets.methods.epsvec.shots import ShotVotes
from dpsynth_assets.methods.epsvec.states import open_reader
from dpsynth_assets.methods.epsvec.vectors import DifferenceSums, VectorTask, release_vectors
from dpsynth_assets.methods.evolution.secret_clusters import ClusterSums
from dpsynth_assets.methods.evolution.secret_incidence import PublicIncidence
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.orchestration.resources.model_pool import given_parts
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.secret_clustering import ClusterStatistics
from dpsynth_assets.privacy.secret_noise import SecretSampling
from dpsynth_assets.public_base.making import OpenedModels, load_public_inputs
from dpsynth_assets.sensitive.read_source import store_records
from dpsynth_assets.sensitive.record_parts import read_whole
from dpsynth_assets.sensitive.stored_parts import StoredParts
from dpsynth_assets.workers import Here, LocalWorkers
from dpsynth_assets_tests.methods.cohorts import made_terms
from dpsynth_assets_tests.parts.conftest import LABELS, SECRET, WORDS, Watching, declared, silent
from dpsynth_assets_tests.stored import read_table, write_array
from dpsynth_assets_tests.tiny_models import write_language_model

ROWS, WIDTH, PARTS = 60, 8, 5
LAYERS = (0, 1)


@pytest.fixture
def places(tmp_path, store):
    """Parts with random embeddings; one part is empty where the hash leaves it so."""
    store_records(declared(tmp_path, rows=ROWS, parts=PARTS), store, LocalWorkers(1))
    made, draw = store.parts("letters").places, np.random.default_rng(0)
    for place in made:
        rows = read_table(place, "source.parquet").height
        embeddings = draw.standard_normal((rows, WIDTH), dtype=np.float32)
        write_array(place, "source_embeddings.npy", embeddings)
    return made


def whole_of(places):
    return read_whole(places, "source", with_embeddings=True)


def parted(places, count=1):
    nothing = whole_of(places).records.clear()
    return PrivateInputs(records=nothing, parts=StoredParts(places, LocalWorkers(count)))


terms = partial(made_terms, cohort="letters", accountant="tight", labels=LABELS, label_texts=LABELS)


# ------------------------------------------------------------------------------------ SecPE

CENTRES = np.random.default_rng(3).standard_normal((6, WIDTH))
CENTRE_LABELS = np.arange(6) % 2
CERTAIN = SecretSampling.capped(probability=1.0, max_occurrences=2)


def cluster_sums(sampling=CERTAIN, incidence=None):
    statistics = ClusterStatistics(
        public_centres=CENTRES,
        public_counts=np.ones(6),
        l2_bound=1.0,
        centre_groups=CENTRE_LABELS,
    )
    return ClusterSums(
        of=statistics.sampled, labels=LABELS, sampling=sampling, incidence=incidence
    ), statistics


def listed(whole):
    """Every third record is listed, and is never drawn."""
    ids = tuple(whole.records["record_id"].to_list()[::3])
    incidence = PublicIncidence(
        record_ids=ids, records_of_secret=(np.arange(len(ids)),), kinds=("code",)
    )
    sampling = SecretSampling(probabilities=np.zeros(len(ids)), count_probabilities=np.ones(1))
    return sampling, incidence


def test_every_record_tosses_its_own_coin_in_every_part(places):
    """Half of the records, about, twice; a bound fails by chance less than once in 10⁹."""
    half = SecretSampling.capped(probability=0.5, max_occurrences=2)
    counting, statistics = cluster_sums(half)
    rows = whole_of(places).records.height
    first, second = (parted(places).counted(counting) for _ in range(2))
    assert not np.array_equal(first, second)
    for sums in (first, second):
        assert abs(sums[:, 0].sum() / statistics.steps - rows / 2) < 3.2 * rows**0.5


# ----------------------------------------------------------------------------------- EPSVec


@pytest.fixture(scope="module")
def opens_engine(tmp_path_factory):
    """Opens an engine with a real model of two layers, as a worker does."""
    folder = tmp_path_factory.mktemp("model") / "toy"
    said = [f"A note on the {a} and the {b}" for a in WORDS for b in WORDS]
    write_language_model(folder, said, vocabulary=300, width=16)
    manifest = {"path": str(folder), "dtype": "float32", "device": "cpu"}
    values = {"public_language_model": manifest}
    return partial(
        load_public_inputs, values, OpenedModels(), terms(), EngineSpec(), salt="", seed=0
    )


def negatives_of(reader):
    """Two negatives of each label, and bounds that clip some records."""
    states = tuple(reader.read(label, ["A note", "the river"]) for label in range(2))
    return Negatives(
        texts=(("A note", "the river"),) * 2,
        states=states,
        layers=LAYERS,
        clip_bounds=np.array([0.5, 2.0]),
        model=reader.engine.name,
    )


def task_of(opens_engine, sampling_probability=1.0):
    config, shots = EpsVecConfig(max_document_tokens=12), (("A note",), ())
    reader = open_reader(opens_engine().engine, config, terms(), shots, LAYERS)
    return VectorTask(
        reader=Here(reader),
        reopened=opens_engine,
        shots=shots,
        negatives=negatives_of(reader),
        noise=VectorNoise(
            noise_multiplier=1.0,
            sampling_probability=sampling_probability,
            relation=NeighboringRelation.ADD_REMOVE,
            max_records_per_unit=1,
        ),
        config=config,
        terms=terms(),
        salt="salt",
    )


def difference_sums(task):
    width = task.opened().engine.width
    mean = task.noise.mean(layers=2, dimensions=2 * width, records=1)
    return DifferenceSums(task=replace(task, reader=Here()), sums=mean.sums)


def test_records_are_drawn_part_by_part_where_the_charge_is_for_a_sample(places, opens_engine):
    counting = difference_sums(task_of(opens_engine, sampling_probability=0.5))
    rows = whole_of(places).records.height
    first, second = (parted(places).counted(counting) for _ in range(2))
    assert not np.array_equal(first, second)
    for total in (first, second):
        assert abs(total[-1] - rows / 2) < 3.2 * rows**0.5


def shot_votes():
    draw = np.random.default_rng(1)
    return ShotVotes(
        candidate_labels=np.arange(10) % 2,
        candidate_embeddings=draw.standard_normal((10, WIDTH), dtype=np.float32),
        labels=LABELS,
    )


# ------------------------------------------------------------------------------- the contract


@dataclass(frozen=True)
class Several:
    """Several countings in one pass: processes are started once for all of them."""

    countings: tuple

    def __call__(self, private):
        return np.concatenate([counting(private).reshape(-1) for counting in self.countings])


@pytest.mark.slow
def test_sums_and_votes_have_the_same_bits_for_any_workers(places, opens_engine):
    whole = whole_of(places)
    rows, steps = whole.records.height, cluster_sums()[1].steps
    sampling, incidence = listed(whole)
    countings = (
        difference_sums(task_of(opens_engine)),
        cluster_sums()[0],
        cluster_sums(sampling, incidence)[0],
        shot_votes(),
    )
    states, certain, some, votes = (whole.counted(counting) for counting in countings)
    assert states[-1] == votes.sum() == rows
    assert states[:-1].any()
    assert certain[:, 0].sum() == rows * steps
    assert some[:, 0].sum() == (rows - len(incidence.record_ids)) * steps
    expected = [each.reshape(-1) for each in (states, certain, some, votes)]
    told = []
    summed = parted(places, 2).counted(Several(countings), told.append)
    assert summed.dtype == np.int64
    assert np.array_equal(summed, np.concatenate(expected))
    assert told == [done / PARTS for done in range(1, PARTS + 1)]


def test_what_workers_are_given_and_told_holds_no_record(places, opens_engine):
    workers = Watching()
    private = PrivateInputs(
        records=whole_of(places).records.clear(), parts=StoredParts(places, workers)
    )
    for counting in (difference_sums(task_of(opens_engine)), cluster_sums()[0]):
        private.counted(counting)
    given = {content for _, content, *_ in workers.seen}
    assert len(given) == 2
    assert not [content for content in given if SECRET.split()[0].encode() in content]


def test_an_engine_that_no_worker_can_open_is_refused_before_a_record_is_read(places, opens_engine):
    task = replace(task_of(opens_engine), reopened=None)
    with pytest.raises(ValueError, match="Expected an engine that workers can open"):
        release_vectors(task, parted(places), silent)


def test_records_are_read_in_the_model_by_workers_only_where_it_runs_on_processors(
    tmp_path, monkeypatch
):
    spec = declared(tmp_path, parts=3)
    (shots, vectors), (_, in_vllm), (_, exact) = (
        [stage for stage in method.stages() if stage.in_parts]
        for kind in ("transformers", "vllm", "exact")
        for method in [EpsVec(EpsVecConfig(), terms(engine=EngineSpec(kind=kind)))]
    )
    assert given_parts(spec, shots)
    assert given_parts(spec, vectors)
    assert not given_parts(declared(tmp_path), vectors)
    assert not given_parts(spec, in_vllm)
    monkeypatch.setenv("DPSYNTH_GPU", "nvidia.com/gpu")
    assert given_parts(spec, shots)
    assert not given_parts(spec, vectors)
    assert given_parts(spec, exact)
