"""Pairs as tokens: where special tokens stand, what the loss counts, and of whom."""

from dataclasses import replace

import pytest
import torch

from dpsynth_assets.models.conditional_generator.encoding import IGNORED, condition_text
from dpsynth_assets.models.conditional_generator.generator import (
    load_conditional_generator,
    per_example_loss,
)
from dpsynth_assets.models.language_model import LanguageModelError
from dpsynth_assets_tests.models.conditional_generator.conftest import encoded

CONDITIONS = ["Keywords: violin", "Keywords: boiler, radiator, kettle", ""]
DOCUMENTS = ["A melody.", "The boiler and the radiator are here.", "Nothing <end> at all"]


@pytest.fixture(params=["bart", "t5", "gpt2", "llama"])
def generator(request, toy_generator_folder, random_models):
    folder = toy_generator_folder if request.param == "bart" else random_models[request.param]
    return load_conditional_generator(folder, device="cpu")


def test_labels_are_the_documents_tokens_and_one_end_token(generator):
    batch = encoded(generator, CONDITIONS, DOCUMENTS, 32, 48)
    for row, document in zip(batch.labels, DOCUMENTS, strict=True):
        counted = row[row != IGNORED].tolist()
        assert counted[-1] == generator.encoder.end_token_id
        assert counted.count(generator.encoder.end_token_id) == 1
        assert generator.decode(counted) == document


def test_a_document_that_is_cut_has_no_end_token(generator):
    labels = encoded(generator, CONDITIONS[:1], ["word " * 60], 32, 8).labels
    assert (labels != IGNORED).sum() == 8
    assert generator.encoder.end_token_id not in labels


def test_a_long_condition_is_cut_to_its_bound(generator):
    ids = generator.encoder.condition_ids(["Keywords: " + "violin, " * 100], 16)[0]
    assert len(ids) == 16
    assert generator.encoder.condition_ids([""], 16)[0]


def test_the_loss_of_an_example_is_the_mean_over_its_own_tokens(generator):
    batch = encoded(generator, CONDITIONS, DOCUMENTS)
    logits = generator.model(**batch.inputs).logits.log_softmax(-1)
    for row in range(3):
        places = batch.labels[row] != IGNORED
        own = logits[row, places].gather(1, batch.labels[row, places, None]).mean()
        assert per_example_loss(generator.model, batch)[row] == pytest.approx(-own.item(), 1e-4)


def test_an_examples_loss_does_not_depend_on_the_others_of_its_batch(generator):
    batch = encoded(generator, CONDITIONS, DOCUMENTS)
    other = encoded(generator, CONDITIONS[:1] * 3, [DOCUMENTS[0], "boiler " * 20, "x"])
    first = [per_example_loss(generator.model, item)[0] for item in (batch, other)]
    torch.testing.assert_close(first[0], first[1], rtol=1e-4, atol=1e-5)


def test_texts_do_not_show_in_a_repr(toy_generator):
    assert "tensor" not in repr(encoded(toy_generator, CONDITIONS, DOCUMENTS))


def test_special_tokens_stand_where_the_tokenizer_puts_them(toy_generator_folder, tmp_path):
    import shutil

    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    folder = shutil.copytree(toy_generator_folder, tmp_path / "bart-like")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    begin, end = tokenizer.bos_token, tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A {end}",
        special_tokens=[(begin, tokenizer.bos_token_id), (end, tokenizer.eos_token_id)],
    )
    tokenizer.save_pretrained(folder)
    generator = load_conditional_generator(folder, device="cpu")
    generator.config.decoder_start_token_id = tokenizer.eos_token_id
    batch = encoded(generator, ["Keywords: violin"], ["A melody."])
    assert batch.inputs["input_ids"][0, 0] == tokenizer.bos_token_id
    assert batch.inputs["input_ids"][0, -1] == tokenizer.eos_token_id
    start = [tokenizer.eos_token_id, tokenizer.bos_token_id]
    assert batch.inputs["decoder_input_ids"][0, :2].tolist() == start
    assert batch.labels[0, 0] == IGNORED
    counted = batch.labels[0, 1:].tolist()
    assert generator.decode(counted) == "A melody."
    assert len(generator.generate(["Keywords: violin"], max_new_tokens=4)) == 1


def test_a_condition_and_a_document_fit_the_positions_they_share(random_models):
    for name in ("gpt2", "llama"):
        generator = load_conditional_generator(random_models[name], device="cpu")
        positions = generator.config.max_position_embeddings
        long = ["Keywords: " + "violin, " * 100]
        batch = encoded(generator, long, ["boiler " * 200], None, positions)
        assert batch.inputs["input_ids"].shape[1] == positions - 1
        assert per_example_loss(generator.model, batch).isfinite().all()
        assert (batch.labels != IGNORED).sum() == positions - generator.max_condition_tokens
        assert generator.generate(long, max_new_tokens=positions)[0]


def test_a_condition_is_one_aspect_a_line_and_missing_ones_leave_none():
    text = condition_text(("boiler", "cold flat"), "letter", "Facilities")
    assert text == "Document Type: letter\nLabel: Facilities\nKeywords: boiler, cold flat"
    assert condition_text((), "news", "") == "Document Type: news"
    assert condition_text(()) == ""
    assert condition_text(("a\nLabel: forged",), "two\nlines").count("\n") == 1


def test_a_saved_generator_loads_back_and_writes_the_same(toy_generator, tmp_path):
    toy_generator.save(tmp_path / "copy")
    copy = load_conditional_generator(tmp_path / "copy", device="cpu")
    assert copy.max_document_tokens == 64
    conditions = ["Keywords: violin, concert"] * 3
    assert copy.generate(conditions) == toy_generator.generate(conditions)
    (tmp_path / "copy" / "model.safetensors").unlink()
    reasons = {"nowhere": "materialise public/conditional_gen", "copy": "Restore the missing file"}
    for folder, why in reasons.items():
        with pytest.raises(LanguageModelError, match=why) as error:
            _ = load_conditional_generator(tmp_path / folder, device="cpu").model
        assert "\n" not in str(error.value)


def test_conditions_that_leave_no_room_for_a_document_are_refused_in_one_line(random_models):
    generator = load_conditional_generator(random_models["gpt2"], device="cpu")
    encoder = replace(generator.encoder, condition_tokens=128)
    for texts in (["short"], ["long " * 200]):
        with pytest.raises(LanguageModelError, match=r"room for a document .* got 128") as refusal:
            encoder.document_ids(texts, 16)
        assert "\n" not in str(refusal.value)


# Sampling: rows that do not depend on their neighbours, clean text.

TWENTY = ["Keywords: violin, melody", "Keywords: boiler", "", "Label: Note"] * 5


def test_documents_do_not_depend_on_how_many_rows_are_decoded_together(generator):
    together = generator.generate(TWENTY, seed=3, max_new_tokens=12)
    few = generator.generate(TWENTY, seed=3, max_new_tokens=12, batch_rows=3)
    assert together == few
    assert together != generator.generate(TWENTY, seed=4, max_new_tokens=12)


def test_cached_decoding_gives_the_logits_of_a_full_pass(generator):
    """Greedy text (a nucleus of one token) equals the argmax of passes without a cache."""
    written = generator.generate(TWENTY[:2], top_p=1e-9, max_new_tokens=6)
    for condition, text in zip(TWENTY, written, strict=False):
        [ids] = generator.encoder.condition_ids([condition], generator.max_condition_tokens)
        document = []
        special = set(generator.tokenizer.all_special_ids)
        for step in range(6):
            batch = generator.encoder.pad([ids], [[*document, 0]])
            last = int((batch.labels[0] >= 0).nonzero()[-1])  # Padding follows.
            logits = generator.model(**batch.inputs).logits[0, last]
            allowed = special if step == 0 else special - {generator.encoder.end_token_id}
            logits[sorted(allowed)] = -torch.inf
            document.append(int(logits.argmax()))
            if document[-1] == generator.encoder.end_token_id:
                document.pop()
                break
        assert generator.decode(document).strip() == text


def test_documents_differ_and_none_is_empty_or_holds_a_special_token(toy_generator):
    assert len(set(toy_generator.generate(["Keywords: violin"] * 20))) > 5
    documents = toy_generator.generate(TWENTY * 3, temperature=3.0, max_new_tokens=5)
    special = toy_generator.tokenizer.all_special_tokens
    assert all(documents)
    assert not any(token in text for text in documents for token in special)
    assert toy_generator.generate([]) == []


def test_progress_counts_documents(toy_generator):
    seen = []
    toy_generator.generate(TWENTY, batch_rows=8, max_new_tokens=3, progress=seen.append)
    assert seen == [0.4, 0.8, 1.0]


def test_a_temperature_below_zero_is_refused(toy_generator):
    with pytest.raises(ValueError, match="Expected"):
        toy_generator.generate(["Keywords: violin"], temperature=-0.1)


def test_a_bound_beyond_the_models_positions_ends_at_them(toy_generator):
    """The decoder has 64 positions; nothing may be looked up behind them."""
    allowed = encoded(toy_generator, ["Keywords: violin"], ["word " * 100], 64, 1000)
    assert allowed.labels.shape == (1, 64)
    assert per_example_loss(toy_generator.model, allowed).isfinite().all()
    assert toy_generator.generate(["Keywords: violin"] * 4, temperature=9.0, max_new_tokens=1000)
