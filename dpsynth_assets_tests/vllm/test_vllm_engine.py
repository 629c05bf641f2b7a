"""vLLM really run: it writes, reads and steers as the transformers engine does."""

import json
import os

import jsonschema
import numpy as np
import pytest
from mailboxes import public_rows

from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.models.engines.protocol import (
    Capability,
    Engine,
    EngineError,
    Sampling,
    close_engines,
    open_engine,
)
from dpsynth_assets.models.vllm_decoder.engine import VllmEngine

NEW = 24
GREEDY = Sampling(temperature=0, max_new_tokens=NEW)
LAYERS = (0, 2)


@pytest.fixture(scope="module")
def prompts(language_model):
    """Twenty prompts of 5 to 160 tokens; three kinds stand there several times."""
    rows = public_rows(40, seed=1)
    texts = [row["text"] for row in rows]
    kinds = [
        language_model.prompt_ids(rows[n]["label"], texts[n : n + n % 4], 48) for n in range(17)
    ]
    return kinds + kinds[:3]


@pytest.fixture(scope="module")
def vectors(vllm_engine):
    draw = np.random.default_rng(0)
    return {layer: draw.standard_normal(vllm_engine.width) for layer in LAYERS}


def test_the_engine_keeps_the_protocol(vllm_engine):
    assert isinstance(vllm_engine, Engine)
    assert vllm_engine.capabilities == set(Capability)


def test_greedy_text_equals_transformers(writers, prompts):
    vllm_engine, transformers_engine, _ = writers
    assert max(map(len, prompts)) > 48  # longer than one pass
    written = vllm_engine.generate(prompts, GREEDY)
    assert written == transformers_engine.generate(prompts, GREEDY)
    assert len({generation.text for generation in written}) > 5
    assert vllm_engine.generate(["hello"], GREEDY) == transformers_engine.generate(
        ["hello"], GREEDY
    )


def test_limits_and_stop_texts_equal_transformers(writers, prompts):
    vllm_engine, transformers_engine, _ = writers
    limits = Sampling(temperature=0, max_new_tokens=tuple(range(1, 21)))
    assert vllm_engine.generate(prompts, limits) == transformers_engine.generate(prompts, limits)
    stops = Sampling(temperature=0, max_new_tokens=NEW, stop=("er", "th"))
    stopped = vllm_engine.generate(prompts, stops)
    assert stopped == transformers_engine.generate(prompts, stops)
    assert stopped != vllm_engine.generate(prompts, GREEDY)


def test_steered_text_equals_transformers_and_is_not_the_unsteered(
    vllm_engine, transformers_engine, prompts, vectors
):
    before = vllm_engine.generate(prompts, GREEDY)  # fills the prompt cache, unsteered
    added = {0: 0.7 * vectors[0], 2: -1.5 * vectors[2]}
    steered = vllm_engine.steered(added).generate(prompts, GREEDY)
    assert steered == transformers_engine.steered(added).generate(prompts, GREEDY)
    changed = sum(a != b for a, b in zip(steered, before, strict=True))
    assert changed > len(prompts) // 2
    assert vllm_engine.generate(prompts, GREEDY) == before


def test_hidden_states_equal_transformers(vllm_engine, transformers_engine):
    texts = ["", *(row["text"] for row in public_rows(30, seed=3)), "a", "same", "same"]
    ours = vllm_engine.hidden_states(texts, LAYERS)
    theirs = transformers_engine.hidden_states(texts, LAYERS)
    for layer in LAYERS:
        assert ours[layer].shape == (len(texts), vllm_engine.width)
        assert ours[layer].dtype == np.float32
        np.testing.assert_allclose(ours[layer], theirs[layer], atol=1e-3)
    assert not ours[0][0].any()


def test_drawn_text_equals_transformers_row_by_row(vllm_engine, transformers_engine, prompts):
    """Same seeds, same draws: a row may differ where rounding moves it across a boundary."""
    sampling = Sampling(temperature=1.1, top_p=0.9, top_k=100, max_new_tokens=NEW, seed=7)
    ours = vllm_engine.generate(prompts, sampling)
    theirs = transformers_engine.generate(prompts, sampling)
    assert sum(a == b for a, b in zip(ours, theirs, strict=True)) >= len(prompts) - 2
    assert len({generation.text for generation in ours}) == len(prompts)
    alone = vllm_engine.generate(prompts[:5], sampling)
    assert sum(a == b for a, b in zip(alone, ours[:5], strict=True)) >= 4
    other = Sampling(temperature=1.1, top_p=0.9, top_k=100, max_new_tokens=NEW, seed=8)
    assert vllm_engine.generate(prompts, other) != ours


def test_texts_of_a_schema_equal_transformers_row_by_row(vllm_engine, transformers_engine, prompts):
    schema = {
        "type": "object",
        "properties": {
            "who": {"type": "string", "minLength": 1, "maxLength": 8},
            "stars": {"type": "integer", "minimum": 1, "maximum": 12},
        },
        "required": ["who", "stars"],
        "additionalProperties": False,
    }
    for temperature in (0.0, 1.0):
        sampling = Sampling(
            temperature=temperature, max_new_tokens=60, seed=4, json_schema=json.dumps(schema)
        )
        written = vllm_engine.generate(prompts, sampling)
        for text in written:
            jsonschema.validate(json.loads(text.text), schema)
        expected = transformers_engine.generate(prompts, sampling)
        same = sum(a.text == b.text for a, b in zip(written, expected, strict=True))
        assert same >= len(prompts) - 2  # As above, rounding may move a row.


def test_mistakes_give_one_line_and_no_text(vllm_engine, capfd):
    with pytest.raises(EngineError, match="positions") as raised:
        vllm_engine.generate(["very secret " * 400], GREEDY)
    assert "secret" not in str(raised.value)
    with pytest.raises(EngineError, match=r"stopped with \w+Error") as raised:
        vllm_engine._run([[5, 123_456_789]], vllm_engine._one_token(1))
    assert "123" not in str(raised.value)
    assert "\n" not in str(raised.value)
    seen = capfd.readouterr()
    assert "123456789" not in seen.out + seen.err


def test_prompts_and_texts_reach_no_log(vllm_engine, capfd, caplog):
    caplog.set_level("DEBUG")
    [written] = vllm_engine.generate(["zebra quagga okapi"], GREEDY)
    vllm_engine.hidden_states(["zebra quagga okapi"], [0])
    seen = capfd.readouterr()
    for text in ("zebra", written.text):
        assert text not in seen.out + seen.err + caplog.text


def test_too_little_memory_gives_one_line(language_model):
    with pytest.raises(EngineError, match="could not open toy") as raised:
        VllmEngine(language_model, EngineSpec(kind="vllm", cache_gib=0.00001))
    assert "\n" not in str(raised.value)


def test_a_declaration_opens_a_second_engine_once_and_closes_it(folder, prompts):
    spec = EngineSpec(kind="vllm", model=str(folder), cache_gib=0.25)
    engine = open_engine(spec)
    assert open_engine(spec) is engine
    assert engine.generate(prompts[:2], GREEDY)
    close_engines()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)  # no worker process is left behind
