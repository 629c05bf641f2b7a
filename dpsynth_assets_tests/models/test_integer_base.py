"""Frozen layers in integers: what they compute, and that a record alone gives the same bits."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from dpsynth_assets.models.fine_tuning.adapters import (
    add_adapters,
    merge_adapters,
    multiply_in_integers,
)
from dpsynth_assets.models.fine_tuning.sources import CausalLoss, TokenExample, micro_batches
from dpsynth_assets.privacy.per_example import LossOfPart, PerExampleGradients, Products
from dpsynth_assets_tests.tiny_models import random_llama

LOSS = CausalLoss(pad_token_id=0, start_token_id=1)
BOUND = 0.5


llama = partial(
    random_llama,
    97,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)


def adapted(*, integers=True, modules=None):
    model = add_adapters(llama(), 3, modules=modules)
    torch.manual_seed(1)
    for name, each in model.named_parameters():
        if "lora_B" in name:  # starts at zero, where half of the gradients vanish
            torch.nn.init.normal_(each, std=0.05)
    if integers:
        multiply_in_integers(model)
    return model


def examples(count, seed=0):
    draw = torch.Generator().manual_seed(seed)

    def tokens(length):
        return torch.randint(2, 97, (length,), generator=draw).tolist()

    return [TokenExample(tokens(3 + k % 4), tokens(5 + 3 * k)) for k in range(count)]


def alone(part):
    return [LossOfPart(1, lambda model, each=each: LOSS(model, [each])) for each in part]


def clipped(model, parts, threads=1):
    gradients = PerExampleGradients(model, Products.FLOAT64, threads)
    sums, _ = gradients.private_clipped_sums(parts, BOUND)
    return torch.cat([each.flatten() for each in sums])


def loss_and_gradient(model, part):
    model.zero_grad()
    LOSS(model, part).sum().backward()
    trained = [each.grad.flatten() for each in model.parameters() if each.requires_grad]
    return float(LOSS(model, part).sum()), torch.cat(trained)


def test_losses_and_gradients_are_close_to_those_of_float32():
    part = examples(6)
    loss, gradient = loss_and_gradient(adapted(integers=False), part)
    found, rounded = loss_and_gradient(adapted(), part)
    assert found == pytest.approx(loss, rel=0.02)
    assert torch.cosine_similarity(gradient, rounded, dim=0) > 0.98
    assert found != loss


def test_only_adapters_are_trained_and_every_frozen_layer_is_in_integers():
    model = adapted()
    kinds = [type(each).__name__ for each in model.modules()]
    trained = [name for name, each in model.named_parameters() if each.requires_grad]
    assert kinds.count("IntegerLinear") == 2 * 7 + 1  # the output layer, too
    assert all("lora_" in name for name in trained)


def test_a_records_clipped_gradient_is_a_function_of_that_record_alone():
    """Whoever else is drawn, in whatever order and thread; float64 sums are exact far below."""
    model, part = adapted(), examples(7)
    own = [clipped(model, alone([each])) for each in part]
    assert all(torch.equal(a, clipped(model, alone([b]))) for a, b in zip(own, part, strict=True))
    for chosen, threads in ([range(7), 1], [[5, 0, 3], 1], [[6, 2, 1, 4, 0], 2]):
        (batch,) = [[part[index] for index in chosen]]
        cut = micro_batches(batch, np.arange(len(batch)), LOSS, 1)
        together = clipped(model, alone([each for (each,) in cut]), threads)
        assert (together - sum(own[index] for index in chosen)).abs().max() < 1e-14
    shared = clipped(model, [LossOfPart(7, lambda model: LOSS(model, part))])
    assert (shared - sum(own)).abs().max() > 1e-10  # in one pass that is not so


def test_copies_share_the_integers():
    model = adapted()
    layers = [each for each in model.modules() if type(each).__name__ == "IntegerLinear"]
    copies = [
        each for each in copy.deepcopy(model).modules() if type(each).__name__ == "IntegerLinear"
    ]
    assert all(a._products is b._products for a, b in zip(layers, copies, strict=True))


def test_merged_weights_are_those_of_float32_layers(tmp_path):
    expected, found = merge_adapters(adapted(integers=False)), merge_adapters(adapted())
    for (name, left), (other, right) in zip(
        expected.state_dict().items(), found.state_dict().items(), strict=True
    ):
        assert name == other
        assert torch.equal(left, right)
    found.save_pretrained(tmp_path)
    again = LlamaForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again.lm_head.weight, again.model.embed_tokens.weight)


def test_named_modules_alone_are_adapted():
    model = adapted(integers=False, modules=["q_proj", "down_proj"])
    trained = {name.split(".")[-4] for name, each in model.named_parameters() if each.requires_grad}
    assert trained == {"q_proj", "down_proj"}
