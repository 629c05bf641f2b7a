"""GPU requests follow what models were declared to run on."""

import json

import dagster as dg
import pytest

from dpsynth_assets.assets import model_steps
from dpsynth_assets.assets.model_steps import embedding_step, model_step, step_on
from dpsynth_assets.assets.public import public_definitions
from dpsynth_assets.components.cohort import cohort_definitions
from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.datasets.engine import EngineSpec
from dpsynth_assets.resources.model_pool import GPU_VARIABLE, MODEL_POOL
from dpsynth_assets_tests.end_to_end.conftest import private_spec, public_spec

K8S, RAY = "dagster-k8s/config", "dagster-ray/config"


def base(device="auto", embedder=None):
    return PublicDataSpec.model_validate(
        {
            "name": "tiny",
            "language_model": {"device": device},
            "text_embedder": {"model": embedder},
        }
    )


@pytest.fixture(autouse=True)
def _gpus(monkeypatch):
    monkeypatch.setenv(GPU_VARIABLE, "nvidia.com/gpu")


def gpus(step):
    return step["op_tags"].get(RAY, {}).get("num_gpus", 0)


@pytest.mark.parametrize(("device", "asked"), [("auto", 1), ("cuda:1", 1), ("cpu", 0)])
def test_a_step_asks_for_what_its_base_declares(device, asked):
    assert gpus(model_step(base(device))) == asked
    assert model_step(base(device))["pool"] == MODEL_POOL
    assert gpus(step_on(device)) == asked


def test_the_packaged_embedder_needs_no_gpu():
    assert gpus(embedding_step(base())) == 0
    assert gpus(embedding_step(base(embedder="owner/embedder"))) == 1
    assert gpus(embedding_step(base("cpu", embedder="owner/embedder"))) == 0


def test_a_base_that_no_file_declares_is_asked_for_like_auto():
    assert gpus(model_step("nobody_declared_this")) == 1


def test_an_engine_asks_for_its_own_devices():
    assert gpus(model_step(base("cpu"), EngineSpec(kind="vllm", tensor_parallel_size=4))) == 4
    assert gpus(model_step(base("cpu"), EngineSpec(device="cuda"))) == 1
    assert gpus(model_step(base("cpu"), EngineSpec())) == 0


def test_no_step_of_a_cohort_on_the_processor_asks_for_a_gpu(tmp_path, monkeypatch):
    declared = public_spec(tmp_path).model_dump(mode="json", exclude_unset=True)
    declared["language_model"]["device"] = "cpu"
    spec = PublicDataSpec.model_validate(declared)
    monkeypatch.setattr(model_steps, "declared_base", {"tiny": spec}.get)
    (tmp_path / "private.jsonl").write_text(json.dumps({"text": "t", "label": "billing"}))
    definitions = dg.Definitions.merge(
        public_definitions(spec), cohort_definitions(private_spec(tmp_path))
    )
    assets = [each for each in definitions.assets if isinstance(each, dg.AssetsDefinition)]
    assert any(op.pool == MODEL_POOL for each in assets for op in each.node_def.iterate_op_defs())
    for each in assets:
        for op in each.node_def.iterate_op_defs():
            assert not {K8S, RAY} & set(op.tags), each.key
