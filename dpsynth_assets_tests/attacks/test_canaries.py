import pytest

from dpsynth_assets.attacks.leak_scan import contains_canary, find_canaries

CODE = "X7QK-4Z9W-K2V8"


@pytest.mark.parametrize(
    "text",
    [
        "The reference is X7QK-4Z9W-K2V8.",
        "the reference is x7qk-4z9w-k2v8",
        "X7QK 4Z9W K2V8",
        "X7QK4Z9WK2V8",
        "x7qk‐4z9w\n k2v8 and more",  # another Unicode hyphen
        "refX7QK-4Z9W-K2V8ref",
    ],
)
def test_a_canary_is_found_whatever_its_case_spacing_and_hyphens(text):
    assert contains_canary(["nothing here", text], [CODE])


@pytest.mark.parametrize("text", ["", "X7QK-4Z9W", "X7QK-4Z9W-K2V9", "an ordinary sentence"])
def test_part_of_a_canary_is_none(text):
    assert not contains_canary([text], [CODE])


@pytest.mark.parametrize(
    ("texts", "canaries", "found"),
    [
        ([CODE, CODE.lower(), f"LONGER-CANARY-12345 and {CODE}"], [CODE, "longer canary 12345"], 2),
        ([CODE[:10], CODE[10:]], [CODE], 0),
        (["abcdef1"], ["ABCDEF", "ABCDEF1", "ABCDEF2"], 2),
        ([CODE], [], 0),
    ],
    ids=["each once", "split", "one opening", "none"],
)
def test_distinct_canaries_are_counted(texts, canaries, found):
    assert find_canaries(texts, canaries) == found


def test_a_short_canary_is_refused_without_showing_it():
    with pytest.raises(ValueError, match="at least 6") as refusal:
        contains_canary(["cats"], ["c-at"])
    assert "c-at" not in str(refusal.value)
