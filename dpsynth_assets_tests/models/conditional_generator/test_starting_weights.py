"""A fresh generator: knows how frequent tokens are, and leans towards its condition's words."""

import numpy as np
import pytest
import torch

from dpsynth_assets.models.byte_tokenizer import train_tokenizer
from dpsynth_assets.models.conditional_generator import load_conditional_generator
from dpsynth_assets.models.conditional_generator.perplexity import public_perplexity
from dpsynth_assets.models.conditional_generator.starting_weights import (
    CopyingAttention,
    log_frequencies,
    set_public_embeddings,
    set_starting_weights,
    write_new_model,
)


@pytest.fixture
def fresh(two_topics, tiny_settings, tmp_path):
    train_tokenizer(two_topics["text"], tiny_settings.vocabulary, tmp_path)
    torch.manual_seed(0)
    settings = tiny_settings.model_copy(update={"width": 64, "decoder_layers": 2})
    write_new_model(settings, tmp_path)
    return load_conditional_generator(tmp_path, device="cpu")


def test_a_fresh_generator_starts_near_the_unigram_perplexity(fresh, two_topics):
    pairs = [("", text) for text in two_topics["text"]]
    documents = fresh.encoder.document_ids([text for _, text in pairs], 48)
    tokens = np.concatenate(documents)
    entropy = -log_frequencies(documents, fresh.config.vocab_size)[tokens].mean()
    assert public_perplexity(fresh, pairs) > 2 * np.exp(entropy)
    set_starting_weights(fresh.model, documents)
    assert public_perplexity(fresh, pairs) < 1.6 * np.exp(entropy)


def test_a_fresh_generator_leans_towards_the_words_of_its_condition(fresh, two_topics):
    documents = fresh.encoder.document_ids(two_topics["text"].to_list(), 48)
    set_starting_weights(fresh.model, documents)
    words = {"music": " violin", "heating": " boiler"}
    tokens = {topic: fresh.checkpoint.encode(word)[-1] for topic, word in words.items()}
    logits = {
        topic: fresh.model(**fresh.encode_pairs([f"Keywords:{word}"], ["The"]).inputs).logits[0, -1]
        for topic, word in words.items()
    }
    for topic, other in (("music", "heating"), ("heating", "music")):
        lead = logits[topic] - logits[other]
        assert lead[tokens[topic]] > lead[tokens[other]] + 0.05


def test_spellings_of_one_word_start_alike_yet_apart():
    tokens = ["boiler", " boiler", " Boiler", " garden", " qqqq", "\n"]
    weight = torch.randn(6, 64, generator=torch.Generator().manual_seed(0)) * 0.05
    before, size = weight.clone(), weight.std()
    assert set_public_embeddings(weight, tokens) == 3
    near = torch.cosine_similarity(weight[1], weight[2], dim=0)
    assert 0.5 < near < 0.99
    assert near > torch.cosine_similarity(weight[1], weight[4], dim=0) + 0.3
    assert torch.equal(weight[[0, 4, 5]], before[[0, 4, 5]])
    assert float(weight.std()) == pytest.approx(float(size), rel=0.3)


def test_copying_attention_is_put_back_after_a_step(fresh):
    set_starting_weights(fresh.model, [[5, 6, 7]])
    copying = CopyingAttention(fresh.model)
    attention = fresh.model.model.decoder.layers[-1].encoder_attn
    before = [parameter.clone() for parameter in attention.parameters()]
    with torch.no_grad():
        for parameter in fresh.model.parameters():
            parameter.add_(0.5)
    copying.restore()
    for parameter, value in zip(attention.parameters(), before, strict=True):
        assert torch.equal(parameter, value) == (parameter.dim() == 2)
