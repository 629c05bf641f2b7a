import numpy as np
import pytest

from dpsynth_assets.models.topic_model.fitting import fit_topic_model
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
    for topic in (-1, model.bins):
        with pytest.raises(ValueError, match="Expected a topic in"):
            model.condition_keywords(topic)


def test_odd_embeddings_are_unclassified_or_refused(model):
    odd = np.array([np.full(DIMENSION, np.nan), np.zeros(DIMENSION)], dtype=np.float32)
    assert model.assign(odd).tolist() == [TOPICS, TOPICS]
    assert model.assign(np.zeros((0, DIMENSION), np.float32)).shape == (0,)
    for shape in ((2, DIMENSION + 1), (DIMENSION,)):
        with pytest.raises(ValueError, match="planted"):
            model.assign(np.zeros(shape, np.float32))
