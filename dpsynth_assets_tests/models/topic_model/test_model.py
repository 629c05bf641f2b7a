import json

import numpy as np
import pytest

from dpsynth_assets.models.topic_model.fitting import fit_topic_model
from dpsynth_assets.models.topic_model.keywords import (
    TopicWords,
    by_marginal_relevance,
    first_distinct,
    same_word,
    shared_words,
    telling_words,
)
from dpsynth_assets.models.topic_model.model import TopicModel, TopicModelError
from dpsynth_assets_tests.models.topic_model.conftest import DIMENSION, TOPICS, unit


@pytest.fixture(scope="module")
def strangers(corpus):
    """Documents of the public topics, some of them far from any."""
    spread = np.linspace(0, 2, 700)[:, None] * np.random.default_rng(3).normal(
        size=(700, DIMENSION)
    )
    return unit(corpus.directions[np.arange(700) % TOPICS] + spread / np.sqrt(DIMENSION))


def test_a_document_goes_to_its_nearest_topic_or_to_none(model, strangers):
    cosines = strangers.astype(np.float64) @ model.embeddings.T.astype(np.float64)
    clear = np.abs(cosines.max(axis=1) - model.threshold) > 1e-5
    expected = np.where(cosines.max(axis=1) >= model.threshold, cosines.argmax(axis=1), TOPICS)
    assigned = model.assign(strangers)
    assert assigned.dtype == np.int64
    np.testing.assert_array_equal(assigned[clear], expected[clear])
    assert {model.topics} < set(assigned.tolist())


@pytest.mark.parametrize("percentile", [0.0, 10.0])
def test_the_threshold_leaves_out_the_asked_share_of_public_documents(corpus, settings, percentile):
    chosen = settings.model_copy(update={"unclassified_percentile": percentile})
    fitted = fit_topic_model(corpus.texts, corpus.embeddings, chosen, corpus.embed_words)
    left_out = np.mean(fitted.assign(corpus.embeddings) == fitted.topics)
    assert left_out == pytest.approx(percentile / 100, abs=2 / len(corpus.texts))
    assert fitted.sizes.sum() == len(corpus.texts) * (1 - left_out)


def test_bins_count_the_unclassified(model):
    assert model.bins == TOPICS + 1
    assert [model.condition_keywords(topic) for topic in range(model.bins)] == [
        *model.keywords,
        model.fallback_keywords,
    ]


def test_odd_embeddings_are_unclassified_or_refused(model):
    odd = np.array([np.full(DIMENSION, np.nan), np.zeros(DIMENSION)], dtype=np.float32)
    assert model.assign(odd).tolist() == [TOPICS, TOPICS]
    assert model.assign(np.zeros((0, DIMENSION), np.float32)).shape == (0,)
    for shape in ((2, DIMENSION + 1), (DIMENSION,)):
        with pytest.raises(ValueError, match="embedder that made"):
            model.assign(np.zeros(shape, np.float32))


FORMS = "film films, comedy comedies, bus buses, football ball, directed director, baker bakery"
OTHERS = (
    "cat cattle, bus business, internet international, train track, glass grass, art party, "
    "price prison, rice price, rain train"
)


@pytest.mark.parametrize(("pairs", "same"), [(FORMS, True), (OTHERS, False)])
def test_forms_of_one_word_are_one_word_and_others_stay_apart(pairs, same):
    for first, second in map(str.split, pairs.split(",")):
        assert same_word(first, second) == same_word(second, first) == same, first


def test_forms_are_taken_only_where_there_are_no_ten_others():
    words = ["river", "lake", "boat", "sail", "harbour", "fish", "tide", "coast", "wave", "pier"]
    plurals = [word + "s" for word in words]
    mixed = [form for pair in zip(words, plurals, strict=True) for form in pair]
    assert first_distinct(mixed) == tuple(words)
    assert first_distinct(mixed[:14]) == (*words[:7], *plurals[:3])


def test_marginal_relevance_equals_its_definition():
    random = np.random.default_rng(2)
    candidates, topic = unit(random.normal(size=(15, 5))), unit(random.normal(size=5))
    taken = []
    while len(taken) < 15:
        scores = {}
        for place in set(range(15)) - set(taken):
            redundancy = max((candidates[place] @ candidates[t] for t in taken), default=0.0)
            scores[place] = 0.7 * (candidates[place] @ topic) - 0.3 * redundancy
        taken.append(max(scores, key=scores.get))
    assert by_marginal_relevance(candidates, topic, 0.3) == taken


def words_with(counts):
    names = tuple(f"{letter * 5}" for letter in "abcdefghijklmnopqrstuvwxyz"[: counts.shape[1]])
    return TopicWords(names, counts.astype(np.uint32))


def test_telling_words_follow_class_based_tf_idf():
    counts = np.random.default_rng(3).integers(0, 50, size=(4, 12))
    mean_words = counts.sum() / 4
    weights = counts / counts.sum(axis=1, keepdims=True) * np.log(1 + mean_words / counts.sum(0))
    for row, ranked in enumerate(telling_words(words_with(counts))):
        np.testing.assert_allclose(weights[row][ranked], np.sort(weights[row])[::-1], rtol=1e-9)


def test_shared_words_are_those_of_every_topic():
    counts = np.full((3, 14), 20)
    counts[0, 0] = counts[1, 1] = 500  # frequent, but in one topic only
    counts[1:, 0] = counts[[0, 2], 1] = 0
    counts[:, 2:4] = 1
    shared = shared_words(words_with(counts))
    assert set(shared) == set(words_with(counts).vocabulary[4:])


@pytest.fixture
def folder(model, tmp_path):
    model.save(tmp_path / "topics")
    return tmp_path / "topics"


def test_a_saved_model_is_the_same_when_loaded(model, folder, corpus):
    loaded = TopicModel.load(str(folder))
    np.testing.assert_array_equal(loaded.embeddings, model.embeddings)
    np.testing.assert_array_equal(loaded.sizes, model.sizes)
    np.testing.assert_array_equal(loaded.assign(corpus.embeddings), model.assign(corpus.embeddings))
    for name in ("keywords", "fallback_keywords", "threshold", "settings", "embedder", "bins"):
        assert getattr(loaded, name) == getattr(model, name)


def test_a_model_that_is_saved_again_replaces_safetensors_parquet_and_json(model, folder):
    model.save(folder)
    assert TopicModel.load(folder).keywords == model.keywords
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".parquet", ".json"}


def manifest_with(folder, **changes):
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def damage(folder, name):
    (folder / name).write_bytes(b"damaged")


@pytest.mark.parametrize(
    ("break_it", "expected"),
    [
        (lambda folder: manifest_with(folder, version=0), "another version"),
        (lambda folder: manifest_with(folder, format="other"), "of one dpsynth topic model"),
        (lambda folder: manifest_with(folder, topics=2), "damaged"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "damaged"),
        (lambda folder: (folder / "manifest.json").unlink(), "got none"),
        (lambda folder: damage(folder, "manifest.json"), "damaged"),
        (lambda folder: damage(folder, "topics.safetensors"), "damaged"),
        (lambda folder: damage(folder, "topics.parquet"), "damaged"),
        (lambda folder: (folder / "topics.parquet").unlink(), "missing file"),
    ],
)
def test_another_version_or_a_broken_folder_is_refused_in_one_line(folder, break_it, expected):
    break_it(folder)
    with pytest.raises(TopicModelError, match=expected) as caught:
        TopicModel.load(folder)
    assert "\n" not in str(caught.value)
