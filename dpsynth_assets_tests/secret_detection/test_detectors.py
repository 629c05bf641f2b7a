"""What each detector finds, and what it never does: reach for the network, or tell a value."""

import socket

import pytest

from dpsynth_assets.datasets.secrets import SecretKindSpec
from dpsynth_assets.secret_detection.finding import (
    detector_of,
    listed_words,
    normalised,
    rare_among,
    word_counts,
)


def kind(detector, **fields):
    return SecretKindSpec(name="k", detector=detector, max_records=2, **fields)


def rare_words(texts, **near):
    return rare_among(word_counts(texts), **near)


def found(declared, text, texts=()):
    return sorted(detector_of(declared, texts)(text))


@pytest.fixture
def offline(monkeypatch):
    def refuse(*_, **__):
        pytest.fail("a detector reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.parametrize(
    ("entity", "text", "value"),
    [
        ("EMAIL_ADDRESS", "mail ann.lee@example.co.uk now", "ann.lee@example.co.uk"),
        ("PHONE_NUMBER", "call (212) 555-0143, please", "(212) 555-0143"),
    ],
)
def test_presidio_finds_by_rules_and_without_the_network(offline, entity, text, value):
    assert value in found(kind("presidio", entity=entity), text)


def test_the_least_score_is_kept():
    weak = "number 536228145"
    assert found(kind("presidio", entity="US_SSN", min_score=0.01), weak)
    assert found(kind("presidio", entity="US_SSN", min_score=0.4), weak) == []


def test_an_entity_without_rules_is_refused_by_name():
    with pytest.raises(ValueError, match=r"EMAIL_ADDRESS.*got 'PERSON'"):
        detector_of(kind("presidio", entity="PERSON"), ())


def test_a_configured_model_finds_named_entities(tmp_path):
    import spacy

    pipeline = spacy.blank("en")
    pipeline.add_pipe("entity_ruler").add_patterns(
        [{"label": "GPE", "pattern": "Rotterdam"}, {"label": "PERSON", "pattern": "Ines Aguilar"}]
    )
    pipeline.to_disk(tmp_path / "pipeline")
    place = kind("ner", entity="LOCATION", model=str(tmp_path / "pipeline"))
    person = kind("ner", entity="PERSON", model=str(tmp_path / "pipeline"))
    assert found(place, "Ines Aguilar of Rotterdam wrote") == ["Rotterdam"]
    assert found(person, "Ines Aguilar of Rotterdam wrote") == ["Ines Aguilar"]


@pytest.mark.parametrize(
    ("framework", "words"),
    [("spacy", "nothing is downloaded"), ("transformers", "set HF_HUB_OFFLINE=0")],
)
def test_a_missing_model_is_refused_and_not_downloaded_offline(offline, framework, words):
    declared = kind("ner", entity="PERSON", model="no-such-model-anywhere", framework=framework)
    with pytest.raises(ValueError, match=words):
        detector_of(declared, ())


def test_a_dictionary_is_searched_at_word_boundaries(tmp_path):
    (tmp_path / "words.txt").write_text("Zorvex\nproject  blue moon\n\nC++\n")
    declared = kind("dictionary", path=str(tmp_path / "words.txt"))
    text = "ZORVEX, zorvexes and Project Blue\nMoon in C++."
    assert found(declared, text) == ["C++", "Project Blue\nMoon", "ZORVEX"]
    exact = kind("dictionary", path=str(tmp_path / "words.txt"), ignore_case=False)
    assert found(exact, text) == ["C++"]


def test_a_missing_dictionary_is_refused_without_its_words(tmp_path):
    with pytest.raises(ValueError, match="Write one secret a line"):
        detector_of(kind("dictionary", path=str(tmp_path / "none.txt")), ())


def test_a_pattern_gives_its_first_group_or_all_of_it():
    assert found(kind("regex", pattern=r"code (\d+)"), "Code 12, code 7") == ["12", "7"]
    assert found(kind("regex", pattern=r"[A-Z]\d{2}", ignore_case=False), "a12 B34") == ["B34"]


def test_rare_words_lie_around_their_place_in_the_vocabulary():
    texts = [" ".join(f"w{rank}" for rank in range(row, 10)) for row in range(10)]
    # w0 is in one text, w9 in ten.
    assert rare_words(texts, quantile=0.0, count=2) == ["w0", "w1"]
    assert rare_words(texts, quantile=1.0, count=2) == ["w8", "w9"]
    assert set(rare_words(texts, quantile=0.5, count=2)) <= {"w3", "w4", "w5"}
    assert listed_words(rare_words([], quantile=0.2, count=5))("anything") == []
    assert found(kind("rare_words", quantile=0.0, words=1), "W0 and w1", texts) == ["W0"]


def test_a_rare_word_is_found_where_the_vocabulary_counted_it_and_not_inside_others():
    texts = ["ll", "we'll go", "we'll stay", "wi-fi we'll"]
    declared = kind("rare_words", quantile=0.0, words=2)
    assert rare_words(texts, quantile=0.0, count=2) == ["go", "ll"]
    assert [found(declared, text, texts) for text in texts] == [["ll"], ["go"], [], []]


def test_equal_secrets_are_written_alike():
    assert normalised("  Ann\u00a0LEE ") == normalised("ann lee")
    assert normalised("ﬁle") == "file"
