"""GPU requests follow the models that a step computes with, and where they run."""

from pathlib import Path

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
from dpsynth_assets.orchestration.assets.keys import public_key
from dpsynth_assets.orchestration.assets.public import generation_definitions
from dpsynth_assets.orchestration.resources.model_pool import (
    GPU_POOL,
    GPU_VARIABLE,
    PROCESSOR_POOL,
    model_step,
)
from dpsynth_assets_tests.end_to_end.conftest import private_spec

RAY = "dagster-ray/config"


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


EXACT = {"model": None}
PACKAGED = {"kind": "exact"}
JUDGE = {"model": "owner/judge"}
REMOTE = {"kind": "openai", "model": "m", "base_url": "https://host/v1"}


@pytest.mark.parametrize(
    ("declared", "models", "asked"),
    [
        ({}, [LANGUAGE_MODEL], 1),
        ({"device": "cpu"}, [LANGUAGE_MODEL], 0),
        # The packaged embedder needs none, and another may have one.
        ({}, [TEXT_EMBEDDER], 0),
        ({"embedder": "owner/embedder"}, [TEXT_EMBEDDER], 1),
        ({"device": "cpu", "embedder": "owner/embedder"}, [LANGUAGE_MODEL, TEXT_EMBEDDER], 1),
        # The exact decoder runs on processors unless a GPU is named, its weights where declared.
        (EXACT, [LANGUAGE_MODEL], 0),
        (EXACT, [PACKAGED], 0),
        (EXACT, [LANGUAGE_MODEL_WEIGHTS], 1),
        ({**EXACT, "decoder": "exact", "device": "cuda"}, [LANGUAGE_MODEL], 1),
        ({**EXACT, "decoder": "exact", "device": "cpu"}, [PACKAGED], 0),
        # A generator has a device of its own.
        ({"device": "cpu", "generator": "cuda"}, [CONDITIONAL_GENERATOR], 1),
        ({"device": "cuda", "generator": "cpu"}, [CONDITIONAL_GENERATOR], 0),
        # So has an engine.
        ({"device": "cpu"}, [{"kind": "vllm", "tensor_parallel_size": 4}], 4),
        ({"device": "cpu"}, [{"device": "cuda"}], 1),
        ({"device": "cpu"}, [{}, JUDGE], 1),
        ({}, [REMOTE], 0),
    ],
)
def test_a_step_asks_for_what_its_models_are_declared_to_run_on(declared, models, asked):
    used = [EngineSpec(**each) if isinstance(each, dict) else each for each in models]
    step = model_step(base(**declared), *used)
    assert gpus(step) == asked
    assert step["pool"] == (GPU_POOL if asked else PROCESSOR_POOL)


def test_a_base_that_no_file_declares_is_asked_for_like_auto():
    assert gpus(model_step("nobody_declared_this", LANGUAGE_MODEL)) == 1


@pytest.mark.parametrize(
    ("declared", "read"),
    [
        ({"language_model": {"kind": "smollm2"}}, {"public_language_model"}),
        ({"conditional_generator": {"kind": "pretrained", "model": "owner/name"}}, set()),
    ],
)
def test_a_generator_depends_on_the_language_model_alone_or_on_nothing(declared, read):
    key = public_key("letters", "conditional_generator")
    definitions = generation_definitions(PublicDataSpec(name="letters", **declared))
    (asset,) = [each for each in definitions.assets if each.key == key]
    assert {each.path[-1] for each in asset.asset_deps[key]} == read


def asked(name, stage, declared, **settings):
    """GPUs of a stage of a method on a base."""
    terms = cohort_terms(private_spec(Path("/nowhere")), declared)
    method = bound_method(name, settings, terms)
    steps = {CANDIDATE_CORPUS: method.writing()} | {step.name: step for step in method.stages()}
    return gpus(model_step(declared, *steps[stage].models))


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
