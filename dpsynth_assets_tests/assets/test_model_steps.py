"""GPU requests follow the models that a step computes with, and where they run."""

import json
from pathlib import Path

import dagster as dg
import pytest

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.methods.dataset_plan import cohort_terms
from dpsynth_assets.methods.registry import bound_method
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS, FINETUNED_GENERATOR
from dpsynth_assets.methods.work import (
    CONDITIONAL_GENERATOR,
    LANGUAGE_MODEL,
    LANGUAGE_MODEL_WEIGHTS,
    TEXT_EMBEDDER,
)
from dpsynth_assets.orchestration.assets.public import public_definitions
from dpsynth_assets.orchestration.components.cohort import declared_definitions
from dpsynth_assets.orchestration.resources import model_pool
from dpsynth_assets.orchestration.resources.model_pool import (
    GPU_POOL,
    GPU_VARIABLE,
    PROCESSOR_POOL,
    model_step,
)
from dpsynth_assets_tests.end_to_end.conftest import private_spec, public_spec

K8S, RAY = "dagster-k8s/config", "dagster-ray/config"


def base(device="auto", embedder=None, model="owner/name", generator="auto", decoder=None):
    named = {} if model is None else {"kind": "pretrained", "model": model}
    return PublicDataSpec.model_validate(
        {
            "name": "tiny",
            "language_model": {"device": device, "decoder": decoder, **named},
            "text_embedder": {"model": embedder},
            "conditional_generator": {"device": generator},
        }
    )


@pytest.fixture(autouse=True)
def _gpus(monkeypatch):
    monkeypatch.setenv(GPU_VARIABLE, "nvidia.com/gpu")


def gpus(step):
    return step["op_tags"].get(RAY, {}).get("num_gpus", 0)


@pytest.mark.parametrize(("device", "asked"), [("auto", 1), ("cuda:1", 1), ("cpu", 0)])
def test_a_step_asks_for_what_its_base_declares(device, asked):
    step = model_step(base(device), LANGUAGE_MODEL)
    assert gpus(step) == asked
    assert step["pool"] == (GPU_POOL if asked else PROCESSOR_POOL)


def test_the_packaged_embedder_needs_no_gpu_and_another_may_have_one():
    assert gpus(model_step(base(), TEXT_EMBEDDER)) == 0
    assert gpus(model_step(base(embedder="owner/embedder"), TEXT_EMBEDDER)) == 1
    both = model_step(base("cpu", embedder="owner/embedder"), LANGUAGE_MODEL, TEXT_EMBEDDER)
    assert gpus(both) == 1


def test_the_exact_decoder_runs_on_processors_and_the_same_weights_where_they_are_declared():
    exact = base(model=None)
    assert gpus(model_step(exact, LANGUAGE_MODEL)) == 0
    assert gpus(model_step(exact, EngineSpec(kind="exact"))) == 0
    assert gpus(model_step(exact, LANGUAGE_MODEL_WEIGHTS)) == 1
    assert gpus(model_step(exact, EngineSpec())) == 1


@pytest.mark.parametrize(("device", "asked"), [("cuda", 1), ("auto", 0), ("cpu", 0)])
def test_the_exact_decoder_asks_for_a_gpu_that_was_named(device, asked):
    exact = base(device, model=None, decoder="exact")
    assert gpus(model_step(exact, LANGUAGE_MODEL)) == asked
    assert gpus(model_step(exact, EngineSpec(kind="exact"))) == asked


def test_a_generator_on_a_gpu_asks_for_it_whatever_the_language_model_has():
    assert gpus(model_step(base("cpu", generator="cuda"), CONDITIONAL_GENERATOR)) == 1
    assert gpus(model_step(base("cuda", generator="cpu"), CONDITIONAL_GENERATOR)) == 0


def test_a_base_that_no_file_declares_is_asked_for_like_auto():
    assert gpus(model_step("nobody_declared_this", LANGUAGE_MODEL)) == 1


def test_an_engine_asks_for_its_own_devices():
    assert gpus(model_step(base("cpu"), EngineSpec(kind="vllm", tensor_parallel_size=4))) == 4
    assert gpus(model_step(base("cpu"), EngineSpec(device="cuda"))) == 1
    assert gpus(model_step(base("cpu"), EngineSpec())) == 0
    judge = EngineSpec(model="owner/judge")
    assert gpus(model_step(base("cpu"), EngineSpec(), judge)) == 1
    remote = EngineSpec(kind="openai", model="m", base_url="https://host/v1")
    assert gpus(model_step(base(), remote)) == 0


def asked(name, stage, declared, **settings):
    """GPUs of a stage of a method on a base."""
    method = bound_method(name, settings, terms(declared))
    steps = {CANDIDATE_CORPUS: method.writing()} | {step.name: step for step in method.stages()}
    return gpus(model_step(declared, *steps[stage].models))


def terms(declared):
    spec = private_spec(Path("/nowhere"))
    return cohort_terms(spec, declared)


@pytest.mark.parametrize(
    ("name", "stage", "settings", "wanted"),
    [
        ("mean_uniform", CANDIDATE_CORPUS, {}, 0),
        ("epsvec", "dataset_vectors", {}, 0),
        ("epsvec", CANDIDATE_CORPUS, {"rejection": {"judge": "rubric"}}, 0),
        ("epsvec", CANDIDATE_CORPUS, {"rejection": {"judge": "likelihood"}}, 1),
        ("aug_pe", "population", {}, 0),
        ("dp_fine_tuning", FINETUNED_GENERATOR, {"architecture": "decoder_only"}, 1),
        ("dp_fine_tuning", FINETUNED_GENERATOR, {}, 1),
        ("downstream_fine_tuning", "downstream_model", {"task": "classification"}, 0),
    ],
)
def test_stages_on_an_exact_base_ask_only_for_what_they_compute_in_floats(
    name, stage, settings, wanted
):
    assert asked(name, stage, base(model=None), **settings) == wanted
    assert asked(name, stage, base("cpu", model=None, generator="cpu"), **settings) == 0


def test_no_step_of_a_cohort_on_the_processor_asks_for_a_gpu(tmp_path, monkeypatch):
    declared = public_spec(tmp_path).model_dump(mode="json", exclude_unset=True)
    declared["language_model"]["device"] = "cpu"
    spec = PublicDataSpec.model_validate(declared)
    monkeypatch.setattr(model_pool, "declared_base", {"tiny": spec}.get)
    (tmp_path / "private.jsonl").write_text(json.dumps({"text": "t", "label": "billing"}))
    definitions = dg.Definitions.merge(
        public_definitions(spec), declared_definitions(private_spec(tmp_path))
    )
    assets = [each for each in definitions.assets if isinstance(each, dg.AssetsDefinition)]
    assert any(
        op.pool == PROCESSOR_POOL for each in assets for op in each.node_def.iterate_op_defs()
    )
    for each in assets:
        for op in each.node_def.iterate_op_defs():
            assert not {K8S, RAY} & set(op.tags), each.key
            assert op.pool != GPU_POOL, each.key
