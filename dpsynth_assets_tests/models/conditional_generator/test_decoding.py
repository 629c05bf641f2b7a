"""Sampling: rows that do not depend on their neighbours, clean text."""

import pytest
import torch

from dpsynth_assets.models.conditional_generator.generator import (
    load_conditional_generator,
    per_example_loss,
)
from dpsynth_assets_tests.models.conditional_generator.conftest import encoded

CONDITIONS = ["Keywords: violin, melody", "Keywords: boiler", "", "Label: Note"] * 5


@pytest.fixture(params=["bart", "t5", "gpt2", "llama"])
def generator(request, toy_generator_folder, random_models):
    folder = toy_generator_folder if request.param == "bart" else random_models[request.param]
    return load_conditional_generator(folder, device="cpu")


def test_documents_do_not_depend_on_how_many_rows_are_decoded_together(generator):
    together = generator.generate(CONDITIONS, seed=3, max_new_tokens=12)
    few = generator.generate(CONDITIONS, seed=3, max_new_tokens=12, batch_rows=3)
    assert together == few
    assert together != generator.generate(CONDITIONS, seed=4, max_new_tokens=12)


def test_cached_decoding_gives_the_logits_of_a_full_pass(generator):
    """Greedy text (a nucleus of one token) equals the argmax of passes without a cache."""
    written = generator.generate(CONDITIONS[:2], top_p=1e-9, max_new_tokens=6)
    for condition, text in zip(CONDITIONS, written, strict=False):
        [ids] = generator.encoder.condition_ids([condition], generator.max_condition_tokens)
        document = []
        special = set(generator.tokenizer.all_special_ids)
        for step in range(6):
            batch = generator.encoder.pad([ids], [[*document, 0]])
            logits = generator.model(**batch.inputs).logits[0, -1]
            allowed = special if step == 0 else special - {generator.encoder.end_token_id}
            logits[sorted(allowed)] = -torch.inf
            document.append(int(logits.argmax()))
            if document[-1] == generator.encoder.end_token_id:
                document.pop()
                break
        assert generator.decode(document).strip() == text


def test_repeated_conditions_give_different_documents(toy_generator):
    assert len(set(toy_generator.generate(["Keywords: violin"] * 20))) > 5


def test_no_document_is_empty_or_holds_a_special_token(toy_generator):
    documents = toy_generator.generate(CONDITIONS * 3, temperature=3.0, max_new_tokens=5)
    special = toy_generator.tokenizer.all_special_tokens
    assert all(documents)
    assert not any(token in text for text in documents for token in special)


def test_no_conditions_give_no_documents(toy_generator):
    assert toy_generator.generate([]) == []


def test_progress_counts_documents(toy_generator):
    seen = []
    toy_generator.generate(
        CONDITIONS, batch_rows=8, max_new_tokens=3, progress=lambda *step: seen.append(step)
    )
    assert seen[-1] == (1.0, "20 of 20 documents")
    assert [share for share, _ in seen] == [0.4, 0.8, 1.0]


def test_a_temperature_below_zero_is_refused(toy_generator):
    with pytest.raises(ValueError, match="Expected"):
        toy_generator.generate(["Keywords: violin"], temperature=-0.1)


def test_without_temperature_the_most_probable_tokens_are_written(toy_generator):
    written = [
        toy_generator.generate(CONDITIONS[:2], temperature=0.0, seed=seed, max_new_tokens=5)
        for seed in (1, 2)
    ]
    assert written[0] == written[1]


def test_a_bound_beyond_the_models_positions_ends_at_them(toy_generator):
    """The decoder has 64 positions; nothing may be looked up behind them."""
    allowed = encoded(toy_generator, ["Keywords: violin"], ["word " * 100], 64, 1000)
    assert allowed.labels.shape == (1, 64)
    assert per_example_loss(toy_generator.model, allowed).isfinite().all()
    assert toy_generator.generate(["Keywords: violin"] * 4, temperature=9.0, max_new_tokens=1000)
