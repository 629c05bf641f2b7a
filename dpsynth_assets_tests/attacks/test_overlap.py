import numpy as np
import pytest

from dpsynth_assets.attacks import overlap
from dpsynth_assets.attacks.overlap import HeldRecords, near_duplicate_share, verbatim_share

SECRET = (
    "Marta took the blue kayak past the northern lighthouse on Thursday and lost her grandmother's "
    "silver compass somewhere near the reef"
)
NOTICE = (
    "please note that this message and every attachment are intended for the addressee alone and "
    "must be deleted by others"
)
PUBLIC = ["the quick brown fox jumps over the lazy dog while the whole village sleeps in the sun"]


def _private(extra=()):
    return [SECRET, *extra, *(f"{NOTICE} {number}" for number in range(5))]


def _share(texts, private, public=PUBLIC, units=None):
    return verbatim_share(texts, [HeldRecords(texts=private, units=units)], public)


def _leaks(text, private=None, public=PUBLIC, units=None):
    return _share([text], private or _private(), public, units)


def test_capitals_punctuation_and_spacing_do_not_hide_a_span():
    assert _leaks(SECRET.upper().replace(" ", ",\n  "))


def test_a_span_of_eleven_words_is_none_and_of_twelve_is_one():
    words = SECRET.split()
    assert not _leaks("Well, " + " ".join(words[:11]))
    assert _leaks("Well, " + " ".join(words[:12]))


def test_a_changed_word_in_the_middle_of_a_span_breaks_it():
    words = SECRET.split()[:16]
    words[8] = "somewhere"
    assert not _leaks(" ".join(words))


def test_boilerplate_of_many_records_is_no_leak_of_one():
    assert not _leaks(NOTICE)
    assert _leaks(NOTICE, _private()[:3])  # two units


def test_the_number_of_units_decides_and_not_the_number_of_records():
    assert _leaks(SECRET, _private(extra=[SECRET]))  # two units
    private = _private(extra=[SECRET, SECRET])
    assert not _leaks(SECRET, private)
    one_unit = ["a", "a", "a", "b", "c", "d", "e", "f"]
    assert _leaks(SECRET, private, units=one_unit)


def test_one_record_that_repeats_itself_is_one_unit():
    assert _leaks(SECRET, [" ".join([SECRET] * 5), *_private()[1:]])


def test_public_text_is_no_leak():
    assert not _leaks(SECRET, public=[*PUBLIC, f"As printed: {SECRET}"])


LEFT = "the lift in our building stopped between two floors"
RIGHT = "i would be grateful for a quick answer this week"


def test_two_stock_phrases_in_a_row_are_composition_and_not_copying(monkeypatch):
    join = f"{LEFT} {RIGHT}"
    common = [LEFT, RIGHT, "two floors i climbed"]
    assert not _leaks(join, [join, *_private()], public=common)
    monkeypatch.setattr(overlap, "PIECE_WORDS", 11)
    assert _leaks(join, [join, *_private()], public=common)


def test_a_particular_name_between_stock_phrases_is_copying():
    join = f"{LEFT} says Zebulon Quixley and {RIGHT}"
    assert _leaks(join, [join, *_private()], public=[LEFT, RIGHT])


def test_a_stock_phrase_and_the_everyday_word_after_it_are_no_copy():
    private = [f"{NOTICE}. The ferry is late again", *(f"{NOTICE}. Number {n}" for n in range(5))]
    assert not _leaks(f"{NOTICE}. The invoice is here", private)
    assert not _leaks(f"Nobody knows the {NOTICE}", [*private, f"Read the {NOTICE}"])


def test_a_stock_phrase_and_the_rare_words_after_it_are_a_copy():
    private = [f"{NOTICE}. The ferry is late again", *(f"{NOTICE}. Number {n}" for n in range(5))]
    assert _leaks(f"{NOTICE}. The ferry sank", private)
    private[0] = f"{NOTICE}. Ferries are late"
    assert _leaks(f"{NOTICE}. Ferries sink", private)


def test_a_word_is_everyday_by_its_share_of_public_documents():
    private = [f"{NOTICE}. Ferries are late", *(f"{NOTICE}. Number {n}" for n in range(5))]
    copied = f"{NOTICE}. Ferries sink"
    seldom = [f"the sea {n}" for n in range(38)]
    assert _leaks(copied, private, public=[*seldom, "some ferries"])
    assert not _leaks(copied, private, public=[*seldom, "some ferries", "ferries and ferries"])


def test_spans_do_not_cross_records():
    words = SECRET.split()
    halves = [" ".join(words[:11]), " ".join(words[11:])]
    assert not _share([SECRET], halves, [])
    assert not _share(halves, [SECRET], [])
    assert _share([" ".join(words[:12])], [SECRET], [])


def test_the_share_counts_texts():
    assert _share([SECRET, "harmless", SECRET, NOTICE], _private(), PUBLIC) == 0.5
    assert _share([], _private(), PUBLIC) == 0.0


def test_the_answer_does_not_depend_on_blocks(monkeypatch):
    monkeypatch.setattr(overlap, "BLOCK_TEXTS", 2)
    texts = ["harmless", NOTICE, "", SECRET, PUBLIC[0]]
    assert _share(texts, _private(), PUBLIC) == 0.2
    three = _private(extra=["other", SECRET, "other", SECRET])
    assert not _leaks(SECRET, three)


def test_empty_sides_leak_nothing():
    assert not _share([SECRET], [], [])
    assert not _share(["short"], ["short"], [])


def test_scripts_without_spaces_are_compared_by_character():
    secret = "彼女は木曜日に青い舟で北の灯台を過ぎた"
    assert _share([f"すると{secret}"], [secret], [])


def test_units_must_match_records_and_the_message_shows_no_text():
    with pytest.raises(ValueError, match="a unit for each private record") as refusal:
        _leaks(SECRET, units=["a"])
    assert "kayak" not in str(refusal.value)


def test_near_duplicates_are_rows_within_the_cosine():
    private = np.eye(4, dtype=np.float32)
    tilted = np.array([[0.96, 0.28, 0, 0], [0.6, 0.8, 0, 0], [0, 0, 0, 1]], dtype=np.float32)
    assert near_duplicate_share(tilted, [HeldRecords(features=private)]) == pytest.approx(2 / 3)
    assert near_duplicate_share(tilted, [HeldRecords(features=private[:0])]) == 0.0
    assert near_duplicate_share(tilted[:0], [HeldRecords(features=private)]) == 0.0
