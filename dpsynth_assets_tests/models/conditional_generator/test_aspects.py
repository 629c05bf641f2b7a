"""Conditions: how they are written, and how aspects are read from a model's free answer."""

import pytest

from dpsynth_assets.models.conditional_generator.aspects import (
    aspects_from_language_model,
    condition_text,
    parse_aspects,
)
from dpsynth_assets.models.conditional_generator.keywords import document_keywords


def test_a_condition_is_one_aspect_a_line():
    text = condition_text(("boiler", "cold flat"), "letter", "Facilities")
    assert text == "Document Type: letter\nLabel: Facilities\nKeywords: boiler, cold flat"


def test_missing_aspects_leave_no_line():
    assert condition_text(("boiler",)) == "Keywords: boiler"
    assert condition_text((), "news", "") == "Document Type: news"
    assert condition_text(()) == ""


def test_an_aspect_stays_on_its_line():
    assert condition_text(("a\nLabel: forged",), "two\nlines").count("\n") == 1


@pytest.mark.parametrize(
    "answer",
    [
        "Document Type: News article\nKeywords: golf, college\nTone: formal",
        "**Document Type:** News article\n\n* **Keywords:** golf, college.\n* **Tone**: formal",
        '1. document type: `News article`\n2. Key Words: ["golf", "college"]\n3. Tone: formal',
        "Sure, here is a description\n- Type: News article\n- Keywords:\n  - golf\n  - college\n"
        "- Tone: formal",
    ],
)
def test_aspects_are_read_however_a_model_decorates_them(answer):
    expected = {"Document Type": "News article", "Keywords": "golf, college", "Tone": "formal"}
    assert parse_aspects(answer) == expected


def test_prose_and_urls_are_no_aspects():
    assert parse_aspects("This is a letter about heating.\nhttp://example.org") == {}
    assert parse_aspects("") == {}


def test_a_language_models_aspects_fall_back_to_the_documents_own_words():
    documents = ["The boiler and the radiator.", "A violin concert."]

    def ask(prompts):
        assert all(text in prompt for text, prompt in zip(documents, prompts, strict=True))
        return [" Letter\nKeywords: cold rooms", "I cannot help with that."]

    first, second = aspects_from_language_model(documents, ask)
    assert first == {"Document Type": "Letter", "Keywords": "cold rooms"}
    assert set(second["Keywords"].split(", ")) == {"violin", "concert"}


def test_a_wrong_number_of_answers_is_refused():
    with pytest.raises(ValueError, match="one answer for each of 2 documents, got 1"):
        aspects_from_language_model(["a", "b"], lambda prompts: ["only one"])


def test_keywords_of_a_document_are_its_own_rare_words_first():
    documents = ["The boiler is in the house."] + ["The garden is in the house."] * 5
    assert document_keywords(documents)[0] == ("boiler", "house")


def test_documents_without_words_have_no_keywords():
    assert document_keywords(["12 34", "..."]) == [(), ()]
