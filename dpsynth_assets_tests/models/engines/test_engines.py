"""Engines over decoders write what the plain model writes, steer and read it, in any company."""

import json

import numpy as np
import pytest
import torch

from dpsynth_assets.models.decoding import JsonConstraint
from dpsynth_assets.models.engines.decoder_engine import DecoderEngine
from dpsynth_assets.models.engines.protocol import (
    Capability,
    Engine,
    EngineError,
    Sampling,
)
from dpsynth_assets.models.exact_decoder.decoder import Pack
from dpsynth_assets.models.transformers_decoder import decoder
from dpsynth_assets.models.transformers_decoder.residual_stream import decoder_layers
from dpsynth_assets_tests.models.engines.decoder_logits import next_logits, observed

NEW = 12
GREEDY = Sampling(temperature=0, max_new_tokens=NEW)
LAYERS = (0, 1)


@pytest.fixture(scope="module")
def engine(toy_model):
    return DecoderEngine(toy_model, batch_rows=5)


@pytest.fixture(scope="module")
def exact(toy_model):
    return DecoderEngine(toy_model, "exact", batch_rows=5)


@pytest.fixture(params=["transformers", "exact"])
def either(request, engine, exact):
    return exact if request.param == "exact" else engine


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


@torch.no_grad()
def plain_greedy(language_model, prompt, count, added=None):
    """Recomputes everything for every token; adds vectors from the prompt's last token on."""
    ids, added = list(prompt), added or {}

    def adds(vector):
        def hook(_module, _inputs, output):
            output[:, len(prompt) - 1 :] += torch.from_numpy(vector)

        return hook

    layers = decoder_layers(language_model.model)
    hooks = [layers[layer].register_forward_hook(adds(v)) for layer, v in added.items()]
    for _ in range(count):
        logits = language_model.model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        ids.append(int(logits.argmax()))
    for hook in hooks:
        hook.remove()
    return ids[len(prompt) :], logits.numpy()


def until_end(tokens, language_model):
    end = language_model.end_token_id
    return tuple(tokens[: tokens.index(end)] if end in tokens else tokens)


def test_the_engine_keeps_the_protocol(either):
    assert isinstance(either, Engine)
    assert either.capabilities == set(Capability)
    assert (either.layers, either.width) == (2, 32)


def test_text_prompts_begin_with_the_begin_token(engine, toy_model):
    ids = [toy_model.begin_token_id, *toy_model.encode("delivery\n")]
    assert engine.generate(["delivery\n"], GREEDY) == engine.generate([ids], GREEDY)


@pytest.mark.parametrize("settings", [{"top_k": 50, "top_p": 0.9, "temperature": 1.2}, {}], ids=str)
def test_a_row_draws_the_same_tokens_in_any_company(either, toy_model, prompts, settings):
    sampling, other = (Sampling(max_new_tokens=NEW, seed=seed, **settings) for seed in (3, 4))
    together = either.generate(prompts, sampling)
    assert either.generate(prompts[:4], sampling) == together[:4]
    kind = "exact" if either.decoder.is_exact else "transformers"
    assert DecoderEngine(toy_model, kind, batch_rows=64).generate(prompts, sampling) == together
    assert len({generation.token_ids for generation in together}) > 6
    assert either.generate(prompts, other) != together


def test_each_row_stops_at_its_own_limit(engine, prompts):
    limits = tuple(range(1, 13))
    generations = engine.generate(prompts, Sampling(temperature=0, max_new_tokens=limits))
    whole = engine.generate(prompts, GREEDY)
    for limit, cut, full in zip(limits, generations, whole, strict=True):
        assert cut.token_ids == full.token_ids[:limit]
        assert cut.finished == (full.finished and len(full.token_ids) < limit)


def test_a_stop_text_ends_the_text_before_it(engine, prompts):
    whole = engine.generate(prompts, GREEDY)
    text = next(generation.text for generation in whole if len(generation.text) > 6)
    stop = text[3:5]
    stopped = engine.generate(prompts, Sampling(temperature=0, max_new_tokens=NEW, stop=(stop,)))
    for full, cut in zip(whole, stopped, strict=True):
        assert cut.text == full.text.partition(stop)[0]
        assert cut.finished == (full.finished or stop in full.text)
        assert full.token_ids[: len(cut.token_ids)] == cut.token_ids


def test_equal_prompts_are_read_once_and_done_rows_leave(toy_model, prompts):
    engine = DecoderEngine(toy_model, batch_rows=64)
    limits = (2,) * 30 + (NEW,) * 10
    sampling = Sampling(temperature=1.0, max_new_tokens=limits)
    with observed(toy_model.model) as shapes:
        engine.generate([prompts[0]] * 40, sampling)
    prefill, *steps = shapes
    assert prefill == (1, len(prompts[0]))
    assert [rows for rows, _ in steps] == [48, 48] + [16] * (len(steps) - 2)  # multiples of 16


def test_steering_adds_to_the_stream_from_the_prompts_last_token_on(
    engine, toy_model, prompts, vectors
):
    added = {layer: np.float32(2.5) * vector for layer, vector in vectors.items()}
    generations = engine.steered(added).generate(prompts, GREEDY)
    logits = next_logits(engine, prompts, added)
    assert generations != engine.generate(prompts, GREEDY)
    for prompt, generation, row in zip(prompts, generations, logits, strict=True):
        tokens, _ = plain_greedy(toy_model, prompt, NEW, added)
        assert generation.token_ids == until_end(tokens, toy_model)
        np.testing.assert_allclose(row, plain_greedy(toy_model, prompt, 1, added)[1], atol=1e-4)


def test_steering_by_nothing_and_steering_that_is_over_change_nothing(engine, prompts, vectors):
    before = engine.generate(prompts, GREEDY)
    nothing = {layer: 0.0 * vector for layer, vector in vectors.items()}
    assert engine.steered(nothing).generate(prompts, GREEDY) == before
    assert engine.steered(vectors).generate(prompts, GREEDY) != before
    assert engine.generate(prompts, GREEDY) == before


@pytest.mark.parametrize(
    "vectors",
    [{2: np.ones(32)}, {-1: np.ones(32)}, {}, {0: np.ones(31)}, {0: np.full(32, np.nan)}],
)
def test_vectors_of_another_model_are_refused(engine, vectors):
    with pytest.raises(EngineError, match="Expected"):
        engine.steered(vectors)


def test_no_prompts_give_nothing(engine):
    assert engine.generate([], GREEDY) == []
    assert engine.hidden_states([], [0])[0].shape == (0, 32)


def test_too_long_and_empty_prompts_give_one_line_without_their_text(engine, toy_model):
    prompt = "very secret " * 400
    with pytest.raises(EngineError, match="positions") as raised:
        engine.generate([prompt], GREEDY)
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(EngineError, match="at least one token"):
        engine.generate([[]], GREEDY)


@pytest.mark.parametrize("ids", [[3, -1], [3, 100_000]])
def test_tokens_of_another_model_are_refused(engine, ids):
    for use in (
        lambda prompts: engine.generate(prompts, GREEDY),
        lambda texts: engine.hidden_states(texts, [0]),
    ):
        with pytest.raises(EngineError, match=r"token ids in \[0, ") as raised:
            use([ids])
        assert str(ids[1]) not in str(raised.value)


def test_running_out_of_memory_gives_one_line(engine, prompts, monkeypatch):
    def full(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(decoder, "PackedContexts", full)
    with pytest.raises(EngineError, match="lower batch_rows"):
        engine.generate(prompts, GREEDY)


@pytest.mark.parametrize("limits", [0, (3, 0)])
def test_prompts_without_room_for_a_token_are_refused(limits):
    with pytest.raises(ValueError, match="drop these prompts"):
        Sampling(max_new_tokens=limits)


def test_text_stays_out_of_reprs(engine, prompts):
    generation = engine.generate(prompts[:1], GREEDY)[0]
    assert repr(generation) == f"Generation(finished={generation.finished})"


def close(left, right):
    return np.square(left - right).mean() < 0.01 * np.square(right).mean()


def test_steering_moves_what_it_moves_in_the_model(exact, engine, prompts, vectors):
    added = {layer: np.float32(0.7) * vector for layer, vector in vectors.items()}
    logits = next_logits(exact, prompts, added)
    assert close(logits, next_logits(engine, prompts, added))
    assert not close(next_logits(exact, prompts), logits)


@pytest.mark.parametrize("prompt", ["", "the kitchen was closed "])
def test_hidden_states_are_the_models_and_a_function_of_the_text_and_its_prompt(
    exact, engine, prompt
):
    """A prompt is read once: the states behind it are those of prompt and text read together."""
    language_model = exact.language_model
    behind = language_model.encode(prompt)
    texts = ["late again", "", "a", "the heating in room 4 is cold " * 3, "x", "late again"]
    states = exact.hidden_states(texts, LAYERS, behind=behind)
    expected = engine.hidden_states(texts, LAYERS, behind=behind)
    for layer in LAYERS:
        assert close(states[layer], expected[layer])
        assert not states[layer][1].any()
        for row, text in enumerate(texts):
            alone = exact.hidden_states([text], [layer], behind=behind)[layer][0]
            np.testing.assert_array_equal(alone, states[layer][row])
    begin, text = [language_model.begin_token_id, *behind], language_model.encode(texts[3])
    cache = exact.decoder.new_cache(rows=1, columns=len(begin) + len(text))
    whole = {}
    exact.decoder.forward(
        cache,
        Pack.of([[*begin, *text]]),
        on_layer=lambda layer, stream: whole.setdefault(layer, stream[len(begin) :].mean(0)),
    )
    for layer in LAYERS:
        np.testing.assert_array_equal(states[layer][3], whole[layer])


def test_progress_rises_to_one(either, prompts):
    shares = []
    either.generate(prompts, Sampling(max_new_tokens=2), progress=shares.append)
    either.hidden_states(["a", "", "b"], [0], progress=shares.append)
    assert shares[-1] == 1
    assert all(0 < share <= 1 for share in shares)


# Texts of a JSON schema: whatever the model, the text is the object that was asked for.

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "style": {"type": "integer", "minimum": 1, "maximum": 3},
            "overall": {"type": "integer", "minimum": 8, "maximum": 11},
        },
        "required": ["style", "overall"],
        "additionalProperties": False,
    }
)


def test_each_number_is_the_models_own_choice(toy_model):
    """Greedy: of the tokens that may come next, the likeliest."""
    engine = DecoderEngine(toy_model)
    prompt = toy_model.prompt_ids("a", [], 8)
    sampling = Sampling(temperature=0, max_new_tokens=60, json_schema=SCHEMA)
    [answer] = engine.generate([prompt], sampling)
    text, written = JsonConstraint(toy_model, SCHEMA).open(), []
    for token in answer.token_ids:
        logits = next_logits(engine, [prompt + written])[0]
        assert token == np.where(text.choices(), logits, -np.inf).argmax()
        text.take(token)
        written.append(token)
    assert text.complete
    assert np.flatnonzero(text.choices()).tolist() == [toy_model.end_token_id]
    text.take(toy_model.end_token_id)
    assert np.flatnonzero(text.choices()).tolist() == [toy_model.end_token_id]


def test_a_text_goes_on_from_what_its_prompt_holds_already(toy_model):
    engine, start = DecoderEngine(toy_model), '{"style":'
    constraint = engine.constraint(SCHEMA, start)
    assert engine.constraint(SCHEMA, start) is constraint  # Read once.
    begun = tuple(toy_model.encode('2,"overall":'))
    assert constraint.begun([*begun, *toy_model.encode("7")]) == list(begun)
    prompts = [toy_model.encode("a" + start), toy_model.encode("a" + start) + list(begun)]
    sampling = Sampling(max_new_tokens=60, json_schema=SCHEMA, text_start=start, begun=((), begun))
    found = engine.generate(prompts, sampling)
    texts = [start + found[0].text, start + toy_model.decode([*begun, *found[1].token_ids])]
    assert all(constraint.is_followed(text) for text in texts)
    assert json.loads(texts[1])["style"] == 2


def test_stop_texts_are_refused_beside_a_schema():
    with pytest.raises(ValueError, match="whose text ends by itself"):
        Sampling(json_schema=SCHEMA, stop=("x",))
