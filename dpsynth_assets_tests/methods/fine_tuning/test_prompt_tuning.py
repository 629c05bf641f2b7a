"""Prompt tuning: a few virtual tokens are trained; what is released is an ordinary model."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from dpsynth_assets.methods.base import room_of
from dpsynth_assets.methods.registry import bound_method
from dpsynth_assets.methods.stages import FINETUNED_GENERATOR as STAGE
from dpsynth_assets.models.conditional_generator import load_conditional_generator
from dpsynth_assets.models.fine_tuning import (
    add_virtual_tokens,
    fold_virtual_tokens,
    virtual_tokens,
)
from dpsynth_assets.models.fine_tuning.adapters import reserved_tokens
from dpsynth_assets.models.language_model import load_language_model
from dpsynth_assets_tests.methods.fine_tuning.conftest import (
    checked_release,
    on_language_model,
    with_released,
)

SMALL = {"learning_rate": 0.1, "prompt_tokens": 4}
bound = partial(on_language_model, **SMALL)
RESERVED = [f"<spare_{number}>" for number in range(6)]
HEADS = 16 << 10


@pytest.fixture
def folder(public, tmp_path):
    """The toy language model with six reserved tokens."""
    own = load_language_model(public.language_model.source, device="cpu")
    found, tokenizer, model = tmp_path / "spare", own.tokenizer, own.model
    tokenizer.add_special_tokens({"additional_special_tokens": RESERVED})
    with torch.no_grad():
        model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(found)
    tokenizer.save_pretrained(found)
    return found


@pytest.fixture
def with_reserved(public, folder):
    generator = load_conditional_generator(folder, device="cpu")
    return replace(
        public,
        conditional_generator=generator,
        language_model=load_language_model(folder, device="cpu"),
    )


def test_reserved_tokens_stand_for_nothing_else(folder):
    tokenizer = load_language_model(folder, device="cpu").tokenizer
    names = tokenizer.convert_ids_to_tokens(reserved_tokens(tokenizer))
    assert set(RESERVED) <= set(names)
    assert not {tokenizer.eos_token, tokenizer.pad_token} & set(names)
    with pytest.raises(ValueError, match="60 reserved tokens for prompt_tokens"):
        virtual_tokens(tokenizer, 60)


@pytest.mark.parametrize("products", ["int8", "float32"])
def test_only_rows_of_virtual_tokens_move(with_reserved, folder, checkpoint, products):
    stage, release = checked_release(bound(frozen_products=products), with_reserved, checkpoint)
    assert release.cost.event == stage.mechanism.event()
    before = load_language_model(folder, device="cpu").model.state_dict()
    tuned = load_conditional_generator(release.value.files, device="cpu")
    after = tuned.model.state_dict()
    assert len(tuned.prefix) == 4
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"model.embed_tokens.weight"}
    rows = (before["model.embed_tokens.weight"] != after["model.embed_tokens.weight"]).any(dim=1)
    assert rows.nonzero()[:, 0].tolist() == sorted(tuned.prefix)
    width = before["model.embed_tokens.weight"].shape[1]
    assert release.value.facts["trained_parameters"] == 4 * width


def test_virtual_tokens_stand_before_every_condition(with_reserved, checkpoint):
    _, release = checked_release(bound(), with_reserved, checkpoint)
    method = bound()
    tuned = load_conditional_generator(
        release.value.files, device="cpu", templates=method.templates
    )
    plain = replace(tuned, prefix=())
    bound_tokens = tuned.max_condition_tokens
    conditions = ["a visit", "a visit about harbour"]
    with_prefix = tuned.encoder.distinct_conditions(conditions, bound_tokens)
    without = plain.encoder.distinct_conditions(conditions, bound_tokens)
    for text in conditions:
        assert with_prefix[text] == [*tuned.prefix, *without[text]]
    assert all(len(ids) <= 6 for ids in tuned.encoder.distinct_conditions(conditions, 6).values())


@pytest.mark.parametrize("engine", ["exact", "transformers"])
def test_the_datasets_engine_writes_from_the_tuned_prompt(cases, with_reserved, checkpoint, engine):
    _, release = checked_release(bound(), with_reserved, checkpoint)
    corpus = bound(engine).write(with_released(with_reserved, release), 6, cases.silent)
    assert corpus.facts["engine_kind"] == engine
    assert 0 < corpus.rows.height <= 6


def test_the_plan_holds_room_for_what_is_released(with_reserved, checkpoint):
    method = bound()
    room = room_of(method, method.plan(4.0).stage(STAGE), with_reserved)
    _, release = checked_release(bound(), with_reserved, checkpoint)
    size = sum(file.stat().st_size for file in release.value.files.rglob("*") if file.is_file())
    assert size <= room.release + HEADS
    assert room.release <= 2 * size


def test_folding_changes_no_logit(folder):
    model = load_language_model(folder, device="cpu").model
    tokenizer = load_language_model(folder, device="cpu").tokenizer
    tokens = virtual_tokens(tokenizer, 3)
    ids = torch.tensor([[*tokens, 5, 9, 12]])
    tuned = add_virtual_tokens(model, tokens)
    with torch.no_grad():
        tuned.get_input_embeddings().virtual.weight.add_(0.3)
        unfolded = tuned(ids).logits
        folded = fold_virtual_tokens(tuned)(ids).logits
    assert torch.equal(unfolded, folded)


def test_what_cannot_be_tuned_is_one_line_before_the_charge(cases, public):
    method = bound_method("ctcl", SMALL | {"steps": 2, "expected_batch_size": 10}, cases.terms())
    stage = method.plan(4.0).stage(STAGE)
    with pytest.raises(ValueError, match="decoder-only generator for prompt_tokens"):
        stage.check(public)
    inexact = bound(exact_sums=False)
    assert "exact_sums: true" in inexact.plan(4.0).refusal


def test_weights_that_need_virtual_tokens_are_no_language_model_for_others():
    (stage,), (whole,) = bound().stages(), bound(prompt_tokens=None).stages()
    assert not stage.releases_language_model
    assert whole.releases_language_model


def test_settings_without_prompt_tokens_are_the_same_release_as_ever():
    assert "prompt_tokens" not in bound(prompt_tokens=None).config.model_dump(mode="json")
