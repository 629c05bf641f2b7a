"""Where a written text ends, and what is turned down: public rules alone."""

import pytest

from dpsynth_assets.models.row_rules import (
    RULES,
    RowRules,
    has_abuse,
    trimmed,
)

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
