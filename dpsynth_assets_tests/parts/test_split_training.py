"""DP-Adam over parts: the weights of one process, bit for bit, whoever draws and clips."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import stats

from dpsynth_assets.methods.fine_tuning import Ctcl, DownstreamFineTuning, DpFineTuning, downstream
from dpsynth_assets.methods.fine_tuning.config import (
    CtclConfig,
    DownstreamConfig,
    DpFineTuningConfig,
)
from dpsynth_assets.methods.fine_tuning.private_training import StepOfPart
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs
from dpsynth_assets.models.fine_tuning.sources import FineTuningSettings
from dpsynth_assets.privacy import dp_sgd
from dpsynth_assets.privacy.per_example import Products
from dpsynth_assets.privacy.poisson_sampling import SampledSum
from dpsynth_assets.sensitive.read_source import store_records
from dpsynth_assets.sensitive.record_parts import read_whole
from dpsynth_assets.sensitive.sealing import HEADER
from dpsynth_assets.sensitive.stored_parts import StoredParts
from dpsynth_assets.workers import LocalWorkers, WorkerError, protocol
from dpsynth_assets_tests.checkpoint_folders import CheckpointFolders
from dpsynth_assets_tests.methods.fine_tuning import conftest as toys
from dpsynth_assets_tests.parts.conftest import LABELS, SECRET, declared, silent
from dpsynth_assets_tests.parts.training_tasks import RECORDS, Many, Marks, Watched
from dpsynth_assets_tests.stored import read_paid, read_table, write_array

documents, generator, language_model = toys.documents, toys.generator, toys.language_model
public = toys.public

EXACT = {"exact_sums": True, "learning_rate": 2e-2, "expected_batch_size": 1000}
SMALL = {"vocabulary": 3000, "width": 16, "feed_forward": 16, "max_document_tokens": 12}
FALSE_ALARM = 1e-9


@pytest.fixture
def planted_noise(monkeypatch):
    """The same numbers for the same shape, as large as noise, whichever thread draws first.

    Returns how often they were drawn.
    """
    drawn = []

    def planted(reference, deviation):
        drawn.append(deviation)
        numbers = torch.arange(reference.numel(), dtype=torch.float64) + reference.numel()
        return (numbers.sin() * deviation).view(reference.shape)

    monkeypatch.setattr(dp_sgd, "gaussian_like", planted)
    return drawn


def terms(**changes):
    chosen = {"labels": LABELS, "label_texts": LABELS, "public_records": 60}
    return toys.make_terms(**chosen | changes)


def stored(folder, store, parts):
    """Places of a small cohort, each record embedded by the first word that is a toy topic."""
    store_records(declared(folder, parts=parts), store, LocalWorkers(1))
    places = store.parts("letters").places
    for place in places:
        said = read_table(place, "source.parquet")["text"].to_list()
        # Toy topics are harbours, bakeries and museums.
        write_array(place, "source_embeddings.npy", toys.EMBEDDER.embed(said))
    return places


def exchange_of(store):
    folder = store.folder("letters") / "passes" / "r-1" / "exchange"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def parted(store, places, workers):
    nothing = read_table(places[0], "source.parquet").clear()
    return PrivateInputs(
        records=nothing, parts=StoredParts(places, workers, True, exchange_of(store))
    )


def trained(method, public, private, folder):
    """Released weights of one training: the same adapters to begin with, and planted noise."""
    [stage] = method.plan(1e4).stages
    assert stage.in_parts
    torch.manual_seed(0)
    checkpoint = CheckpointFolders(folder)
    made = stage.release(private, public, checkpoint, silent)
    assert made.cost.event == stage.mechanism.event()
    [file] = made.value.files.glob("*.safetensors")
    return load_file(file)


def methods(name):
    steps = {**EXACT, "steps": 2}
    if name == "ctcl":
        return Ctcl(CtclConfig(**steps, max_document_tokens=24), terms())
    if name == "adapters in integers":
        chosen = {"architecture": "decoder_only", "lora_rank": 2, "frozen_products": "int8"}
        return DpFineTuning(DpFineTuningConfig(**steps, **chosen, max_document_tokens=24), terms())
    return DownstreamFineTuning(DownstreamConfig(**steps, **SMALL), terms())


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", ["ctcl", "adapters in integers", "next word"])
def test_weights_over_parts_are_those_of_the_whole(name, tmp_path, store, public, planted_noise):
    places = stored(tmp_path, store, 5)
    whole = read_whole(places, "source", with_embeddings=True)
    method = methods(name)
    expected = trained(method, public, whole, tmp_path / "whole")
    drawn = len(planted_noise)
    planted_noise.clear()
    with LocalWorkers(1).opened() as workers:
        found = trained(method, public, parted(store, places, workers), tmp_path / "parts")
    assert equal(found, expected)
    assert len(planted_noise) == drawn > 0, "noise is drawn once a step, by the driver"
    assert not list(exchange_of(store).iterdir())
    assert not protocol._kept


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """Notes of what the workers of a causal model's training do."""
    notes = tmp_path / "notes"
    notes.mkdir()
    monkeypatch.setattr(downstream, "NextWordInputs", lambda config: Watched(config, notes))
    return notes


def lines(notes, kind):
    return [line.split()[1] for line in (notes / "lines").read_text().splitlines() if kind in line]


def test_a_worker_that_fails_ends_the_step_and_the_run_goes_on_from_its_checkpoint(
    tmp_path, store, watched, planted_noise
):
    places = stored(tmp_path, store, 3)
    config = DownstreamConfig(**EXACT, **SMALL, steps=4, checkpoint_minutes=1e-6)
    method, public = DownstreamFineTuning(config, terms()), PublicInputs()
    whole = read_whole(places, "source", with_embeddings=False)
    expected = trained(method, public, whole, tmp_path / "whole")
    assert len(lines(watched, "open")) == 1
    planted_noise.clear()
    (watched / "lines").unlink()
    (watched / "quote").write_text("8")  # In the third step.
    with LocalWorkers(1).opened() as workers:
        private = parted(store, places, workers)
        with pytest.raises(WorkerError, match="00001-of-00003 in a worker failed with ValueError"):
            trained(method, public, private, tmp_path / "parts")
        assert CheckpointFolders(tmp_path / "parts").saved is not None
        assert len(lines(watched, "open")) == 1, "it is opened once, for all steps"
        # Noise of the third step was never drawn: what was paid for is drawn once.
        assert len(planted_noise) == len(list(expected)) * 2
        found = trained(method, public, private, tmp_path / "parts")
        assert len(planted_noise) == len(list(expected)) * 4
    assert equal(found, expected)
    assert not list(exchange_of(store).glob("state-*"))


SETTINGS = FineTuningSettings(learning_rate=1.0, products=Products.FLOAT64)


def drawn_in(parts, steps, chance):
    """(steps, RECORDS) of which record was drawn, and (steps,) of how many."""
    sampled = SampledSum(sampling_probability=chance, l2_bound=2.0)
    count = StepOfPart(run="marks", inputs=Marks(), settings=SETTINGS, sampled=sampled)
    weights = [np.zeros((1, RECORDS), dtype=np.float32)]
    found = [parts.summed(count, weights) for _ in range(steps)]
    protocol.forget()
    model = Marks().open().model
    sums = [sampled.sums_of(each, [model.weight]) for each in found]
    return np.array([each[0][0].numpy()[0] for each in sums]), np.array([each[1] for each in sums])


@pytest.mark.statistical
def test_the_union_of_what_workers_draw_is_a_poisson_sample_of_the_whole(tmp_path, store):
    places, steps, chance = stored(tmp_path, store, 3), 150, 0.3
    everybody = read_whole(places, "source", with_embeddings=False)
    there = sorted(Marks().examples(None, everybody))
    parts = StoredParts(places, LocalWorkers(1), False, exchange_of(store))
    inside, sizes = drawn_in(parts, steps, chance)
    assert set(np.flatnonzero(inside.any(axis=0))) <= set(there)
    inside = inside[:, there]
    assert set(np.unique(inside)) == {0.0, 1.0}
    assert np.array_equal(inside.sum(axis=1), sizes)
    for share in inside.sum(axis=0):
        assert stats.binomtest(int(share), steps, chance).pvalue > FALSE_ALARM
    total = stats.binomtest(int(inside.sum()), inside.size, chance)
    assert total.pvalue > FALSE_ALARM
    correlations = np.corrcoef(inside.T)[np.triu_indices(len(there), 1)]
    limit = stats.norm.isf(FALSE_ALARM / 2 / len(correlations)) / np.sqrt(steps)
    assert np.abs(correlations).max() < limit
    spread = inside.sum(axis=1).var() / (len(there) * chance * (1 - chance))
    assert 0.4 < spread < 2.0, "records of different parts toss different coins"


def test_a_part_of_which_nothing_is_drawn_adds_nothing(tmp_path, store):
    parts = StoredParts(stored(tmp_path, store, 3), LocalWorkers(1), False, exchange_of(store))
    inside, sizes = drawn_in(parts, 1, 1e-12)
    assert not inside.any()
    assert not sizes.any()


@pytest.mark.slow
def test_sums_of_workers_go_with_an_error_of_the_driver(tmp_path, store):
    places, exchange = stored(tmp_path, store, 4), exchange_of(store)

    def fails(_):
        raise RuntimeError("the driver")

    with LocalWorkers(2).opened() as workers:
        parts = StoredParts(places, workers, False, exchange)
        with pytest.raises(RuntimeError, match="the driver"):
            parts.summed(Many(), progress=fails)
    assert not list(exchange.iterdir())


def test_what_driver_and_workers_hand_one_another_is_sealed_and_removed(
    tmp_path, store, monkeypatch
):
    monkeypatch.setenv("DPSYNTH_SENSITIVE_KEY", "A" * 43 + "=")
    places, exchange, seen = stored(tmp_path, store, 3), exchange_of(store), []

    def watches(private):
        seen.append([path.read_bytes() for path in exchange.iterdir()])
        assert [each.tolist() for each in private.state] == [[[1.0, 2.0]], [3.0]]
        return np.arange(20_000)

    parts = StoredParts(places, LocalWorkers(1), False, exchange)
    state = [np.array([[1.0, 2.0]], dtype=np.float32), np.array([3.0], dtype=np.float32)]
    total = parts.summed(watches, state)
    assert np.array_equal(total, 3 * np.arange(20_000))
    assert all(content.startswith(HEADER) for files in seen for content in files)
    assert all(len(files) >= 1 for files in seen)
    assert not list(exchange.iterdir())

    def fails_at_the_last(private):
        if len(seen) == 5:
            raise ValueError(SECRET)
        return watches(private)

    with pytest.raises(WorkerError, match="00002-of-00003"):
        parts.summed(fails_at_the_last, state)
    assert not list(exchange.iterdir()), "sums of a map that failed neither"


def test_what_a_killed_run_left_for_workers_is_removed_before_anything_is_drawn(tmp_path, store):
    stored(tmp_path, store, 2)
    left = exchange_of(store) / "state-of-a-step"
    left.write_bytes(b"weights of a step that no checkpoint holds")
    private = read_paid(store, "letters", "r-1", workers=LocalWorkers(1), with_embeddings=False)
    assert not left.parent.exists()
    assert private.parts.exchange.parent == left.parent.parent
    assert not list(private.parts.exchange.iterdir())
    assert private.parts.exchange.stat().st_mode & 0o777 == 0o700


def test_only_exact_sums_are_split():
    for name, config in (
        ("as they are", DownstreamConfig(**SMALL)),
        ("of a classifier", DownstreamConfig(task="classification", exact_sums=True)),
    ):
        [stage] = DownstreamFineTuning(config, terms()).stages()
        assert not stage.in_parts, name
    [stage] = Ctcl(CtclConfig(), terms()).stages()
    assert not stage.in_parts
