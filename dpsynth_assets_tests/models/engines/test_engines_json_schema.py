"""Texts of a JSON schema: whatever the model, the text is the object that was asked for."""

import json

import numpy as np
import pytest

from dpsynth_assets.models.decoding import JsonConstraint
from dpsynth_assets.models.engines.decoder_engine import DecoderEngine
from dpsynth_assets.models.engines.protocol import Sampling
from dpsynth_assets_tests.models.engines.decoder_logits import next_logits

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


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_model_of_random_words_answers_by_the_schema(toy_model, temperature):
    engine = DecoderEngine(toy_model, batch_rows=4)
    sampling = Sampling(temperature=temperature, max_new_tokens=60, json_schema=SCHEMA)
    answers = engine.generate(["a", "b c", "How good is it?", "a", "d", "e"], sampling)
    assert all(answer.finished for answer in answers)
    for answer in answers:
        values = json.loads(answer.text)
        assert list(values) == ["style", "overall"]
        assert 1 <= values["style"] <= 3
        assert 8 <= values["overall"] <= 11
    assert answers[0] == answers[3] or temperature


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
