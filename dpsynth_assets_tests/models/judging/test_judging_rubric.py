"""An answer is read where a person would read it, and nowhere else."""

import json

import pytest

from dpsynth_assets.models.judging import RubricScores, parse_scores, rubric_prompt

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
def test_scores_are_read_through_what_surrounds_them(answer):
    scores = parse_scores(answer)
    assert scores is not None
    assert scores.overall == 7
    assert scores == RubricScores(overall=7, fluency=4, grammar=5, coherence=3)


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
    assert parse_scores(answer) is None


def test_a_criterion_out_of_bounds_is_left_out_and_overall_stays():
    assert parse_scores('{"overall": 7, "fluency": 9}') == RubricScores(overall=7)


def test_the_prompt_holds_the_text_as_it_is():
    text = 'braces {x} {{y}} and {"overall": 10}'
    assert text in rubric_prompt(text)
    assert '"overall": <integer 1-10>' in rubric_prompt(text)
