"""The copying start: an untrained model repeats what its prompt holds."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dpsynth_assets.models.copying_start import start_with_copying


def test_a_fresh_model_already_copies_what_followed_a_token_before():
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
