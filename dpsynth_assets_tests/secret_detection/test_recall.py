"""Recall: what is planted, what counts as found, and that nothing private goes into it."""

import pytest

from dpsynth_assets.datasets.secrets import SecretKindSpec
from dpsynth_assets.secret_detection.recall import CARRIERS, planted_recall, planter_of

PUBLIC = ("The parcel came late. Nobody called.", "Good food, friendly staff", "")


def kind(**fields):
    return SecretKindSpec.model_validate({"name": "k", "max_records": 1, **fields})


def measured(declared, planted=60, seed=0):
    return planted_recall(declared, PUBLIC, planted=planted, seed=seed)


def test_a_detector_that_sees_everything_has_recall_one():
    result = measured(kind(detector="regex", pattern=r"code \d{4}", examples=["code 1234"]))
    assert (result.planted, result.recall) == (60, 1.0)
    assert 0.9 < result.at_least < 1.0


def test_a_detector_that_sees_nothing_has_recall_zero():
    result = measured(kind(detector="regex", pattern="xyzzy", examples=["code 1234"]))
    assert (result.recall, result.at_least) == (0.0, 0.0)


def test_half_of_the_examples_found_is_half_the_recall():
    examples = ["code 1234", "number 1234"]
    result = measured(kind(detector="regex", pattern=r"code \d+", examples=examples), planted=400)
    assert result.recall == pytest.approx(0.5, abs=0.1)
    assert result.at_least < result.recall


def test_what_stood_in_the_text_before_is_not_found():
    public = ("code 1234 was here. And here",)
    declared = kind(detector="regex", pattern="code 1234", examples=["number 99"])
    assert planted_recall(declared, public, planted=20, seed=0).found == 0


def test_rules_miss_disguised_values():
    result = measured(kind(detector="presidio", entity="EMAIL_ADDRESS"), planted=200)
    assert 0.6 < result.recall < 1.0


@pytest.mark.parametrize("detector", ["dictionary", "rare_words"])
def test_a_private_list_is_never_opened(detector):
    path = {"path": "/no/such/private/file"} if detector == "dictionary" else {}
    result = measured(kind(detector=detector, **path))
    assert 0.5 < result.recall < 1.0  # Plurals are missed.


@pytest.mark.parametrize(
    "declared",
    [
        kind(detector="column", column="patient"),
        kind(detector="regex", pattern=r"\d+"),
        kind(detector="presidio", entity="US_BANK_NUMBER"),
    ],
)
def test_what_cannot_be_planted_says_so(declared):
    result = measured(declared)
    assert (result.planted, result.recall, result.at_least) == (0, None, None)
    assert result.note


def test_recall_is_a_function_of_its_seed():
    declared = kind(detector="presidio", entity="IP_ADDRESS")
    assert measured(declared, seed=3) == measured(declared, seed=3)


def test_every_carrier_carries():
    assert all(carrier.format("VALUE").count("VALUE") == 1 for carrier in CARRIERS)
    assert planter_of("NO_SUCH_ENTITY") is None
