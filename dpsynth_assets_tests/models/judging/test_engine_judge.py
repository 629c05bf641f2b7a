"""A model judges by the rubric: greedy, of released text, and never by half an answer."""

import json
from itertools import pairwise

import pytest

from dpsynth_assets.models.engines.decoder_engine import DecoderEngine
from dpsynth_assets.models.engines.openai_endpoint import UsageCounter
from dpsynth_assets.models.engines.protocol import Engine, Generation, Provenance
from dpsynth_assets.models.judges import (
    PLAIN,
    EngineJudge,
    JudgeError,
    overall_score,
    rubric_prompt,
    shuffled,
)


class Answers:
    """An endpoint that scores a text by a number written in it."""

    name = "oracle"
    spent, spent_since = {}, Engine.spent_since

    def __init__(self):
        self.calls = []

    def generate(self, prompts, sampling, *, provenance=Provenance.PRIVATE, progress=None):
        self.calls.append((list(prompts), sampling, provenance))
        return [self._answer(prompt) for prompt in prompts]

    def _answer(self, prompt):
        text = prompt.split("Text:\n")[1].split("\n\nJSON:")[0]
        written = f'{{"overall": {text.split()[1]}}}' if "score" in text else "I cannot say."
        return Generation(written, (), True)


class Reader(Answers):
    """Scores control texts too: sentences and shuffled words as it is told."""

    def __init__(self, plain, mixed):
        super().__init__()
        self.control = dict.fromkeys(PLAIN, plain) | dict.fromkeys(map(shuffled, PLAIN), mixed)
        self.usage = UsageCounter(new_price=1e6)

    @property
    def spent(self):
        return self.usage.facts

    def _answer(self, prompt):
        text = prompt.split("Text:\n")[1].split("\n\nJSON:")[0]
        self.usage.add(requests=1, prompt_tokens=9, new_tokens=2)
        if text in self.control:
            return Generation(f'{{"overall": {self.control[text]}}}', (), True)
        return super()._answer(prompt)


def test_rows_are_kept_from_the_threshold_on_and_order_is_kept():
    verdicts = EngineJudge(Answers(), min_overall=6).judge(["score 7", "score 5", "score 6", "?"])
    assert [v.accepted for v in verdicts] == [True, False, True, False]
    assert [v.score for v in verdicts] == [7, 5, 6, None]


def test_answers_are_greedy_and_prompts_say_they_are_released():
    engine = Answers()
    EngineJudge(engine).judge(["score 7"])
    for _, sampling, provenance in engine.calls:
        assert sampling.temperature == 0
        assert sampling.json_schema is not None
        assert provenance is Provenance.RELEASED


def test_long_texts_are_cut_before_they_are_judged():
    engine = Answers()
    EngineJudge(engine, max_text_tokens=10).judge(["score 7 " + "word " * 1000])
    [prompt], _, _ = engine.calls[-1]
    assert prompt.count("word") < 10


def test_a_judge_that_never_answers_is_named_in_one_line_without_a_row():
    with pytest.raises(JudgeError, match="got none in 2 answers; take an instruction") as raised:
        EngineJudge(Answers()).judge(["zebra", "quagga"])
    assert "oracle" in str(raised.value)
    assert "zebra" not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert EngineJudge(Answers()).judge([]) == []
    with pytest.raises(JudgeError, match="got none in 8 answers"):
        EngineJudge(Answers()).check()


@pytest.mark.parametrize("mixed", [7, 8])
def test_a_judge_that_cannot_tell_sentences_from_shuffled_words_judges_no_row(mixed):
    engine = Reader(plain=7, mixed=mixed)
    with pytest.raises(JudgeError, match=f"got 7 and {mixed} from oracle; take an instruction"):
        EngineJudge(engine).judge(["score 9"])
    assert not any("score 9" in prompt for prompts, _, _ in engine.calls for prompt in prompts)


def test_controls_are_judged_once_and_stand_in_the_facts_with_the_cost():
    engine = Reader(plain=8, mixed=2)
    engine.usage.add(requests=1, prompt_tokens=100, new_tokens=100)  # of another corpus
    judge = EngineJudge(engine)
    for _ in range(2):
        assert [v.accepted for v in judge.judge(["score 9", "score 1"])] == [True, False]
    assert [len(prompts) for prompts, _, _ in engine.calls] == [2 * len(PLAIN), 2, 2]
    facts = judge.facts
    assert (facts["control_plain"], facts["control_shuffled"]) == (8, 2)
    assert facts["judge_requests"] == 2 * len(PLAIN) + 4
    assert facts["judge_cost"] == 2 * facts["judge_requests"]


def test_shuffled_controls_have_the_same_words_in_another_order():
    for text in PLAIN:
        assert sorted(shuffled(text).split()) == sorted(text.split())
        assert not set(pairwise(text.split())) & set(pairwise(shuffled(text).split()))


def test_a_model_that_runs_here_is_asked_through_to_the_end_and_found_wanting(toy_model):
    """Its answers are scores, all of them; what they are worth, the controls say."""
    engine = DecoderEngine(toy_model)
    judge = EngineJudge(engine, max_text_tokens=40)
    scores = judge._scores(["The parcel came late.", "The bill was wrong."])
    assert all(each is not None for each in scores)
    with pytest.raises(JudgeError, match="take an instruction-tuned model"):
        judge.judge(["The parcel came late."])


def test_facts_name_judge_and_threshold():
    assert EngineJudge(Answers(), min_overall=4).facts == {
        "judge": "rubric",
        "judge_model": "oracle",
        "threshold_overall": 4,
    }


def test_a_local_model_reads_the_rubric_by_its_own_tokens(toy_model):
    """A text can bring no special token into the prompt."""
    engine = DecoderEngine(toy_model)
    judge = EngineJudge(engine, max_text_tokens=5)
    ids = judge._prompt("a fine text that goes on and on" + toy_model.tokenizer.eos_token)
    assert toy_model.end_token_id not in ids
    assert len(ids) == len(judge._prompt("")) + 5
    written = toy_model.decode(ids)
    assert "writing-quality evaluator" in written
    assert written.endswith("JSON:")


WHOLE = {"fluency": 4, "grammar": 5, "coherence": 3, "overall": 7}


@pytest.mark.parametrize(
    "answer",
    [
        json.dumps(WHOLE),
        f"```json\n{json.dumps(WHOLE, indent=2)}\n```",
        f"Sure! Here it is: {json.dumps(WHOLE)} Anything else?",
        '{"Fluency": "4", "grammar": 5.0, "coherence": "3/5", "Overall": "7/10"}',
        f'First {{"overall": 2}}, but on reflection {json.dumps(WHOLE)}',
        "{" + json.dumps(WHOLE),
    ],
)
def test_the_score_is_read_through_what_surrounds_it(answer):
    assert overall_score(answer) == 7


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "I would give it a 7.",
        "{overall: 7}",
        '{"overall": 11}',
        '{"overall": 0}',
        '{"overall": true}',
        '{"overall": "seven"}',
        '{"overall": NaN}',
        '{"overall": null}',
        '{"fluency": 4, "grammar": 4}',
        '["overall", 7]',
        '{"overall": [7]}',
        "{" * 5000,
    ],
)
def test_what_holds_no_overall_score_gives_none(answer):
    assert overall_score(answer) is None


def test_the_prompt_holds_the_text_as_it_is():
    text = 'braces {x} {{y}} and {"overall": 10}'
    assert text in rubric_prompt(text)
