import numpy as np
import pytest

from dpsynth_assets.models.topic_model.fitting import fit_topic_model
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


def test_a_refined_topic_is_the_mean_direction_of_its_members(corpus, model):
    nearest = (corpus.embeddings @ model.embeddings.T).argmax(axis=1)
    means = unit(np.stack([corpus.embeddings[nearest == t].mean(axis=0) for t in range(TOPICS)]))
    np.testing.assert_allclose((means * model.embeddings).sum(axis=1), 1, atol=1e-3)


def test_memory_maps_and_lazy_texts_give_the_same_topics(corpus, settings, model, tmp_path):
    np.save(tmp_path / "embeddings.npy", corpus.embeddings)
    mapped = np.load(tmp_path / "embeddings.npy", mmap_mode="r")
    assert_same(fit(corpus, settings, Lazy(corpus.texts), mapped), model)


def test_documents_outside_the_sample_are_assigned_to_its_topics(corpus, settings):
    small = settings.model_copy(update={"sample_documents": 240})
    fitted = fit(corpus, small)
    assert fitted.topics == TOPICS
    assert fitted.sizes.sum() > 0.99 * len(corpus.texts)


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


@pytest.mark.parametrize(("fewest", "most"), [(2, 3), (12, 15), (4, 4)])
def test_the_number_of_topics_keeps_its_bounds(corpus, settings, fewest, most):
    bounded = settings.model_copy(update={"min_topics": fewest, "max_topics": most})
    assert fewest <= fit(corpus, bounded).topics <= most


def test_text_without_any_dense_group_still_gets_topics(corpus, settings):
    random = np.random.default_rng(0)
    shapeless = unit(random.normal(size=corpus.embeddings.shape))
    few = settings.model_copy(update={"min_cluster_size": 290, "min_topics": 5})
    assert fit(corpus, few, embeddings=shapeless).topics == 5


def test_bad_input_is_refused_in_one_line(corpus, settings):
    cases = {
        "one text for each embedding": {"texts": Lazy(corpus.texts[:-1])},
        "shape": {"embeddings": corpus.embeddings[0]},
        "unit length": {"embeddings": 2 * corpus.embeddings},
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
