"""Pooled hidden states: the plain model's, a pass of its own for every private text."""

import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, LlamaConfig

from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.models.decoding.protocol import StateReading
from dpsynth_assets.models.engines.decoder_engine import DecoderEngine
from dpsynth_assets.models.engines.protocol import EngineError, Provenance
from dpsynth_assets.models.transformers_decoder.residual_stream import decoder_layers, pooled_states
from dpsynth_assets.models.vllm_decoder import engine as vllm_engine
from dpsynth_assets.models.vllm_decoder.engine import VllmEngine
from dpsynth_assets_tests.models.engines.decoder_logits import observed

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


def states(model, texts, layers, tokens_per_pass=128, **options):
    return pooled_states(
        model, texts, StateReading(layers, begin=[BEGIN], **options), tokens_per_pass
    )


@torch.no_grad()
def plain(model, text, layer):
    """Of a layer but the last, which transformers normalises before it tells it."""
    output = model(torch.tensor([[BEGIN, *text]]), output_hidden_states=True, use_cache=False)
    return output.hidden_states[layer + 1][0, 1:].numpy().mean(0)


def test_states_are_the_plain_models_over_own_tokens(model, texts):
    pooled = states(model, texts, [0, 1])
    assert set(pooled) == {0, 1}
    for layer, rows in pooled.items():
        assert rows.shape == (len(texts), 32)
        assert rows.dtype == np.float32
        expected = [plain(model, text, layer) for text in texts]
        np.testing.assert_allclose(rows, expected, atol=1e-4)


def shapes_of_passes(model, texts, **options):
    """Rows and columns of every pass, and of those that computed a later layer."""
    with observed(model) as shapes, observed(model, layer=2) as later:
        states(model, texts, [1], **options)
    return shapes, later


@pytest.mark.parametrize("provenance", [Provenance.PUBLIC, Provenance.RELEASED])
def test_texts_that_may_be_known_share_passes_and_later_layers_are_not_computed(
    model, texts, provenance
):
    rows, later = shapes_of_passes(model, texts, provenance=provenance)
    assert rows == [(4, 32), (4, 32), (2, 64), (1, 128)]  # 5 texts, 2, 1, each within 128 tokens
    assert not later


@pytest.mark.parametrize("options", [{}, {"provenance": Provenance.PRIVATE}, {"provenance": "?"}])
def test_a_private_text_is_alone_in_its_pass_which_is_as_long_as_it(model, texts, options):
    """Whoever forgets to say what texts are gets passes that are safe for any."""
    rows, later = shapes_of_passes(model, texts, **options)
    assert sorted(rows) == sorted((1, 1 + len(text)) for text in texts)
    assert not later


def test_five_hundred_documents_pass_once_each_in_passes_of_bounded_size():
    """Memory does not grow with their number: no pass is larger than what it is bounded by."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"]).eval()
    draw = np.random.default_rng(1)
    documents = [draw.integers(2, 61, n).tolist() for n in draw.integers(1, 200, 500)]
    kept, public = [], Provenance.PUBLIC
    second = decoder_layers(model)[1]
    second.register_forward_hook(lambda _m, _i, output: kept.append(weakref.ref(output)))
    with observed(model) as shapes:
        made = states(model, documents, [1], tokens_per_pass=1024, provenance=public)
    columns = {width for _, width in shapes}
    assert columns == {32, 64, 96, 128, 160, 192, 224}
    assert all(rows * width <= 1024 for rows, width in shapes)
    filler = sum(1024 // width - 1 for width in columns)
    assert 500 <= sum(rows for rows, _ in shapes) <= 500 + filler
    assert sum(reference() is not None for reference in kept) <= 1  # no pass outlives the next
    assert made[1].nbytes == 500 * 32 * 4
    assert (np.abs(made[1]).sum(axis=1) > 0).all()


def test_positions_that_follow_the_longest_text_of_a_pass_follow_a_private_text_itself():
    """Some models turn positions otherwise once a pass is long: padding alone would move a text."""
    rope = {
        "rope_type": "longrope", "rope_theta": 10_000.0, "original_max_position_embeddings": 40,
        "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 4.0,
    }  # fmt: skip
    torch.manual_seed(0)
    config = LlamaConfig(**_SMALL, rope_parameters=rope)
    model = AutoModelForCausalLM.from_config(config).eval()
    short, long = [7, 8, 9] * 12, [5, 6] * 30
    alone = states(model, [short], [1])[1][0]
    np.testing.assert_array_equal(states(model, [long, short], [1])[1][1], alone)
    padded = states(model, [short], [1], provenance=Provenance.PUBLIC)[1][0]
    assert np.abs(padded - alone).max() > 1e-4


def test_equal_texts_of_an_engine_pass_once(toy_model):
    engine = DecoderEngine(toy_model)
    engine.hidden_states(["two"], [0])  # Compares its logits first.
    with observed(toy_model.model) as shapes:
        read = engine.hidden_states(["one", "another one", "one"], [0])[0]
    assert [rows for rows, _ in shapes] == [1, 1]
    np.testing.assert_array_equal(read[0], read[2])
    assert (read[0] != read[1]).any()


def test_a_text_without_tokens_gives_zeros(model):
    pooled = states(model, [[], [5, 6]], [0])
    assert not pooled[0][0].any()
    assert pooled[0][1].any()
    assert not states(model, [[]], [0])[0].any()


def test_the_engine_encodes_and_cuts(toy_model):
    engine = DecoderEngine(toy_model)
    text = "The parcel has not arrived yet."
    ids = toy_model.encode(text)
    whole = engine.hidden_states([text], [0])
    np.testing.assert_array_equal(whole[0], engine.hidden_states([ids], [0])[0])
    long, most = toy_model.encode(text * 200), engine.positions - 2
    np.testing.assert_array_equal(*(engine.hidden_states([t], [0])[0] for t in (long, long[:most])))


@pytest.mark.parametrize("layers", [[], [2], [-1], [0, 0]])
def test_layers_that_do_not_exist_are_refused(toy_model, layers):
    with pytest.raises(EngineError, match="layers in"):
        DecoderEngine(toy_model).hidden_states(["a"], layers)


# Which texts vLLM gets at once when states are read; a stand-in takes the place of vLLM.

TEXTS = [[5, 6], [], [7, 8, 9]]


class Served:
    """Takes requests as vLLM does, and notes which come together."""

    def __init__(self):
        self.together, self.waiting = [], {}

    def generate(self, requests, parameters, use_tqdm):
        self.together.append([request["prompt_token_ids"] for request in requests])
        for request, own in zip(requests, parameters, strict=True):
            row = own.extra_args["dpsynth_document"]
            self.waiting[row] = np.full((1, 4), sum(request["prompt_token_ids"]), np.float32)
        return requests

    def collective_rpc(self, method, args):
        return [self.waiting if method == "dpsynth_take_states" else None]

    def reset_prefix_cache(self):
        pass


@pytest.fixture
def engine(monkeypatch):
    stand_in = SimpleNamespace(SamplingParams=SimpleNamespace, TokensPrompt=dict)
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    monkeypatch.setattr(vllm_engine, "opened_llm", lambda *_, **__: Served())
    served = SimpleNamespace(
        begin_token_id=1,
        vocabulary_size=20,
        name="served",
        encode=None,
        config=SimpleNamespace(hidden_size=4, num_hidden_layers=2, max_position_embeddings=64),
    )
    return VllmEngine(served, EngineSpec(kind="vllm"))


def test_private_texts_are_served_one_after_another_and_others_at_once(engine):
    private = engine.hidden_states(TEXTS, [0])
    assert engine._llm.together == [[[1, 5, 6]], [[1, 7, 8, 9]]]
    for provenance in (Provenance.PUBLIC, Provenance.RELEASED):
        engine._llm.together.clear()
        known = engine.hidden_states(TEXTS, [0], provenance=provenance)
        assert engine._llm.together == [[[1, 5, 6], [1, 7, 8, 9]]]
        np.testing.assert_array_equal(known[0], private[0])
    assert private[0][:, 0].tolist() == [12.0, 0.0, 25.0]


def test_progress_counts_private_texts(engine):
    shares = []
    engine.hidden_states(TEXTS, [0], progress=shares.append)
    assert shares == [0.5, 1.0]
