"""A model judges by the rubric: greedy, of released text, and never by half an answer."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from mailboxes import public_rows

from dpsynth_assets.models import judges
from dpsynth_assets.models.engines.decoder_engine import DecoderEngine
from dpsynth_assets.models.engines.openai_endpoint import UsageCounter
from dpsynth_assets.models.engines.protocol import Engine, Generation, Provenance
from dpsynth_assets.models.judges import (
    PLAIN,
    EngineJudge,
    JudgeError,
    LikelihoodJudge,
    overall_score,
    rubric_prompt,
    shuffled,
)
from dpsynth_assets.models.row_rules import (
    RULES,
    RowRules,
    has_abuse,
    trimmed,
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


def test_long_texts_are_cut_before_they_are_judged(monkeypatch):
    engine = Answers()
    monkeypatch.setattr(judges, "MAX_TEXT_TOKENS", 10)
    EngineJudge(engine).judge(["score 7 " + "word " * 1000])
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


def test_a_model_that_runs_here_is_asked_through_to_the_end_and_found_wanting(
    toy_model, monkeypatch
):
    """Its answers are scores, all of them; what they are worth, the controls say."""
    monkeypatch.setattr(judges, "MAX_TEXT_TOKENS", 40)
    engine = DecoderEngine(toy_model)
    judge = EngineJudge(engine)
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


def test_a_local_model_reads_the_rubric_by_its_own_tokens(toy_model, monkeypatch):
    """A text can bring no special token into the prompt."""
    engine = DecoderEngine(toy_model)
    judge = EngineJudge(engine)
    monkeypatch.setattr(judges, "MAX_TEXT_TOKENS", 5)
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


# The likelihood judge scores what the model says of a text's own tokens, against public text.


@pytest.fixture(scope="module")
def public():
    return [row["text"] for row in public_rows(60, seed=0)]


@pytest.fixture(scope="module")
def judge(toy_model, public):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(judges, "MAX_TEXT_TOKENS", 64)
        yield LikelihoodJudge(toy_model, public, lowest_quantile=0.1)


def by_hand(model, text, bound=64):
    """Token by token, one text at a time."""
    start = model.prompt_ids("", (), 1)
    ids = model.encode(text)[:bound]
    total = 0.0
    for place, token in enumerate(ids):
        rows = torch.tensor([[*start, *ids[:place]]])
        total += float(model.model(rows).logits[0, -1].double().log_softmax(0)[token])
    return total / len(ids)


def test_scores_are_mean_log_probabilities_whatever_shares_the_batch(judge, toy_model, public):
    scores = judge.log_likelihoods(public)
    for row in (0, 17, 59):
        assert scores[row] == pytest.approx(by_hand(toy_model, public[row]), abs=1e-4)
    assert (scores < 0).all()
    np.testing.assert_allclose(judge.log_likelihoods(public[::-1])[::-1], scores, atol=1e-4)


def test_thresholds_are_quantiles_of_public_text(judge, public):
    scores = judge.log_likelihoods(public)
    assert judge.lowest == pytest.approx(np.quantile(scores, 0.1), abs=1e-4)
    assert judge.highest == pytest.approx(scores.max(), abs=1e-4)
    accepted = [verdict.accepted for verdict in judge.judge(public)]
    assert sum(accepted) == pytest.approx(0.9 * len(public), abs=1)


def test_noise_is_rejected_and_so_is_what_has_no_token(judge):
    noise = "§¶ŧ→ŋđ" * 8
    verdicts = judge.judge([noise, ""])
    assert not any(verdict.accepted for verdict in verdicts)
    assert verdicts[0].score is not None
    assert verdicts[1].score is None


def test_what_is_likelier_than_public_text_is_rejected(toy_model, public):
    """It turns down loops: the likeliest public texts stand for them.

    The eleventh text is the threshold itself: the last bits of its score, which follow the padding
    of its pass, decide.
    """
    likeliest = LikelihoodJudge(toy_model, public).log_likelihoods(public).argsort()[::-1]
    others = [public[row] for row in likeliest[10:]]
    verdicts = LikelihoodJudge(toy_model, others, lowest_quantile=0).judge(public)
    assert not any(verdicts[row].accepted for row in likeliest[:10])
    assert all(verdicts[row].accepted for row in likeliest[11:])


def test_facts_state_thresholds(judge, toy_model):
    assert judge.facts["judge"] == "likelihood"
    assert judge.facts["judge_model"] == toy_model.name
    assert judge.facts["threshold_lowest"] == pytest.approx(judge.lowest, abs=1e-4)
    assert judge.facts["threshold_texts"] == 60


def test_progress_grows_to_one(judge, public):
    shares = []
    judge.judge(public, shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_long_and_many_texts_stay_within_one_passs_bounds(judge, monkeypatch, public):
    sizes = []
    real = judges.losses_after
    monkeypatch.setattr(judges, "losses_after", lambda *all: sizes.append(all[1]) or real(*all))
    judge.log_likelihoods(public * 5)
    assert sum(map(len, sizes)) == 300
    assert max(len(rows) * max(map(len, rows)) for rows in sizes) <= 4096
    assert len(sizes) < 12


def test_few_public_texts_give_no_threshold(toy_model, public):
    with pytest.raises(JudgeError, match="at least 10 public texts"):
        LikelihoodJudge(toy_model, public[:9])


# Where a written text ends, and what is turned down: public rules alone.

FRAMES = ('Five-star review: "', "Question:")


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("It was very good. I went and", "It was very good."),
        ("It was good! (I went back.) And", "It was good! (I went back.)"),
        ("It was good. I met Mr. Sm", "It was good. I met Mr. Sm"),  # more than half would go
        ("It was good, very good indeed. I met Dr. Sm", "It was good, very good indeed."),
        ("At 3.5 p.m. we left the old house. J. R. was", "At 3.5 p.m. we left the old house."),
        ("Licence refused to broadcaster", "Licence refused to broadcaster"),
        ("我喜欢这里。服务很好！我还", "我喜欢这里。服务很好！"),
        ("یہ اچھا تھا۔ بہت ہی اچھا تھا۔ اور", "یہ اچھا تھا۔ بہت ہی اچھا تھا۔"),
        ('"It was good."', "It was good."),
        ('It was good."', "It was good."),
        ('She said "yes."', 'She said "yes."'),
        ('She said "yes." He', 'She said "yes."'),
        ('Five-star review: "It was good.', "It was good."),
        ('It was good.\nFive-star review: "Another.', "It was good."),
        ('Red October Cafe", "Bella\'s", "Gib', "Red October Cafe"),
        ('Cold Water" is a comedy.', '"Cold Water" is a comedy.'),
        ('Two of 8" each came.', 'Two of 8" each came.'),
        ("Text: It was good.", "It was good."),
        ("It was good.\n\nText: Another.", "It was good."),
        ("It was good.<|im_end|>\n<|im_start|>user\nMore", "It was good."),
        ("It was good.\nUser: more", "It was good."),
        ("Sure! Here is a short review:\n\nIt was good.", "It was good."),
        ("Here we ate well.", "Here we ate well."),
        ("  \n", ""),
    ],
)
def test_a_text_is_taken_out_of_what_was_written(written, text):
    assert trimmed(written, FRAMES) == text
    assert trimmed(text, FRAMES) == text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Rex", "language"),
        ("12, 19, 23, 24, 25, 30 and 32, 34", "language"),
        ("I will take it, " * 5 + "I will.", "language"),
        ("Dear [Your Name], all is well.", "placeholders"),
        ("Dear {{name}}, all is well.", "placeholders"),
        ("I think [the river] will rise.", ""),
        ("Fuck you all, said he.", "abuse"),
        ("He lives in Scunthorpe now.", ""),
        ("我喜欢这里。", ""),
    ],
)
def test_a_text_breaks_the_rule_that_is_named(text, fault):
    assert RowRules(RULES).fault(text) == fault
    assert RowRules([rule for rule in RULES if rule != fault]).fault(text) == ""


def test_a_near_copy_is_a_repeat_and_a_text_of_the_same_frame_is_none():
    rules = RowRules(RULES)
    first = "The soup came cold, the waiter was rude and the bill for the two of us was too high."
    assert rules.fault(first) == ""
    assert rules.fault(first.replace("The soup", "Our soup")) == "repeats"
    assert rules.fault("The soup came cold, but nobody else at our table minded at all.") == ""
    assert rules.fault("What is the capital of France?") == ""
    assert rules.fault("What is the capital of Spain?") == ""


def test_a_text_that_the_model_ended_keeps_its_signature():
    letter = "The card was lost on Friday. Thank you, Anna Young"
    assert trimmed(letter, ended=True) == letter
    assert trimmed(letter) == "The card was lost on Friday."


def test_words_of_a_domain_say_that_records_hold_abuse():
    assert has_abuse("Toxic comments of a forum")
    for domain in (
        "Letters of customers to a bank",
        "Chateau wines",
        "Whatever slurry, toxicology",
    ):
        assert not has_abuse(domain)


def test_a_text_in_a_script_with_vowel_signs_is_language():
    rules = RowRules(("language",))
    assert rules.fault("मेरा खाता बंद कर दिया गया है और किसी ने मुझे नहीं बताया।") == ""
    assert rules.fault("என் கணக்கு மூடப்பட்டது, யாரும் எனக்குச் சொல்லவில்லை.") == ""
