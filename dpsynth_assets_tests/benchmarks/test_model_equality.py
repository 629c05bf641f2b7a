"""Architectures decode to the logits of their own forward pass, or are refused before a charge."""

import pytest
from model_equality import configurations, differences, random_model
from transformers import Mamba2Config

from dpsynth_assets.models.transformers_decoder import cached_attention
from dpsynth_assets.models.transformers_decoder.opening import require_equal_logits


def test_every_architecture_gives_the_logits_of_its_own_forward_pass():
    assert {name: apart for name, apart in differences("cpu").items() if apart > 1e-4} == {}


@pytest.mark.parametrize("name", ["gemma3", "mistral"])
def test_a_model_is_tried_before_it_decodes(monkeypatch, name):
    model = random_model(configurations()[name])
    monkeypatch.setattr(cached_attention, "sliding_window", lambda _: None)
    with pytest.raises(ValueError, match=r"packed logits of .* got [01]\..* decoder: vllm"):
        require_equal_logits(model)


def test_a_model_that_keeps_more_of_a_row_than_keys_and_values_is_refused():
    mamba = Mamba2Config(
        vocab_size=61, hidden_size=32, num_heads=8, head_dim=8, n_groups=1, num_hidden_layers=1
    )
    with pytest.raises(ValueError, match="packed logits of mamba2"):
        require_equal_logits(random_model(mamba))
