"""A language model as the generator: adapters trained in integers, folded in, and written from."""

from dataclasses import replace

import pytest
import torch

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.datasets.engine import EngineSpec
from dpsynth_assets.methods.inputs import Released
from dpsynth_assets.methods.registry import bound_method
from dpsynth_assets.methods.stages import FINETUNED_GENERATOR as STAGE
from dpsynth_assets.models.conditional_generator import load_conditional_generator
from dpsynth_assets.public_base.making import generator_manifest

BASE = PublicDataSpec(name="english", domain="short visits", language_model={"kind": "smollm2"})
SMALL = {"steps": 2, "expected_batch_size": 10, "max_document_tokens": 24, "rows": 12}


@pytest.fixture
def with_language_model(public):
    """Public inputs of a base whose generator is its (toy, Llama-shaped) language model."""
    source = public.language_model.source
    generator = load_conditional_generator(source, device="cpu")
    return replace(public, conditional_generator=generator)


def bound(cases, name="ctcl", engine=None, **settings):
    terms = cases.terms(
        language_model=BASE.language_model,
        generator=BASE.conditional_generator,
        domain=BASE.domain,
        engine=engine or EngineSpec(kind="exact"),
    )
    return bound_method(name, {**SMALL, **settings}, terms)


def released(cases, public, checkpoint, **settings):
    method = bound(cases, **settings)
    stage = method.plan(4.0).stage(STAGE)
    stage.check(public)
    return stage, stage.release(cases.private(), public, checkpoint, cases.silent)


def test_a_base_names_its_language_model_as_the_generator_or_weights():
    manifest = generator_manifest(BASE, {"path": "somewhere", "dtype": "bfloat16"})
    assert manifest == {"path": "somewhere", "dtype": "float32", "device": "auto"}
    named = {"kind": "pretrained", "model": "owner/name", "dtype": "bfloat16"}
    other = PublicDataSpec(name="english", conditional_generator=named)
    manifest = generator_manifest(other, None)
    assert manifest == {"path": "owner/name", "dtype": "bfloat16", "device": "auto"}


def test_the_charge_is_the_plans_and_the_weights_are_an_ordinary_model(
    cases, with_language_model, checkpoint
):
    before = dict(with_language_model.language_model.model.state_dict())
    stage, release = released(cases, with_language_model, checkpoint)
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
    _, release = released(cases, with_language_model, checkpoint)
    files = Released(reservation="r", facts=release.value.facts, folder=release.value.files)
    public = replace(with_language_model, released={STAGE: files})
    method = bound(cases, engine=EngineSpec(kind=engine))
    corpus = method.write(public, 6, cases.silent)
    assert corpus.facts["engine_kind"] == engine
    assert 0 < corpus.rows.height <= 6
    assert method.write(public, 6, cases.silent).rows.equals(corpus.rows)
