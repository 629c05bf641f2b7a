import numpy as np
import pytest

from dpsynth_assets.models.topic_model import fitting, keywords
from dpsynth_assets.models.topic_model.fitting import (
    NOISE,
    average_neighbors,
    dense_groups,
    fit_topic_model,
    within_bounds,
)
from dpsynth_assets.models.topic_model.keywords import count_words, words_of
from dpsynth_assets.models.topic_model.model import TopicModelSettings
from dpsynth_assets_tests.models.topic_model.conftest import OWN_WORDS, TOPICS, unit


def fit(corpus, settings, texts=None, embeddings=None, embed_words=None, progress=None):
    return fit_topic_model(
        corpus.texts if texts is None else texts,
        corpus.embeddings if embeddings is None else embeddings,
        settings,
        embed_words or corpus.embed_words,
        progress,
    )


class Lazy:
    """Texts that are made when they are read, as often as they are."""

    def __init__(self, texts):
        self.texts = texts

    def __iter__(self):
        return (text for text in self.texts)


def assert_same(first, second):
    np.testing.assert_array_equal(first.embeddings, second.embeddings)
    assert first.keywords == second.keywords
    assert first.fallback_keywords == second.fallback_keywords
    assert first.threshold == second.threshold


def test_planted_topics_are_found(corpus, model):
    assert model.topics == TOPICS
    assigned = model.assign(corpus.embeddings)
    for topic in range(TOPICS):
        values, counts = np.unique(assigned[corpus.topics == topic], return_counts=True)
        assert counts.max() / counts.sum() > 0.97, values


def test_keywords_are_ten_different_words_of_their_own_topic(corpus, model):
    planted = [
        int((model.embeddings @ corpus.directions.T)[topic].argmax()) for topic in range(TOPICS)
    ]
    for topic, words in enumerate(model.keywords):
        assert len(words) == len(set(words)) == 10
        assert set(words) <= set(OWN_WORDS[planted[topic]].split())


def test_an_unclassified_document_gets_words_that_all_topics_share(model):
    own = {word for words in OWN_WORDS for word in words.split()}
    assert len(model.fallback_keywords) == 10
    assert not own & set(model.fallback_keywords)


def test_a_refined_topic_is_the_mean_direction_of_its_members(corpus, settings):
    """Of all documents, though the topic was found in a sample of them."""
    found = fit(corpus, settings.model_copy(update={"sample_documents": 240})).embeddings
    nearest = (corpus.embeddings @ found.T).argmax(axis=1)
    means = unit(np.stack([corpus.embeddings[nearest == t].mean(axis=0) for t in range(TOPICS)]))
    np.testing.assert_allclose(means, found, atol=1e-3)


def test_memory_maps_and_lazy_texts_give_the_same_topics(corpus, settings, model, tmp_path):
    np.save(tmp_path / "embeddings.npy", corpus.embeddings)
    mapped = np.load(tmp_path / "embeddings.npy", mmap_mode="r")
    assert_same(fit(corpus, settings, Lazy(corpus.texts), mapped), model)


def test_each_word_is_embedded_once(corpus, settings):
    seen = []

    def embed_words(words):
        seen.extend(words)
        return corpus.embed_words(words)

    fit(corpus, settings, embed_words=embed_words)
    assert len(seen) == len(set(seen)) > 0


def test_progress_rises_to_one(corpus, settings):
    shares = []
    fit(corpus, settings, progress=lambda share, message: shares.append(share))
    assert shares == sorted(shares)
    assert shares[0] >= 0
    assert shares[-1] == 1


def test_text_without_any_dense_group_still_gets_topics(corpus, settings):
    random = np.random.default_rng(0)
    shapeless = unit(random.normal(size=corpus.embeddings.shape))
    few = settings.model_copy(update={"min_cluster_size": 290, "min_topics": 5})
    assert fit(corpus, few, embeddings=shapeless).topics == 5


def test_bad_input_is_refused_in_one_line(corpus, settings):
    cases = {
        "at least 4 documents": {"texts": corpus.texts[:3], "embeddings": corpus.embeddings[:3]},
        "words": {"texts": ["of the 12"] * len(corpus.texts)},
    }
    for expected, changes in cases.items():
        with pytest.raises(ValueError, match=expected) as caught:
            fit(corpus, settings, **changes)
        assert "\n" not in str(caught.value)


def test_settings_refuse_bounds_that_contradict():
    with pytest.raises(ValueError, match="min_topics <= max_topics"):
        TopicModelSettings(min_topics=9, max_topics=8)


def blobs(centers, size, spread, seed=0):
    random = np.random.default_rng(seed)
    noise = random.normal(size=(len(centers) * size, centers.shape[1]))
    return unit(np.repeat(centers, size, axis=0) + spread * noise / np.sqrt(centers.shape[1]))


def test_a_document_moves_to_the_mean_of_its_neighbours():
    sample = unit(np.random.default_rng(0).normal(size=(50, 8)))
    nearest = np.argsort(-(sample @ sample.T), axis=1)[:, :5]
    expected = unit(sample[nearest].mean(axis=1))
    np.testing.assert_allclose(average_neighbors(sample, 5), expected, atol=1e-5)
    np.testing.assert_array_equal(average_neighbors(sample, 1), sample)


def test_the_inverted_file_finds_nearly_the_same_means(monkeypatch):
    sample = blobs(unit(np.random.default_rng(1).normal(size=(20, 16))), 50, 0.5)
    exact = average_neighbors(sample, 8)
    monkeypatch.setattr(fitting, "EXACT_SEARCH_DOCUMENTS", 10)
    assert (average_neighbors(sample, 8) * exact).sum(axis=1).mean() > 0.99


def test_a_group_that_is_too_large_is_clustered_within_itself():
    """Eight groups near one another lie in one point of components made for others."""
    random = np.random.default_rng(3)
    near = unit(unit(random.normal(size=32)) + 0.05 * random.normal(size=(8, 32)))
    far = unit(random.normal(size=(3, 32)))
    sample = blobs(np.concatenate([near, far]), 50, 0.15)
    plain = {"dimensions": 3, "neighbors": 1}
    whole = dense_groups(sample, TopicModelSettings(**plain, max_topic_share=1.0))
    parts = dense_groups(sample, TopicModelSettings(**plain, max_topic_share=0.1))
    assert (whole.max() + 1, parts.max() + 1) == (4, 11)


def test_a_group_without_inner_structure_is_cut_not_lost(monkeypatch):
    sample = blobs(unit(np.random.default_rng(4).normal(size=(2, 8))), 200, 0.1)
    halves = [np.repeat([0, 1], 200)]
    monkeypatch.setattr(
        fitting,
        "_cluster",
        lambda points, settings: halves.pop() if halves else np.full(len(points), NOISE),
    )
    groups = dense_groups(sample, TopicModelSettings(max_topic_share=0.25))
    assert NOISE not in groups
    assert len(set(groups[:200])) >= 2 <= len(set(groups[200:]))
    assert not set(groups[:200]) & set(groups[200:])


@pytest.mark.parametrize("documents", [2, 39])
def test_fewer_documents_than_two_groups_are_all_noise(documents):
    sample = unit(np.random.default_rng(7).normal(size=(documents, 8)))
    assert set(dense_groups(sample, TopicModelSettings())) == {NOISE}


def sample_of(groups, spread=0.1):
    random = np.random.default_rng(0)
    centers = random.normal(size=(groups.max() + 2, 12))
    return unit(centers[groups] + spread * random.normal(size=(len(groups), 12)))


def test_a_number_within_bounds_is_left_alone():
    groups = np.array([0, 0, 1, NOISE, 2, 2])
    bounds = TopicModelSettings(min_topics=2, max_topics=3)
    np.testing.assert_array_equal(within_bounds(groups, sample_of(groups), bounds), groups)


def test_the_largest_group_is_split_first():
    groups = np.repeat([0, 1, NOISE], [90, 20, 5])
    split = within_bounds(groups, sample_of(groups), TopicModelSettings(min_topics=4))
    assert len(np.unique(split[:90])) == 3
    assert len(np.unique(split[90:110])) == 1
    assert set(split[110:]) == {NOISE}
    assert sorted(set(split.tolist())) == [NOISE, 0, 1, 2, 3]


def test_the_nearest_groups_are_merged():
    centers = np.eye(4, dtype=np.float32)
    centers[3] = unit(centers[2] + 0.1)
    groups = np.repeat([0, 1, 2, 3, NOISE], [5, 5, 5, 5, 1])
    sample = centers[np.maximum(groups, 0)]
    merged = within_bounds(groups, sample, TopicModelSettings(min_topics=1, max_topics=3))
    assert merged[10] == merged[15]
    assert len({merged[0], merged[5], merged[10]}) == 3
    assert merged[20] == NOISE


EVERY_WORD = TopicModelSettings(min_word_documents=1)
TEXTS = [
    "alpha bravo charlie delta echoes foxtrot golfer hotel indigo juliet alpha",
    "alpha bravo kilogram",
    "secret secret secret",
    "kilogram kilogram lima",
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Boats, SAILED on 12 seas!", ["boats", "sailed", "seas"]),
        ("I don't, can't and won't; it's Anna's café", ["anna", "café"]),
        ("write to jo.brown@mail.example or www.site.example/page", ["write"]),
        ("x1y2z3 snake_case word2vec <unk>", ["snake", "case", "word", "vec"]),
        ("", []),
    ],
)
def test_words_are_lower_case_letters_without_stop_words(text, expected):
    assert words_of(text, 99) == expected


def test_only_the_first_words_count():
    assert words_of("alpha bravo charlie delta", 2) == ["alpha", "bravo"]


def test_counts_are_those_of_each_topics_documents():
    counted = count_words(TEXTS, np.array([1, 0, NOISE, 0]), 2, EVERY_WORD)
    column = counted.vocabulary.index
    assert counted.counts[1, column("alpha")] == 2
    assert counted.counts[0, column("alpha")] == 1
    assert counted.counts[0, column("kilogram")] == 3
    assert counted.counts.sum() == 11 + 3 + 3
    assert "secret" not in counted.vocabulary


def test_the_vocabulary_holds_the_words_of_most_documents(monkeypatch):
    texts = [f"harbour unique{'abcdefghijklmnop'[n % 16]}" for n in range(200)]
    texts += [" ".join(f"word{letter}" for letter in "abcdefghijklmn")] * 20
    few = TopicModelSettings(min_word_documents=1, vocabulary=100)
    monkeypatch.setattr(keywords, "MAX_DISTINCT_WORDS", 18)
    counted = count_words(texts, np.zeros(220, dtype=np.int64), 1, few)
    assert counted.vocabulary[0] == "harbour"
    assert counted.counts[0, 0] == 200


def test_a_word_of_one_document_is_no_keyword_of_a_large_corpus():
    texts = ["alpha bravo charlie delta echoes foxtrot golfer hotel indigo juliet"] * 600
    texts[0] += " fingerprint"
    counted = count_words(texts, np.zeros(600, dtype=np.int64), 1, TopicModelSettings())
    assert "fingerprint" not in counted.vocabulary
