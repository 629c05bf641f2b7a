"""Fixed shots: who votes for what, what a neighbour moves, and what noise is drawn."""

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.methods.epsvec.shots import FixedShots, ShotVotes, release_shots
from dpsynth_assets.methods.epsvec.states import scaffold_of
from dpsynth_assets.models.engines.decoder_engine import DecoderEngine
from dpsynth_assets.models.engines.openai_endpoint import OpenAiEndpoint
from dpsynth_assets.models.engines.protocol import Generation
from dpsynth_assets.models.prompt_templates import default_templates
from dpsynth_assets.privacy import histogram
from dpsynth_assets.privacy.guarantees import NeighboringRelation

TEXTS = ("sea sea calm", "bread warm", "old hall", "sea calm", "bread bread", "hall quiet")
CANDIDATES = pl.DataFrame({"label": [0, 0, 0, 1, 1, 1], "text": TEXTS})


@pytest.fixture
def noiseless(monkeypatch):
    scales = []
    monkeypatch.setattr(
        histogram, "discrete_gaussian", lambda counts, scale: scales.append(scale) or list(counts)
    )
    return scales


def released(cases, records, *, noise_std):
    planned = histogram.NoisyHistogram(
        noise="gaussian", scale=noise_std, relation=NeighboringRelation.ADD_REMOVE
    )
    embeddings = cases.embedder.embed(list(TEXTS))
    return release_shots(planned, cases.private(records), CANDIDATES, embeddings, ("x", "y"))


def votes(cases, records):
    counting = ShotVotes(
        candidate_labels=CANDIDATES["label"].to_numpy(),
        candidate_embeddings=cases.embedder.embed(list(TEXTS)),
        labels=("x", "y"),
    )
    return counting(cases.private(records))


def test_a_record_votes_for_the_nearest_candidate_of_its_own_label(cases):
    records = pl.DataFrame(
        {
            "text": ["the sea was calm", "warm bread", "the sea was calm", "bread"],
            "label": ["x", "x", "y", "y"],
        }
    )
    assert votes(cases, records).tolist() == [1, 1, 0, 1, 1, 0]


@pytest.mark.parametrize("gone", [0, 7])
def test_a_record_more_or_less_moves_one_count_by_one(cases, gone):
    records = cases.records(20)
    others = records.filter(pl.col("record_id") != f"r{gone}")
    moved = np.abs(votes(cases, records) - votes(cases, others))
    assert moved.sum() == moved.max() == 1
    nulled = records.with_columns(
        pl.when(pl.col("record_id") == f"r{gone}").then(pl.lit("")).otherwise("text").alias("text")
    )
    assert votes(cases, nulled).tolist() == votes(cases, others).tolist()


def test_the_noise_that_is_charged_is_drawn_and_the_most_voted_are_kept(cases, noiseless):
    records = pl.DataFrame(
        {"text": ["bread warm"] * 3 + ["old hall"] * 2 + ["quiet hall"], "label": ["x"] * 5 + ["y"]}
    )
    release = released(cases, records, noise_std=4.5)
    assert noiseless == [4.5]
    assert release.cost.event.noise_std == 4.5
    assert release.value.leading(2)[0] == ("bread warm", "old hall")
    assert release.value.leading(1)[1] == ("hall quiet",)
    assert sum(map(len, release.value.ranked)) == len(TEXTS)
    assert release.value.weights[0][:2] == (3, 2)
    assert release.value.noisy


def test_records_of_a_label_are_never_told_below_their_noise(cases, noiseless):
    records = pl.DataFrame({"text": ["old hall"] * 50, "label": ["x"] * 50})
    release = released(cases, records, noise_std=3.0)
    bins = CANDIDATES["label"].to_list().count(1)
    assert release.value.dp_records == pytest.approx((50.0, 3.0 * bins**0.5))


def test_prompts_draw_shots_by_their_weights_and_each_row_by_itself(cases):
    shots = FixedShots(
        ranked=(("a", "b", "c", "never"), ("d", "e", "f")),
        weights=((9, 0.5, 0.5, 99), (1, 1, 1)),
        dp_records=(10.0, 2.0),
    )
    one = cases.config(shots=1, kept_shots=3)
    rows = shots.drawn(0, 400, one, seed=4)
    assert 0.8 < sum(row == ("a",) for row in rows) / 400 < 0.98
    assert {row for (row,) in rows} == {"a", "b", "c"}
    assert shots.drawn(0, 30, one, seed=4) == rows[:30]
    two = cases.config(shots=2, kept_shots=3)
    assert all(len(set(row)) == 2 for row in shots.drawn(0, 50, two, seed=1))
    assert shots.drawn(1, 3, cases.config(shots=2), seed=1) == [("d", "e")] * 3
    assert shots.leading(1) == (("a",), ("d",))


def test_shots_survive_their_file(tmp_path):
    shots = FixedShots(
        ranked=(("a “b”",), ("c",)), weights=((3.0,), (0.5,)), dp_records=(4.5, 2.0), noise_std=2.5
    )
    shots.save(tmp_path)
    assert FixedShots.load(tmp_path) == shots


# Prompts: those of the dataset file, the model's own format, and text for an endpoint.

TEMPLATES = default_templates("reviews", labelled=True, asks=False)


def scaffold(cases, engine, prompts=TEMPLATES, **changes):
    return scaffold_of(cases.config(**changes), cases.terms(prompts=prompts), engine)


@pytest.fixture(scope="module")
def endpoint():
    return OpenAiEndpoint(EngineSpec(kind="openai", base_url="https://host/v1", model="m"))


def test_a_model_here_and_an_endpoint_read_the_same_words(cases, endpoint, toy_model):
    engine = DecoderEngine(toy_model)
    for shots in ((), ("a warm hall", "the sea")):
        made = scaffold(cases, engine, max_document_tokens=50)
        ids = made.prompt(0, shots)
        words = toy_model.tokenizer.decode(ids[1:], skip_special_tokens=False)
        assert words == scaffold(cases, endpoint).prompt(0, shots)
        assert all(shot in words for shot in shots)
        assert [toy_model.begin_token_id, *made.prefix(0, shots)] == ids


def test_shots_are_cut_where_records_are(cases, toy_model):
    engine = DecoderEngine(toy_model)
    made = scaffold(cases, engine, max_document_tokens=4)
    whole = scaffold(cases, engine, max_document_tokens=400)
    long = "sea " * 200
    cut = len(made.prompt(0, (long,)))
    assert cut == len(made.prompt(0, (long + long,))) < len(whole.prompt(0, (long,)))
    assert len(made.text_ids(long)) == 4
    assert made.text_ids("  ") == []


def test_without_templates_it_is_the_documents_own_format(cases, toy_model):
    made = scaffold(cases, DecoderEngine(toy_model), prompts=None)
    assert made.prompt(1, ("the sea",)) == toy_model.prompt_ids("why", ["the sea"], 6)
    assert made.stop == ()


def test_what_closes_a_document_is_no_part_of_the_text(cases, endpoint):
    made = scaffold(cases, endpoint)
    assert made.stop == ("\n",)
    assert made.read(Generation(" calm sea\n", (), True)) == "calm sea"
