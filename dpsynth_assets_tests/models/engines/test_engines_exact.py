"""The exact engine writes what the model writes, and a prompt's text depends on it alone."""

import numpy as np
import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from dpsynth_assets.datasets.engine import EngineSpec
from dpsynth_assets.models.engines import Capability, Engine, EngineError, Sampling
from dpsynth_assets.models.engines.decoder_engine import DecoderEngine
from dpsynth_assets.models.engines.opening import open_engine, serving
from dpsynth_assets.models.language_model import load_language_model

LAYERS = (0, 1)


@pytest.fixture(scope="module")
def engine(toy_model):
    return DecoderEngine(toy_model, "exact", batch_rows=5)


@pytest.fixture(scope="module")
def plain(toy_model):
    return DecoderEngine(toy_model)


@pytest.fixture(scope="module")
def prompts(toy_model):
    """Twelve prompts of seven kinds and lengths; some stand there several times."""
    labels = ["billing", "delivery", "a", "heating and water", "refund, late", "x y", ""]
    kinds = [toy_model.prompt_ids(label, [], 8) for label in labels]
    return kinds + kinds[:3] + kinds[1:3]


@pytest.fixture(scope="module")
def vectors(engine):
    draw = np.random.default_rng(0)
    return {layer: draw.standard_normal(engine.width).astype(np.float32) for layer in LAYERS}


def close(left, right):
    return np.square(left - right).mean() < 0.01 * np.square(right).mean()


def test_the_engine_keeps_the_protocol(engine):
    assert isinstance(engine, Engine)
    assert engine.capabilities == set(Capability)
    assert (engine.layers, engine.width) == (2, 32)


def test_logits_are_close_to_the_models_and_equal_in_any_company(engine, plain, prompts):
    together = engine.next_token_logits(prompts)
    assert close(together, plain.next_token_logits(prompts))
    np.testing.assert_array_equal(engine.next_token_logits(prompts[::-1])[::-1], together)
    for row, prompt in enumerate(prompts):
        np.testing.assert_array_equal(engine.next_token_logits([prompt])[0], together[row])


@pytest.mark.parametrize(
    "settings", [{}, {"top_k": 9}, {"top_p": 0.8, "temperature": 0.7}, {"temperature": 0}], ids=str
)
def test_a_row_writes_the_same_in_batches_of_any_size(toy_model, engine, prompts, settings):
    sampling = Sampling(max_new_tokens=12, seed=4, **settings)
    written = engine.generate(prompts, sampling)
    assert DecoderEngine(toy_model, "exact", batch_rows=64).generate(prompts, sampling) == written
    assert engine.generate(prompts[:4], sampling) == written[:4]
    assert all(len(each.token_ids) <= 12 for each in written)


def test_steering_moves_what_it_moves_in_the_model(engine, plain, prompts, vectors):
    with engine.steered(vectors, 0.7) as steered, plain.steered(vectors, 0.7) as expected:
        logits = steered.next_token_logits(prompts)
        assert close(logits, expected.next_token_logits(prompts))
    assert not close(engine.next_token_logits(prompts), logits)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_hidden_states_are_the_models_and_a_function_of_the_text(engine, plain, pooling):
    texts = ["late again", "", "a", "the heating in room 4 is cold " * 3, "x", "late again"]
    states = engine.hidden_states(texts, LAYERS, pooling)
    expected = plain.hidden_states(texts, LAYERS, pooling)
    for layer in LAYERS:
        assert close(states[layer], expected[layer])
        assert not states[layer][1].any()
        for row, text in enumerate(texts):
            alone = engine.hidden_states([text], [layer], pooling)[layer][0]
            np.testing.assert_array_equal(alone, states[layer][row])


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_texts_behind_a_prompt_have_the_states_they_have_after_it(engine, plain, pooling):
    """The prompt is read once: each text's states are those of prompt and text read together."""
    language_model = engine.language_model
    behind = language_model.encode("the kitchen was closed ")
    texts = ["late again", "", "a", "the heating in room 4 is cold"]
    states = engine.hidden_states(texts, LAYERS, pooling, behind=behind)
    expected = plain.hidden_states(texts, LAYERS, pooling, behind=behind)
    for layer in LAYERS:
        assert close(states[layer], expected[layer])
        assert not states[layer][1].any()
    whole = [[*behind, *language_model.encode(text)] for text in texts]
    last = engine.hidden_states(whole, LAYERS, "last")
    for layer in LAYERS if pooling == "last" else ():
        np.testing.assert_array_equal(states[layer][[0, 2, 3]], last[layer][[0, 2, 3]])


def test_progress_rises_to_one(engine, prompts):
    shares = []
    engine.generate(prompts, Sampling(max_new_tokens=2), progress=shares.append)
    engine.hidden_states(["a", "", "b"], [0], progress=shares.append)
    assert shares[-1] == 1
    assert all(0 < share <= 1 for share in shares)


def test_a_declaration_opens_it(toy_model, prompts):
    spec = EngineSpec(kind="exact", batch_rows=3)
    opened = open_engine(spec, language_model=toy_model)
    assert opened.decoder.is_exact
    assert open_engine(spec, language_model=toy_model) is opened
    with serving(spec, toy_model) as own:
        own.next_token_logits(prompts[:1])
    with pytest.raises(EngineError, match="got one that was closed"):
        own.next_token_logits(prompts[:1])


def test_another_architecture_is_refused_in_one_line(toy_model, tmp_path):
    GPT2LMHeadModel(GPT2Config(vocab_size=300, n_embd=8, n_layer=1, n_head=2)).save_pretrained(
        tmp_path
    )
    toy_model.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(EngineError, match="Expected a Llama model") as refusal:
        DecoderEngine(load_language_model(tmp_path, device="cpu"), "exact")
    assert "\n" not in str(refusal.value)
