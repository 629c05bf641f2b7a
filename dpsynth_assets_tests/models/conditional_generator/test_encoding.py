"""Pairs as tokens: where special tokens stand, what the loss counts, and of whom."""

import pytest
import torch

from dpsynth_assets.models.conditional_generator import load_conditional_generator
from dpsynth_assets.models.conditional_generator.encoding import IGNORED
from dpsynth_assets.models.conditional_generator.generator import per_example_loss
from dpsynth_assets.models.language_model import LanguageModelError

CONDITIONS = ["Keywords: violin", "Keywords: boiler, radiator, kettle", ""]
DOCUMENTS = ["A melody.", "The boiler and the radiator are here.", "Nothing <end> at all"]


@pytest.fixture(params=["bart", "t5", "gpt2", "llama"])
def generator(request, toy_generator_folder, random_models):
    folder = toy_generator_folder if request.param == "bart" else random_models[request.param]
    return load_conditional_generator(folder, device="cpu")


def test_labels_are_the_documents_tokens_and_one_end_token(generator):
    batch = generator.encode_pairs(CONDITIONS, DOCUMENTS, 32, 48)
    for row, document in zip(batch.labels, DOCUMENTS, strict=True):
        counted = row[row != IGNORED].tolist()
        assert counted[-1] == generator.encoder.end_token_id
        assert counted.count(generator.encoder.end_token_id) == 1
        assert generator.checkpoint.decode(counted) == document


def test_a_document_that_is_cut_has_no_end_token(generator):
    labels = generator.encode_pairs(CONDITIONS[:1], ["word " * 60], 32, 8).labels
    assert (labels != IGNORED).sum() == 8
    assert generator.encoder.end_token_id not in labels


def test_a_long_condition_is_cut_to_its_bound(generator):
    ids = generator.encoder.condition_ids(["Keywords: " + "violin, " * 100], 16)[0]
    assert len(ids) == 16
    assert generator.encoder.condition_ids([""], 16)[0]


def test_the_loss_of_an_example_is_the_same_alone_and_in_a_batch(generator):
    batch = generator.encode_pairs(CONDITIONS, DOCUMENTS)
    together = generator.per_example_loss(batch)
    assert together.shape == (3,)
    alone = [
        generator.per_example_loss(generator.encode_pairs([condition], [document]))
        for condition, document in zip(CONDITIONS, DOCUMENTS, strict=True)
    ]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-5)


def test_the_loss_of_an_example_is_the_mean_over_its_own_tokens(generator):
    batch = generator.encode_pairs(CONDITIONS, DOCUMENTS)
    logits = generator.model(**batch.inputs).logits.log_softmax(-1)
    for row in range(3):
        places = batch.labels[row] != IGNORED
        own = logits[row, places].gather(1, batch.labels[row, places, None]).mean()
        assert per_example_loss(generator.model, batch)[row] == pytest.approx(-own.item(), 1e-4)


def test_an_examples_loss_does_not_depend_on_the_others_of_its_batch(generator):
    batch = generator.encode_pairs(CONDITIONS, DOCUMENTS)
    other = generator.encode_pairs(CONDITIONS[:1] * 3, [DOCUMENTS[0], "boiler " * 20, "x"])
    first = [generator.per_example_loss(item)[0] for item in (batch, other)]
    torch.testing.assert_close(first[0], first[1], rtol=1e-4, atol=1e-5)


def test_batches_are_split_and_taken_by_rows(toy_generator):
    batch = toy_generator.encode_pairs(CONDITIONS, DOCUMENTS)
    assert [len(part) for part in batch.split(2)] == [2, 1]
    assert torch.equal(batch.take(slice(1, 2)).labels, batch.labels[1:2])


def test_texts_do_not_show_in_a_repr(toy_generator):
    assert "tensor" not in repr(toy_generator.encode_pairs(CONDITIONS, DOCUMENTS))


def test_unequal_lists_are_refused(toy_generator):
    with pytest.raises(ValueError, match="as many conditions as documents"):
        toy_generator.encode_pairs(["a"], ["a", "b"])


def test_special_tokens_stand_where_the_tokenizer_puts_them(toy_generator_folder, tmp_path):
    import shutil

    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    folder = shutil.copytree(toy_generator_folder, tmp_path / "bart-like")
    (folder / "condition_format.json").unlink()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    begin, end = tokenizer.bos_token, tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A {end}",
        special_tokens=[(begin, tokenizer.bos_token_id), (end, tokenizer.eos_token_id)],
    )
    tokenizer.save_pretrained(folder)
    generator = load_conditional_generator(folder, device="cpu")
    generator.config.decoder_start_token_id = tokenizer.eos_token_id
    batch = generator.encode_pairs(["Keywords: violin"], ["A melody."])
    assert batch.inputs["input_ids"][0, 0] == tokenizer.bos_token_id
    assert batch.inputs["input_ids"][0, -1] == tokenizer.eos_token_id
    start = [tokenizer.eos_token_id, tokenizer.bos_token_id]
    assert batch.inputs["decoder_input_ids"][0, :2].tolist() == start
    assert batch.labels[0, 0] == IGNORED
    counted = batch.labels[0, 1:].tolist()
    assert generator.checkpoint.decode(counted) == "A melody."
    assert len(generator.generate(["Keywords: violin"], max_new_tokens=4)) == 1


def test_a_condition_and_a_document_fit_the_positions_they_share(random_models):
    for name in ("gpt2", "llama"):
        generator = load_conditional_generator(random_models[name], device="cpu")
        positions = generator.config.max_position_embeddings
        for condition_tokens in (None, 40):
            batch = generator.encode_pairs(
                ["Keywords: " + "violin, " * 100], ["boiler " * 200], condition_tokens, positions
            )
            assert batch.inputs["input_ids"].shape[1] == positions - 1
            assert generator.per_example_loss(batch).isfinite().all()
            wanted = condition_tokens or generator.max_condition_tokens
            assert (batch.labels != IGNORED).sum() == positions - wanted
        written = generator.generate(["Keywords: " + "violin, " * 100], max_new_tokens=positions)
        assert written[0]


def test_conditions_that_leave_no_room_for_a_document_are_refused_in_one_line(random_models):
    generator = load_conditional_generator(random_models["gpt2"], device="cpu")
    for texts in (["short"], ["long " * 200]):
        with pytest.raises(LanguageModelError, match=r"room for a document .* got 128") as refusal:
            generator.encode_pairs(["Keywords: violin"], texts, 128, 16)
        assert "\n" not in str(refusal.value)
