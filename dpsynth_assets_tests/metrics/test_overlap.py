import numpy as np
import pytest

from dpsynth_assets.attacks import overlap
from dpsynth_assets.attacks.canaries import contains_canary, find_canaries
from dpsynth_assets.attacks.overlap import (
    near_duplicate_share,
    verbatim_share,
)

SECRET = "my brother sold the green van to a dentist from Odderby last winter for cash"
FORM = "thank you for calling our service desk please describe what happened in your own words"
PRIVATE = [f"Case {n}. {FORM}. Thing {n} broke." for n in range(20)] + [f"Hello. {SECRET}! Bye."]


def test_planted_private_span_is_found_whatever_its_case_and_punctuation():
    leak = f"Well, {SECRET.upper().replace(' ', ',  ')}"
    assert verbatim_share(["harmless", leak], PRIVATE, [])


def test_boilerplate_of_many_units_is_not_a_leak_of_one():
    assert not verbatim_share([FORM], PRIVATE, [])
    assert verbatim_share([FORM], PRIVATE, [], most_units=20)


def test_span_repeated_within_one_unit_is_still_its_own():
    records = [f"{SECRET} {n}" for n in range(5)]
    assert not verbatim_share([SECRET], records, [])
    assert verbatim_share([SECRET], records, [], private_units=["one"] * 5)


def test_span_of_a_public_document_is_not_a_leak():
    assert not verbatim_share([SECRET], PRIVATE, [f"As they say, {SECRET}."])


def test_span_must_be_long_enough_and_within_one_text():
    first, second = SECRET.split()[:7], SECRET.split()[7:]
    texts = [" ".join(first), " ".join(second)]
    assert not verbatim_share(texts, PRIVATE, [])
    assert verbatim_share(texts, PRIVATE, [], words=7)


def test_answers_do_not_depend_on_block_size(monkeypatch):
    monkeypatch.setattr(overlap, "BLOCK_TEXTS", 3)
    assert verbatim_share(["a b"] * 7 + [SECRET], PRIVATE, [])
    assert not verbatim_share([FORM], PRIVATE, [])
    assert verbatim_share(["none"] * 6 + [SECRET, SECRET], PRIVATE, []) == 0.25


def test_verbatim_share_counts_rows_and_subtracts_public_text():
    texts = [SECRET, "nothing", FORM, "new"]
    assert verbatim_share(texts, PRIVATE, []) == 0.25
    assert verbatim_share(texts, PRIVATE, [SECRET]) == 0.0
    assert verbatim_share([], PRIVATE, []) == 0.0


def test_near_duplicate_is_counted_from_the_cosine_on():
    features = np.array([[1, 0], [0.96, 0.28], [0.8, 0.6]], dtype=np.float32)
    assert near_duplicate_share(features, features[:1]) == pytest.approx(2 / 3)
    assert near_duplicate_share(features, features[:1], cosine=0.99) == pytest.approx(1 / 3)
    assert near_duplicate_share(features, features[:0]) == 0.0


@pytest.mark.parametrize("text", ["code ZK4Q-99XM-B2", "code zk4q 99xm b2.", "(ZK4Q99XMB2)"])
def test_canary_is_found_across_case_and_separators(text):
    assert find_canaries(["a", text, text], ["ZK4Q-99XM-B2", "OTHER-CODE-77"]) == 1
    assert contains_canary([text], ["ZK4Q-99XM-B2"])


def test_canary_does_not_span_texts():
    assert not contains_canary(["ZK4Q-99", "XM-B2"], ["ZK4Q-99XM-B2"])


def test_canary_too_short_to_tell_from_words_is_refused():
    with pytest.raises(ValueError, match="at least 6"):
        contains_canary(["concatenate"], ["cat"])


def test_no_canary_declared_means_none_found():
    assert find_canaries(["text"], []) == 0
