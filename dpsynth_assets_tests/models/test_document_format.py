"""The document format: prompts end where a text begins, and texts come back from tokens."""

import pytest

from dpsynth_assets.models.document_format import PAPER_PT, PLAIN_PT

FORMATS = {"paper": PAPER_PT, "plain": PLAIN_PT}


class BytesCodec:
    """One token a byte, shifted past two special tokens."""

    begin_token_id = 0
    end_token_id = 1

    def encode(self, text):
        return [byte + 2 for byte in text.encode()]

    def decode(self, ids):
        return bytes(token - 2 for token in ids if token > 1).decode()


@pytest.fixture
def codec():
    return BytesCodec()


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_a_prompt_of_k_examples_and_a_text_is_the_opening_of_a_prompt_of_k_plus_one(form, codec):
    examples = ["first text", "second text"]
    prompt = form.prompt_ids(codec, "Care", examples, 100)
    longer = form.prompt_ids(codec, "Care", [*examples, "third"], 100)
    written = [*codec.encode("third"), *codec.encode(form.closing), codec.end_token_id]
    assert longer[: len(prompt) + len(written)] == prompt + written


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_a_written_document_reads_back(form, codec):
    document = form.document_ids(codec, "Care", "a text", 100)
    opening = codec.encode(form.opening_text("Care"))
    assert form.read_text(codec, document[len(opening) :]) == ("a text", True)


def test_tokens_after_the_end_are_not_read(codec):
    ids = [*codec.encode("done"), 1, *codec.encode("more")]
    assert PLAIN_PT.read_text(codec, ids) == ("done", True)


def test_a_text_without_its_end_is_reported_as_cut(codec):
    assert PLAIN_PT.read_text(codec, codec.encode("cut o")) == ("cut o", False)


def test_examples_are_cut_by_tokens_and_still_closed(codec):
    ids = PAPER_PT.prompt_ids(codec, "Care", ["x" * 50], 10)
    assert ids.count(codec.encode("x")[0]) == 10
    assert ids.count(codec.end_token_id) == 1


def test_a_prompt_without_examples_is_begin_and_opening(codec):
    assert PLAIN_PT.prompt_ids(codec, "Care", [], 5) == [0, *codec.encode("Care\n")]


def test_braces_in_a_label_or_a_text_stay_as_they_are(codec):
    ids = PLAIN_PT.prompt_ids(codec, "{x}", ["{label} {0}"], 50)
    assert codec.decode(ids) == "{x}\n{label} {0}\n\n{x}\n"


def test_a_non_positive_cut_is_refused_with_a_remedy(codec):
    with pytest.raises(ValueError, match=r"at least 1, got 0; use an empty list"):
        PLAIN_PT.prompt_ids(codec, "Care", ["x"], 0)
