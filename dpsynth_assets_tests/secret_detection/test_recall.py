"""Recall: what is planted, what counts as found, and that nothing private goes into it."""

import pytest

from dpsynth_assets.datasets.secrets import SecretKindSpec
from dpsynth_assets.secret_detection.recall import CARRIERS, planted_recall, planter_of

PUBLIC = ("The parcel came late. Nobody called.", "Good food, friendly staff", "")


def kind(**fields):
    return SecretKindSpec.model_validate({"name": "k", "max_records": 1, **fields})


def measured(declared, planted=60, seed=0):
    return planted_recall(declared, PUBLIC, planted=planted, seed=seed)


@pytest.mark.parametrize(
    ("pattern", "share"), [(r"\w+ \d{4}", 1.0), (r"code \d+", 0.5), ("xyzzy", 0.0)]
)
def test_recall_is_the_share_of_planted_values_that_are_found(pattern, share):
    declared = kind(detector="regex", pattern=pattern, examples=["code 1234", "number 1234"])
    result = measured(declared, planted=400, seed=3)
    assert result == measured(declared, planted=400, seed=3)
    assert result.planted == 400
    assert result.recall == pytest.approx(share, abs=0.1 if share == 0.5 else 0)
    assert 0.9 * share - 0.1 < result.at_least <= result.recall
    assert (result.at_least < result.recall) == bool(share)


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


def test_every_carrier_carries():
    assert all(carrier.format("VALUE").count("VALUE") == 1 for carrier in CARRIERS)
    assert planter_of("NO_SUCH_ENTITY") is None
