import json

import numpy as np
import pytest

from dpsynth_assets.methods.evolution.prompts import PromptError, PromptFile, masked, read_prompt

RANDOM = {
    "message_template": [
        {"role": "system", "content": "You write reviews."},
        {"role": "user", "content": "Category: {category}\tStars: {stars}, keyword {keyword}"},
    ],
    "replacement_rules": [
        {"constraints": {}, "replacements": {"keyword": "anything"}},
        {"constraints": {"category": "Bars"}, "replacements": {"keyword": ["rum", "gin"]}},
        {"constraints": {"stars": 5, "keyword": "rum"}, "replacements": {"keyword": "good rum"}},
    ],
    "comment": "further keys are somebody else's",
}


def rng():
    return np.random.default_rng(0)


def written(prompt, **variables):
    return prompt.written(variables, rng())


@pytest.fixture
def prompt(tmp_path):
    (tmp_path / "random.json").write_text(json.dumps(RANDOM))
    return read_prompt(str(tmp_path / "random.json"))


def test_files_of_the_published_package_are_used_as_they_are(prompt):
    assert [message.role for message in prompt.message_template] == ["system", "user"]
    assert written(prompt, category="Hotels", stars="4") == (
        "You write reviews.\n\nCategory: Hotels\tStars: 4, keyword anything"
    )


def test_rules_apply_in_order_where_all_their_constraints_hold(prompt):
    draws = np.random.default_rng(1)
    seen = {
        prompt.written({"category": "Bars", "stars": "5"}, draws).split("keyword ")[1]
        for _ in range(40)
    }
    assert seen == {"gin", "good rum"}  # numbers in the file match the labels' text


def test_what_a_text_brings_is_not_read_as_a_placeholder():
    prompt = PromptFile.model_validate(
        {"message_template": [{"role": "user", "content": 'Say {{"a": 1}} to {sample} {label}'}]}
    )
    assert written(prompt, sample="{label} {sample.__class__} %s", label="x") == (
        'Say {"a": 1} to {label} {sample.__class__} %s x'
    )


def test_variables_that_some_label_lacks_are_named_before_anything_runs(prompt):
    assert prompt.missing([{"category": "Bars", "stars": "5"}]) == set()
    assert prompt.missing([{"category": "Bars"}]) == {"stars"}
    conditional = PromptFile.model_validate(
        {
            "message_template": [{"content": "{tone}"}],
            "replacement_rules": [
                {"constraints": {"label": "x"}, "replacements": {"tone": ["calm"]}}
            ],
        }
    )
    assert conditional.missing([{"label": "x"}, {"label": "y"}]) == {"tone"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"message_template": []}, "message_template"),
        ({"message_template": [{"role": "robot", "content": ""}]}, "role"),
        ({"message_template": [{"content": "{sample[0]}"}]}, "names like"),
        ({"message_template": [{"content": "{tone:{width}}"}]}, "formats that a text takes"),
        (
            {
                "message_template": [{"content": ""}],
                "replacement_rules": [{"replacements": {"tone": []}}],
            },
            "tone",
        ),
        ("not an object", "random.json"),
    ],
)
def test_a_file_that_is_wrong_says_where_in_one_line(tmp_path, content, message):
    (tmp_path / "random.json").write_text(json.dumps(content))
    with pytest.raises(PromptError, match=message) as refusal:
        read_prompt(str(tmp_path / "random.json"))
    assert "\n" not in str(refusal.value)
    with pytest.raises(PromptError, match="got none"):
        read_prompt(str(tmp_path / "elsewhere.json"))


def test_words_are_blanked_with_the_given_probability():
    text = " ".join(f"word{n}" for n in range(4000))
    assert masked(text, 0.3, rng()).split().count("_") == pytest.approx(1200, abs=150)
    assert masked("a b", 1.0, rng()) == "_ _"
    assert masked("", 0.5, rng()) == ""
