"""Answers in a form: whatever the model, the text is the JSON object that was asked for."""

import json
from itertools import product

import pytest

from dpsynth_assets.models.engines import Sampling
from dpsynth_assets.models.engines.answer_form import AnswerForm, AnswerTokens, response_format
from dpsynth_assets.models.engines.transformers_engine import TransformersEngine

FORM = AnswerForm((("style", 1, 3), ("overall", 8, 11)))
END = 2


def characters(text):
    return [ord(character) for character in text]


def pairs(text):
    """Two characters a token: numbers and the words after them share tokens."""
    return [int.from_bytes(text[place : place + 2].encode()) for place in range(0, len(text), 2)]


@pytest.mark.parametrize("encode", [characters, pairs])
def test_the_spellings_are_the_objects_of_the_schema_and_nothing_else(encode):
    form = AnswerTokens.of(FORM, encode, END)
    written = set()

    def follow(tokens):
        for token in form.allowed(tokens):
            if token == END:
                written.add(tuple(tokens))
            else:
                follow([*tokens, token])

    follow([])
    spellings = {"".join(parts) for parts in product(*FORM.segments())}
    assert len(spellings) == 3 * 4
    assert len(written) == len(spellings)
    answers = [json.loads(spelling) for spelling in spellings]
    assert {answer["overall"] for answer in answers} == {8, 9, 10, 11}
    assert all(list(answer) == ["style", "overall"] for answer in answers)


def test_what_is_outside_the_form_can_only_end():
    form = AnswerTokens.of(FORM, characters, END)
    assert form.allowed(characters("Sure")) == [END]
    assert form.allowed([*characters('{"style": 1, "overall": 8}'), END]) == [END]


def test_the_mask_leaves_what_is_allowed():
    form = AnswerTokens.of(FORM, characters, END)
    start = characters('{"style": 1, "overall": 1')
    mask = form.mask([start, []], 200)
    assert [int(token) for token in (mask[0] == 0).nonzero()[0]] == characters("01")
    assert [int(token) for token in (mask[1] == 0).nonzero()[0]] == characters("{")


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_model_of_random_words_answers_in_the_form(toy_model, temperature):
    engine = TransformersEngine(toy_model, batch_rows=4)
    sampling = Sampling(temperature=temperature, max_new_tokens=60, answer=FORM)
    answers = engine.generate(["a", "b c", "How good is it?", "a", "d", "e"], sampling)
    assert all(answer.finished for answer in answers)
    for answer in answers:
        values = json.loads(answer.text)
        assert 1 <= values["style"] <= 3
        assert 8 <= values["overall"] <= 11
    assert answers[0] == answers[3] or temperature


def test_each_number_is_the_models_own_choice(toy_model):
    """Greedy: of the allowed tokens, the likeliest."""
    engine = TransformersEngine(toy_model)
    form = AnswerTokens.of(FORM, toy_model.encode, toy_model.end_token_id)
    prompt = toy_model.prompt_ids("a", [], 8)
    [answer] = engine.generate([prompt], Sampling(temperature=0, max_new_tokens=60, answer=FORM))
    written: list[int] = []
    for token in answer.token_ids:
        logits = engine.next_token_logits([prompt + written])[0]
        assert token == max(form.allowed(written), key=lambda one: logits[one])
        written.append(token)
    assert form.allowed(written) == [toy_model.end_token_id]


def test_a_form_that_contradicts_itself_is_refused():
    for bounds in ((), (("a", 2, 1),), (("a", 1, 2), ("a", 1, 2))):
        with pytest.raises(ValueError, match="differently named fields"):
            AnswerForm(bounds)
    with pytest.raises(ValueError, match="which ends by itself"):
        Sampling(answer=FORM, stop=("x",))


def test_an_endpoint_is_told_a_strict_schema():
    told = response_format(FORM)
    schema = told["json_schema"]["schema"]
    assert told["type"] == "json_schema"
    assert schema["properties"]["overall"] == {"type": "integer", "minimum": 8, "maximum": 11}
    assert schema["required"] == ["style", "overall"]
    assert not schema["additionalProperties"]
