"""Prompt tuning: a few virtual tokens are trained; what is released is an ordinary model."""

from dataclasses import replace

import pytest
import torch

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.datasets.engine import EngineSpec
from dpsynth_assets.methods.base import room_of
from dpsynth_assets.methods.inputs import Released
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

BASE = PublicDataSpec(name="english", domain="short visits", language_model={"kind": "smollm2"})
SMALL = {
    "steps": 2, "expected_batch_size": 10, "max_document_tokens": 24, "rows": 12,
    "learning_rate": 0.1, "prompt_tokens": 4,
}  # fmt: skip
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


def bound(cases, engine="exact", **settings):
    terms = cases.terms(
        language_model=BASE.language_model,
        generator=BASE.conditional_generator,
        domain=BASE.domain,
        engine=EngineSpec(kind=engine),
    )
    return bound_method("ctcl", {**SMALL, **settings}, terms)


def released(cases, public, checkpoint, **settings):
    method = bound(cases, **settings)
    stage = method.plan(4.0).stage(STAGE)
    stage.check(public)
    return stage, stage.release(cases.private(), public, checkpoint, cases.silent)


def test_reserved_tokens_stand_for_nothing_else(folder):
    tokenizer = load_language_model(folder, device="cpu").tokenizer
    names = tokenizer.convert_ids_to_tokens(reserved_tokens(tokenizer))
    assert set(RESERVED) <= set(names)
    assert not {tokenizer.eos_token, tokenizer.pad_token} & set(names)
    with pytest.raises(ValueError, match="60 reserved tokens for prompt_tokens"):
        virtual_tokens(tokenizer, 60)


@pytest.mark.parametrize("products", ["int8", "float32"])
def test_only_rows_of_virtual_tokens_move(cases, with_reserved, folder, checkpoint, products):
    stage, release = released(cases, with_reserved, checkpoint, frozen_products=products)
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


def test_virtual_tokens_stand_before_every_condition(cases, with_reserved, checkpoint):
    _, release = released(cases, with_reserved, checkpoint)
    method = bound(cases)
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
    _, release = released(cases, with_reserved, checkpoint)
    files = Released(reservation="r", facts=release.value.facts, folder=release.value.files)
    public = replace(with_reserved, released={STAGE: files})
    corpus = bound(cases, engine).write(public, 6, cases.silent)
    assert corpus.facts["engine_kind"] == engine
    assert 0 < corpus.rows.height <= 6


def test_the_plan_holds_room_for_what_is_released(cases, with_reserved, checkpoint):
    method = bound(cases)
    room = room_of(method, method.plan(4.0).stage(STAGE), with_reserved)
    _, release = released(cases, with_reserved, checkpoint)
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


def test_what_cannot_be_tuned_is_one_line_before_the_charge(cases, public, checkpoint):
    method = bound_method("ctcl", SMALL, cases.terms())
    stage = method.plan(4.0).stage(STAGE)
    with pytest.raises(ValueError, match="decoder-only generator for prompt_tokens"):
        stage.check(public)
    inexact = bound(cases, exact_sums=False)
    assert "exact_sums: true" in inexact.plan(4.0).refusal


def test_weights_that_need_virtual_tokens_are_no_language_model_for_others(cases):
    (stage,), (whole,) = bound(cases).stages(), bound(cases, prompt_tokens=None).stages()
    assert not stage.releases_language_model
    assert whole.releases_language_model


def test_settings_without_prompt_tokens_are_the_same_release_as_ever(cases):
    assert "prompt_tokens" not in bound(cases, prompt_tokens=None).config.model_dump(mode="json")
