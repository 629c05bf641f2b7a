"""Training: equal by seed, loads in transformers, learns, and packs documents of one label."""

import json

import numpy as np
import polars as pl
import pytest
from mailboxes import public_rows

from dpsynth_assets.models.language_model import load_language_model
from dpsynth_assets.models.language_model_training import TrainingSettings, train_language_model
from dpsynth_assets.models.prompt_sampler import EncodedDocuments, PromptSampler, similar_groups


@pytest.fixture(scope="session")
def toy_documents():
    return pl.DataFrame(public_rows(200, seed=0))


@pytest.fixture(scope="session")
def toy_settings():
    return TrainingSettings(
        vocabulary=400, width=32, heads=2, layers=2, feed_forward=48, token_budget=6000,
        batch_tokens=512, sequence_tokens=(128, 256), threads=1,
    )  # fmt: skip


@pytest.fixture(scope="session")
def trained_folder(toy_documents, toy_settings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "toy"
    train_language_model(toy_documents, folder, toy_settings)
    return folder


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def test_equal_seeds_give_equal_weights_and_others_do_not(
    toy_documents, trained_folder, toy_settings, tmp_path
):
    train_language_model(toy_documents, tmp_path / "same", toy_settings)
    other = toy_settings.model_copy(update={"seed": 1})
    train_language_model(toy_documents, tmp_path / "other", other)
    assert weights(tmp_path / "same") == weights(trained_folder)
    assert weights(tmp_path / "other") != weights(trained_folder)


def test_training_does_not_touch_the_global_generator_or_threads(
    toy_documents, toy_settings, tmp_path
):
    import torch

    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    train_language_model(toy_documents, tmp_path, toy_settings)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_the_folder_loads_in_plain_transformers_as_a_llama(trained_folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(trained_folder)
    tokenizer = AutoTokenizer.from_pretrained(trained_folder)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.decode(tokenizer.encode("Dear 42.", add_special_tokens=False)) == "Dear 42."


def test_digits_are_tokens_of_their_own(toy_model):
    assert len(toy_model.encode("90210")) == 5


def test_a_few_steps_beat_the_uniform_guess(trained_folder, toy_settings):
    facts = json.loads((trained_folder / "training_facts.json").read_text())
    assert facts["perplexity"] < 0.8 * load_language_model(trained_folder).vocabulary_size
    assert facts["training_tokens"] >= toy_settings.token_budget
    assert len(facts["perplexity_by_position"]) >= 2


def test_documents_without_labels_or_groups_can_be_trained_on(toy_documents, tmp_path):
    settings = TrainingSettings(
        vocabulary=300, width=16, heads=2, layers=2, feed_forward=16, token_budget=300,
        batch_tokens=128, sequence_tokens=(64,), threads=1,
    )  # fmt: skip
    facts = train_language_model(toy_documents.select("text"), tmp_path, settings)
    assert facts["steps"] >= 2


def test_progress_rises_to_one_and_shows_losses_only(toy_documents, toy_settings, tmp_path):
    seen = []
    train_language_model(
        toy_documents, tmp_path, toy_settings, lambda share, text: seen.append((share, text))
    )
    shares = [share for share, _ in seen]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert not any(text[:20] in message for _, message in seen for text in toy_documents["text"])


def test_too_few_documents_are_refused(tmp_path):
    with pytest.raises(ValueError, match="at least 20 public documents to train on, got 2"):
        train_language_model(pl.DataFrame({"text": ["a", "b"]}), tmp_path)


def test_heads_that_do_not_divide_the_width_are_refused(toy_documents, tmp_path):
    with pytest.raises(ValueError, match="multiple of heads"):
        train_language_model(toy_documents, tmp_path, TrainingSettings(width=50, heads=4))


def encoded(labels, groups):
    tokens = tuple(np.full(4, index + 10) for index in range(len(labels)))
    return EncodedDocuments(tokens, tuple(labels), tuple(groups), begin_token_id=0)


def test_a_sequence_of_enough_documents_keeps_to_one_label():
    labels = ["a", "b"] * 20
    sampler = PromptSampler(encoded(labels, ["g"] * 40), group_share=0.5, seed=0)
    rows, _ = sampler.rows(30, 17)
    for row in rows:
        assert len({labels[token - 10] for token in row[1:]}) == 1


def test_a_sequence_takes_its_own_group_before_others():
    groups = [f"org{index // 10}/topic" for index in range(40)]
    sampler = PromptSampler(encoded(["a"] * 40, groups), group_share=1.0, seed=0)
    rows, places = sampler.rows(30, 17)
    for row, place in zip(rows, places, strict=True):
        assert len({groups[token - 10] for token in row[1:]}) == 1
        assert place[-1] == 3


def test_held_out_groups_share_no_document_or_organisation_with_training():
    groups = [f"org{index // 4}/{index % 2}" for index in range(40)]
    training, held_out = encoded(["a"] * 40, groups).split(0.2, seed=0)
    assert len(training.tokens) + len(held_out.tokens) == 40
    outer = [{group.split("/")[0] for group in part.groups} for part in (training, held_out)]
    assert not outer[0] & outer[1]
    assert len(held_out.tokens) == 8


def test_documents_with_the_same_words_share_a_group():
    texts = ["boiler heating radiator cold"] * 20 + ["pizza garlic olives bread"] * 20
    groups = similar_groups(texts, seed=0)
    assert not set(groups[:20]) & set(groups[20:])


def test_muon_trains_the_matrices_of_the_layers_and_adamw_all_the_rest(
    trained_folder, toy_settings
):
    import torch

    from dpsynth_assets.models.language_model_training import _optimizers

    model = load_language_model(trained_folder).model
    muon, adam = _optimizers(model, toy_settings)
    assert isinstance(muon, torch.optim.Muon)
    assert muon.param_groups[0]["weight_decay"] == 0.0
    trained = [id(p) for each in (muon, adam) for p in each.param_groups[0]["params"]]
    assert sorted(trained) == sorted(id(each) for each in model.parameters())
    assert id(model.get_input_embeddings().weight) in trained[len(muon.param_groups[0]["params"]) :]


def test_a_fresh_model_already_copies_what_followed_a_token_before(toy_settings):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from dpsynth_assets.models.copying_start import CopyingHeads, start_with_copying

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=500, hidden_size=128, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    start_with_copying(model)
    once = torch.randperm(500)[:30].repeat(1, 1)
    rows = torch.cat([once, once], dim=1)
    guesses = model(rows).logits[0, 31:-1].argmax(-1)
    assert (guesses == rows[0, 32:]).float().mean() > 0.8
    heads = CopyingHeads(model)
    before = model.model.layers[0].self_attn.k_proj.weight.clone()
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight.add_(1.0)
    heads.restore()
    assert torch.equal(model.model.layers[0].self_attn.k_proj.weight, before)
