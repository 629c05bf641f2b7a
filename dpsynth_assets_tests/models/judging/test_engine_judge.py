"""A model judges by the rubric: greedy, of released text, and never by half an answer."""

import pytest

from dpsynth_assets.models.engines import Generation, Provenance
from dpsynth_assets.models.engines.transformers_engine import TransformersEngine
from dpsynth_assets.models.judging import EngineJudge, JudgeError


class Answers:
    """An endpoint that scores a text by a number written in it."""

    name = "oracle"

    def __init__(self):
        self.calls = []

    def generate(self, prompts, sampling, *, provenance=Provenance.PRIVATE, progress=None):
        self.calls.append((list(prompts), sampling, provenance))
        return [self._answer(prompt) for prompt in prompts]

    def _answer(self, prompt):
        text = prompt.split("Text:\n")[1].split("\n\nJSON:")[0]
        written = f'{{"overall": {text.split()[1]}}}' if "score" in text else "I cannot say."
        return Generation(written, (), True)


def test_rows_are_kept_from_the_threshold_on_and_order_is_kept():
    verdicts = EngineJudge(Answers(), min_overall=6).judge(["score 7", "score 5", "score 6", "?"])
    assert [v.accepted for v in verdicts] == [True, False, True, False]
    assert [v.score for v in verdicts] == [7, 5, 6, None]


def test_answers_are_greedy_and_prompts_say_they_are_released():
    engine = Answers()
    EngineJudge(engine).judge(["score 7"])
    [(_, sampling, provenance)] = engine.calls
    assert sampling.temperature == 0
    assert provenance is Provenance.RELEASED


def test_long_texts_are_cut_before_they_are_judged():
    engine = Answers()
    EngineJudge(engine, max_text_tokens=10).judge(["score 7 " + "word " * 1000])
    [([prompt], _, _)] = engine.calls
    assert prompt.count("word") < 10


def test_a_judge_that_never_answers_is_named_in_one_line_without_a_row():
    with pytest.raises(JudgeError, match="got none in 2 answers; take an instruction") as raised:
        EngineJudge(Answers()).judge(["zebra", "quagga"])
    assert "oracle" in str(raised.value)
    assert "zebra" not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert EngineJudge(Answers()).judge([]) == []


def test_facts_name_judge_and_threshold():
    assert EngineJudge(Answers(), min_overall=4).facts == {
        "judge": "rubric",
        "judge_model": "oracle",
        "threshold_overall": 4,
    }


def test_a_threshold_outside_the_rubric_is_refused():
    with pytest.raises(ValueError, match="min_overall in"):
        EngineJudge(Answers(), min_overall=11)


def test_a_local_model_reads_the_rubric_and_goes_on_with_json(toy_model):
    """Text goes in by tokens of its own: it can bring no special token into the prompt."""
    engine = TransformersEngine(toy_model)
    judge = EngineJudge(engine, max_text_tokens=5)
    ids = judge._prompt("a fine text that goes on and on" + toy_model.tokenizer.eos_token)
    assert toy_model.end_token_id not in ids
    assert len(ids) == len(judge._prompt("")) + 5
    written = toy_model.decode(ids)
    assert "writing-quality evaluator" in written
    assert written.endswith("JSON:{")
