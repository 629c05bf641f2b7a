"""A language model as the generator: adapters trained in integers, folded in, and written from."""

from dataclasses import replace

import pytest
import torch

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.models.conditional_generator.generator import load_conditional_generator
from dpsynth_assets.public_base.making import generator_manifest
from dpsynth_assets_tests.methods.fine_tuning.conftest import (
    LANGUAGE_MODEL,
    checked_release,
    on_language_model,
    with_released,
)


@pytest.fixture
def with_language_model(public):
    """Public inputs of a base whose generator is its (toy, Llama-shaped) language model."""
    source = public.language_model.source
    generator = load_conditional_generator(source, device="cpu")
    return replace(public, conditional_generator=generator)


def test_a_base_names_its_language_model_as_the_generator_or_weights():
    manifest = generator_manifest(LANGUAGE_MODEL, {"path": "somewhere", "dtype": "bfloat16"})
    assert manifest == {"path": "somewhere", "dtype": "float32", "device": "auto"}
    named = {"kind": "pretrained", "model": "owner/name", "dtype": "bfloat16"}
    other = PublicDataSpec(name="english", conditional_generator=named)
    manifest = generator_manifest(other, None)
    assert manifest == {"path": "owner/name", "dtype": "bfloat16", "device": "auto"}


def test_the_charge_is_the_plans_and_the_weights_are_an_ordinary_model(
    with_language_model, checkpoint
):
    before = dict(with_language_model.language_model.model.state_dict())
    stage, release = checked_release(on_language_model(), with_language_model, checkpoint)
    assert release.cost.event == stage.mechanism.event()
    after = load_conditional_generator(release.value.files, device="cpu").model.state_dict()
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all(name.endswith("_proj.weight") for name in moved)


@pytest.mark.parametrize("engine", ["exact", "transformers"])
def test_the_datasets_engine_writes_from_the_folded_adapters(
    cases, with_language_model, checkpoint, engine
):
    _, release = checked_release(on_language_model(), with_language_model, checkpoint)
    public, method = with_released(with_language_model, release), on_language_model(engine)
    corpus = method.write(public, 6, cases.silent)
    assert corpus.facts["engine_kind"] == engine
    assert 0 < corpus.rows.height <= 6
    assert method.write(public, 6, cases.silent).rows.equals(corpus.rows)
