"""Pooled hidden states: the plain model's, one pass a text, whoever shares the pass."""

import weakref

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, LlamaConfig

from dpsynth_assets.models.engines import EngineError
from dpsynth_assets.models.engines.hidden_states import pooled_states
from dpsynth_assets.models.engines.residual_stream import decoder_layers
from dpsynth_assets.models.engines.transformers_engine import TransformersEngine

_SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "initializer_range": 0.3,
}  # fmt: skip
CONFIGS = {
    "llama": LlamaConfig(**_SMALL),
    "gemma2": Gemma2Config(**_SMALL, head_dim=8, query_pre_attn_scalar=8, sliding_window=128),
    "gpt2": GPT2Config(
        vocab_size=61, n_embd=32, n_layer=3, n_head=4, n_positions=256, initializer_range=0.3
    ),
}
BEGIN, PAD = 1, 0


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def model(request):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[request.param]).eval()


@pytest.fixture(scope="module")
def texts():
    draw = np.random.default_rng(0)
    return [draw.integers(2, 61, n).tolist() for n in (1, 5, 31, 32, 40, 100, 7, 3)]


def states(model, texts, layers, **options):
    settings = {"begin_token_id": BEGIN, "pad_token_id": PAD, "pooling": "mean"}
    return pooled_states(model, texts, layers, **(settings | {"tokens_per_pass": 128} | options))


@torch.no_grad()
def plain(model, text, layer, pooling="mean"):
    """Of a layer but the last, which transformers normalises before it tells it."""
    output = model(torch.tensor([[BEGIN, *text]]), output_hidden_states=True, use_cache=False)
    own = output.hidden_states[layer + 1][0, 1:].numpy()
    return own.mean(0) if pooling == "mean" else own[-1]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_states_are_the_plain_models_over_own_tokens(model, texts, pooling):
    pooled = states(model, texts, [0, 1], pooling=pooling)
    assert set(pooled) == {0, 1}
    for layer, rows in pooled.items():
        assert rows.shape == (len(texts), 32)
        assert rows.dtype == np.float32
        expected = [plain(model, text, layer, pooling) for text in texts]
        np.testing.assert_allclose(rows, expected, atol=1e-4)


def test_every_text_passes_once_and_later_layers_are_not_computed(model, texts):
    rows, later = [], []
    layers = decoder_layers(model)
    hooks = [
        layers[0].register_forward_pre_hook(lambda _m, inputs: rows.append(inputs[0].shape[:2])),
        layers[2].register_forward_pre_hook(lambda _m, inputs: later.append(1)),
    ]
    states(model, texts, [1])
    for hook in hooks:
        hook.remove()
    assert rows == [(4, 32), (4, 32), (2, 64), (1, 128)]  # 5 texts, 2, 1, each within 128 tokens
    assert not later


def test_five_hundred_documents_pass_once_each_in_passes_of_bounded_size():
    """Memory does not grow with their number: no pass is larger than what it is bounded by."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"]).eval()
    draw = np.random.default_rng(1)
    documents = [draw.integers(2, 61, n).tolist() for n in draw.integers(1, 200, 500)]
    shapes, kept = [], []
    layers = decoder_layers(model)
    layers[0].register_forward_pre_hook(lambda _m, inputs: shapes.append(inputs[0].shape[:2]))
    layers[1].register_forward_hook(lambda _m, _i, output: kept.append(weakref.ref(output)))
    made = states(model, documents, [1], tokens_per_pass=1024)
    columns = {width for _, width in shapes}
    assert columns == {32, 64, 96, 128, 160, 192, 224}
    assert all(rows * width <= 1024 for rows, width in shapes)
    filler = sum(1024 // width - 1 for width in columns)
    assert 500 <= sum(rows for rows, _ in shapes) <= 500 + filler
    assert sum(reference() is not None for reference in kept) <= 1  # no pass outlives the next
    assert made[1].nbytes == 500 * 32 * 4
    assert (np.abs(made[1]).sum(axis=1) > 0).all()


def test_company_does_not_move_a_texts_states(model, texts):
    """To the last bit: the shapes of a pass depend on the length of its own texts alone."""
    together = states(model, texts, [1])[1]
    for row, text in enumerate(texts):
        np.testing.assert_array_equal(states(model, [text], [1])[1][0], together[row])


def test_a_text_without_tokens_gives_zeros(model):
    pooled = states(model, [[], [5, 6]], [0])
    assert not pooled[0][0].any()
    assert pooled[0][1].any()
    assert not states(model, [[]], [0])[0].any()


def test_progress_ends_at_one(model, texts):
    shares = []
    states(model, texts, [0], progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_the_engine_encodes_and_cuts(toy_model):
    engine = TransformersEngine(toy_model)
    text = "The parcel has not arrived yet."
    ids = toy_model.encode(text)
    whole, cut = engine.hidden_states([text], [0]), engine.hidden_states([text], [0], max_tokens=3)
    np.testing.assert_array_equal(whole[0], engine.hidden_states([ids], [0])[0])
    np.testing.assert_array_equal(cut[0], engine.hidden_states([ids[:3]], [0])[0])
    long = engine.hidden_states([text * 200], [0])
    np.testing.assert_array_equal(
        long[0], engine.hidden_states([text * 200], [0], max_tokens=engine.positions - 2)[0]
    )


@pytest.mark.parametrize("layers", [[], [2], [-1], [0, 0]])
def test_layers_that_do_not_exist_are_refused(toy_model, layers):
    with pytest.raises(EngineError, match="layers in"):
        TransformersEngine(toy_model).hidden_states(["a"], layers)
