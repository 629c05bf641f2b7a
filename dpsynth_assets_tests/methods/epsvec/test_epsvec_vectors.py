"""Dataset vectors: what a neighbour moves, what noise is drawn, and that it is drawn once."""

import math

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.methods.epsvec import vectors as vectors_module
from dpsynth_assets.methods.epsvec.negatives import Negatives, make_negatives, references
from dpsynth_assets.methods.epsvec.plan import VectorNoise
from dpsynth_assets.methods.epsvec.shots import no_shots
from dpsynth_assets.methods.epsvec.states import (
    StateReader,
    default_layers,
    require_private_engine,
    scaffold_of,
)
from dpsynth_assets.methods.epsvec.vectors import (
    DatasetVectors,
    VectorTask,
    expected_records,
    release_vectors,
)
from dpsynth_assets.models.engines.decoder_engine import DecoderEngine
from dpsynth_assets.models.engines.openai_endpoint import OpenAiEndpoint
from dpsynth_assets.models.engines.protocol import Capability, EngineError, Provenance
from dpsynth_assets.models.transformers_decoder.residual_stream import decoder_layers
from dpsynth_assets.privacy import vector_mean
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.vector_mean import stacked_l2_sensitivity
from dpsynth_assets.workers import Here

ADD_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation
CHOSEN = (2, 5)


ENDPOINT = EngineSpec(kind="openai", base_url="https://host/v1", model="m")


@pytest.fixture
def noiseless(monkeypatch):
    """Steps of the lattice that noise was asked for; none is added."""
    scales, sums = [], []

    def draw(values, scale):
        scales.append(scale)
        sums.append(np.array(values))
        return list(values)

    monkeypatch.setattr(vector_mean, "discrete_gaussian", draw)
    return scales, sums


def reader_of(cases, engine, config, layers=CHOSEN):
    return StateReader(
        engine=engine,
        scaffold=scaffold_of(config, cases.terms(), engine),
        shots=no_shots(2).ranked,
        layers=layers,
    )


def negatives_of(cases, reader, config, public):
    return make_negatives(reader, no_shots(2), config, public, Provenance.PUBLIC, cases.silent)


def task_of(cases, engine, **changes):
    """A task whose negatives are as planned, with little noise unless asked otherwise."""
    settings = {"multiplier": 1e-3, "relation": ADD_REMOVE, "chance": 1.0, "salt": "s"} | changes
    config = cases.config(pairing=settings.get("pairing", "paired"))
    reader = reader_of(cases, engine, config, settings.get("layers", CHOSEN))
    public = cases.public(engine)
    noise = VectorNoise(
        noise_multiplier=settings["multiplier"],
        sampling_probability=settings["chance"],
        relation=settings["relation"],
        max_records_per_unit=1,
    )
    return VectorTask(
        reopened=None,
        reader=Here(reader),
        shots=reader.shots,
        negatives=negatives_of(cases, reader, config, public),
        noise=noise,
        config=config,
        terms=cases.terms(relation=settings["relation"], public_records=settings.get("records")),
        salt=settings["salt"],
        expected_records=settings.get("expected"),
    )


def summed(cases, task, records, noiseless):
    """The sum of stacked differences that noise would be added to, in clip bounds: (L, Y, d)."""
    release_vectors(task, cases.private(records), cases.silent)
    steps = noiseless[1][-1].reshape(2, 2, -1)
    return steps * 2.0**-27  # Steps of a lattice for the bound 1.


@pytest.mark.parametrize("pairing", ["paired", "mean"])
@pytest.mark.parametrize("gone", [0, 9])
def test_a_record_more_or_less_moves_only_its_label_and_each_layer_by_one_bound_at_most(
    cases, engine, noiseless, pairing, gone
):
    task, records = task_of(cases, engine, pairing=pairing), cases.records(20)
    with_it = summed(cases, task, records, noiseless)
    without = summed(cases, task, records.filter(pl.col("record_id") != f"r{gone}"), noiseless)
    moved = np.linalg.norm(with_it - without, axis=2)  # (L, Y)
    assert (moved[:, gone % 2] > 0.05).all()
    assert (moved[:, gone % 2] <= 1 + 1e-9).all()
    assert (moved[:, 1 - gone % 2] == 0).all()
    bound = stacked_l2_sensitivity(l2_bounds=(1.0, 1.0), records=1, relation=ADD_REMOVE)
    assert np.linalg.norm(moved) <= bound


@pytest.mark.parametrize("pairing", ["paired", "mean"])
def test_what_a_record_adds_to_the_sum_is_a_function_of_it_alone(
    cases, toy_model, noiseless, pairing
):
    """Bit for bit, from a real model's states to the lattice: the sum is that of single records."""
    task = real_task(cases, toy_model, pairing)
    records = cases.records(20)
    whole = summed(cases, task, records, noiseless)
    alone = [summed(cases, task, records[row], noiseless) for row in range(20)]
    assert (whole == sum(alone)).all()
    assert (whole == summed(cases, task, records[::-1], noiseless)).all()
    one_more = pl.concat([cases.records(21)[20:], records])
    added = summed(cases, task, one_more[0], noiseless)
    assert (summed(cases, task, one_more, noiseless) == whole + added).all()


def real_task(cases, toy_model, pairing):
    """A task over both layers of a real model."""
    return task_of(cases, DecoderEngine(toy_model), layers=(0, 1), pairing=pairing)


def test_no_record_shares_a_pass_and_public_texts_do(cases, toy_model, noiseless):
    passed = []
    hook = decoder_layers(toy_model.model)[0].register_forward_pre_hook(
        lambda _module, inputs: passed.append(inputs[0].shape[0])
    )
    task = real_task(cases, toy_model, "paired")
    assert max(passed) > 1
    passed.clear()
    release_vectors(task, cases.private(cases.records(20)), cases.silent)
    hook.remove()
    assert set(passed) == {1}


def test_null_records_and_undeclared_labels_add_nothing(cases, engine, noiseless):
    task = task_of(cases, engine, relation=ZERO_OUT)
    records = cases.records(20, labels=("x", "y", "undeclared"))
    null = cases.records(20, null=(3,), labels=("x", "y", "undeclared"))
    declared = records.filter(pl.col("label") != "undeclared")
    whole = summed(cases, task, records, noiseless)
    assert (whole == summed(cases, task, declared, noiseless)).all()
    gone = records.filter(pl.col("record_id") != "r3")
    same = null.with_columns(
        pl.when(pl.col("text") == "").then(pl.lit("")).otherwise(records["text"]).alias("text")
    )
    assert (summed(cases, task, same, noiseless) == summed(cases, task, gone, noiseless)).all()


@pytest.mark.parametrize(("relation", "factor"), [(ADD_REMOVE, 1), (ZERO_OUT, 1), (REPLACE_ONE, 2)])
def test_noise_covers_all_layers_together_whatever_the_labels(
    cases, engine, noiseless, relation, factor
):
    task = task_of(cases, engine, multiplier=0.8, relation=relation)
    release = release_vectors(task, cases.private(cases.records(10)), cases.silent)
    (scale,), _ = noiseless
    assert scale * 2.0**-27 == pytest.approx(0.8 * factor * math.sqrt(2), rel=1e-6)
    assert release.cost.event.noise_multiplier == 0.8


def test_directions_of_noise_alone_say_so_and_are_hardly_steered_along(cases, engine):
    task = task_of(cases, engine, multiplier=1e6, expected=np.full(2, 5.0))
    vectors = release_vectors(task, cases.private(cases.records(10)), cases.silent).value
    assert (vectors.signal_over_noise < 3).all()
    short = vectors.signal_over_noise <= 1
    assert (vectors.lengths[short] == 0).all()
    assert (vectors.lengths[~short] > 0).all()


@pytest.mark.parametrize("records", [None, 1000])
def test_a_vector_is_the_mean_difference_whatever_is_divided_by(cases, engine, records):
    """Of each label's own records: a sum over 30 is not a mean over all."""
    rows = cases.records(60, labels=("x", "y", "y", "y"))
    counts = np.array([15.0, 45.0])
    task = task_of(cases, engine, multiplier=1e-4, records=records, expected=counts)
    vectors = release_vectors(task, cases.private(rows), cases.silent).value
    for label, name in enumerate(("x", "y")):
        mine = rows.filter(pl.col("label") == name)
        own = task.negatives.states[label]
        known = references(own, mine["record_id"].to_list(), task.salt, task.config)
        states = task.opened().read(label, mine["text"].to_list()) - known
        norms = np.linalg.norm(states, axis=2, keepdims=True)
        clipped = states * np.minimum(1, task.negatives.clip_bounds[None, :, None] / norms)
        mean = clipped.mean(axis=0)
        lengths = np.linalg.norm(mean, axis=1)
        np.testing.assert_allclose(vectors.lengths[label], lengths, rtol=1e-2)
        assert ((vectors.directions[label] * mean).sum(axis=1) > 0.99 * lengths).all()
    assert (vectors.signal_over_noise > 10).all()


def test_noise_is_taken_off_the_lengths(cases, engine):
    """Of what a vector is longer than noise alone; what is left is nearest to the truth."""
    task = task_of(cases, engine, records=40, expected=np.full(2, 20.0))
    truth, noise = 3.0, 4.0
    noisy = math.hypot(truth, noise)
    lengths = vectors_module._lengths(np.full((2, 2), noisy), noise, task)
    cosine = truth / noisy  # between the noisy mean and the truth
    np.testing.assert_allclose(
        lengths, truth * cosine * 2 * task.negatives.clip_bounds[None].repeat(2, 0)
    )


def test_records_are_counted_by_the_shots_or_shared_alike(cases):
    terms = cases.terms(public_records=40)
    np.testing.assert_allclose(expected_records(terms, (30.0, 90.0), 0.5), [15.0, 20.0])
    np.testing.assert_allclose(expected_records(terms, (), 1.0), [20.0, 20.0])
    assert expected_records(cases.terms(public_records=None), (), 1.0) is None


def test_every_release_draws_its_own_noise_and_a_stored_one_never_draws_again(
    cases, engine, tmp_path
):
    task, private = task_of(cases, engine, multiplier=1.0), cases.private(cases.records(10))
    first, second = (release_vectors(task, private, cases.silent).value for _ in range(2))
    assert not np.array_equal(first.directions, second.directions)
    first.save(tmp_path)
    read = [DatasetVectors.load(tmp_path) for _ in range(2)]
    assert all(np.array_equal(each.directions, first.directions) for each in read)
    assert read[0].cost == {"type": "gaussian", "noise_multiplier": 1.0}
    assert (read[0].layers, read[0].labels, read[0].model) == (CHOSEN, ("x", "y"), "words")


def test_vectors_without_a_cost_are_not_read(cases, engine, tmp_path):
    task = task_of(cases, engine)
    vectors = release_vectors(task, cases.private(cases.records(4)), cases.silent).value
    vectors.cost["type"] = "unknown"
    vectors.save(tmp_path)
    with pytest.raises(ValueError, match="event type"):
        DatasetVectors.load(tmp_path)


def test_a_sample_reads_each_record_with_its_probability(cases, engine, noiseless):
    task, records = task_of(cases, engine, chance=0.25), cases.records(400)
    engine.read.clear()
    release_vectors(task, cases.private(records), cases.silent)
    read = sum(len(texts) for texts in engine.read)
    assert 40 < read < 180  # 100 expected; 7 standard deviations to either side.


def test_every_record_passes_through_the_model_once_and_few_at_a_time(cases, engine, monkeypatch):
    monkeypatch.setattr(vectors_module, "RECORDS_PER_PASS", 7)
    task, records = task_of(cases, engine), cases.records(50)
    engine.read.clear()
    release_vectors(task, cases.private(records), cases.silent)
    assert sum(map(len, engine.read)) == 50
    assert max(map(len, engine.read)) <= 7


def test_partners_follow_from_the_record_alone(cases, engine):
    task = task_of(cases, engine)
    ids = [f"r{i}" for i in range(12)]
    whole = references(task.negatives.states[0], ids, "s", task.config)
    assert (references(task.negatives.states[0], ids[5:], "s", task.config) == whole[5:]).all()
    assert not (references(task.negatives.states[0], ids, "other", task.config) == whole).all()


def test_clip_bounds_come_from_public_text(cases, engine):
    def bounds(**changes):
        config = cases.config(**changes)
        public = cases.public(engine)
        reader = reader_of(cases, engine, config)
        return negatives_of(cases, reader, config, public).clip_bounds

    assert (bounds(pairing="mean") < bounds()).all()


def test_negatives_survive_their_files(cases, engine, tmp_path):
    made = task_of(cases, engine).negatives
    made.save(tmp_path)
    read = Negatives.load(tmp_path)
    assert (read.texts, read.layers, read.model) == (made.texts, made.layers, made.model)
    assert (read.clip_bounds == made.clip_bounds).all()
    for before, after in zip(made.states, read.states, strict=True):
        np.testing.assert_allclose(before, after, atol=1e-6)


def test_states_are_means_over_the_texts_own_tokens_behind_the_prompt(cases, engine):
    config = cases.config(max_document_tokens=4)
    reader = reader_of(cases, engine, config)
    own = engine.language_model.encode("the sea was calm today")[:4]
    expected = engine.hidden_states([own], CHOSEN)
    got = reader.read(1, ["the sea was calm today", ""])
    for place, layer in enumerate(CHOSEN):
        np.testing.assert_allclose(got[0, place], expected[layer][0], atol=1e-5)
    assert (got[1] == 0).all()
    assert engine.read[-1][0] == (*reader.scaffold.prefix(1, ()), *own)


def test_the_block_of_layers_lies_where_the_papers_does():
    assert default_layers(32) == (18, 19, 20, 21)
    assert default_layers(4) == (2,)
    assert default_layers(1) == (0,)


def test_texts_that_do_not_fit_the_model_are_refused(cases, engine):
    engine.positions = 8
    with pytest.raises(EngineError, match="prompt and text"):
        reader_of(cases, engine, cases.config(max_document_tokens=20)).read(0, ["sea"])


def test_engines_that_may_not_see_private_text_are_refused(engine):
    require_private_engine(engine)
    with pytest.raises(EngineError, match="private text never leaves"):
        require_private_engine(OpenAiEndpoint(ENDPOINT))
    engine.capabilities = frozenset({Capability.HIDDEN_STATES})
    with pytest.raises(EngineError):
        require_private_engine(engine)
