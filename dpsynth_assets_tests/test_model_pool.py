"""Steps that run models share a pool, and ask for GPUs only where an installation has some."""

import dagster as dg
import pytest

from dpsynth_assets.orchestration.resources import model_pool as module
from dpsynth_assets.orchestration.resources.executors import declared_executor
from dpsynth_assets.orchestration.resources.model_pool import (
    GPU_POOL,
    GPU_VARIABLE,
    PROCESSOR_POOL,
    model_op_tags,
    model_pool,
)

NVIDIA = "nvidia.com/gpu"


def op_tags(devices):
    @dg.asset(pool=model_pool(devices), op_tags=model_op_tags(devices))
    def stage() -> None: ...

    return stage.op.tags


@pytest.mark.parametrize("declared", ["", " ", NVIDIA])
def test_gpus_are_asked_for_where_they_are_declared_and_never_for_the_processor(
    declared, monkeypatch
):
    monkeypatch.setenv(GPU_VARIABLE, declared)
    executors = {"dagster-k8s/config", "dagster-ray/config"}
    assert executors & set(op_tags(2)) == (executors if declared.strip() else set())
    assert model_op_tags(0) == {}


@pytest.mark.parametrize("name", ["1", "yes", "nvidia", "nvidia.com/"])
def test_what_is_no_name_of_gpus_is_refused(name, monkeypatch):
    monkeypatch.setenv(GPU_VARIABLE, name)
    with pytest.raises(ValueError, match=f"e.g. nvidia.com/gpu, got '{name}'"):
        model_op_tags(1)


def test_a_kubernetes_executor_puts_the_limit_into_the_steps_pod(monkeypatch):
    job = pytest.importorskip("dagster_k8s.job")
    monkeypatch.setenv(GPU_VARIABLE, NVIDIA)
    container = job.get_user_defined_k8s_config(op_tags(2)).container_config
    assert container["resources"]["limits"] == {NVIDIA: 2}


def test_a_ray_executor_reads_the_number_of_devices(monkeypatch):
    configs = pytest.importorskip("dagster_ray.configs")
    monkeypatch.setenv(GPU_VARIABLE, NVIDIA)
    assert configs.RayExecutionConfig.from_tags(op_tags(2)).num_gpus == 2


# A pool for each kind of device


@pytest.mark.parametrize(
    ("declared", "here", "gpus", "pool"),
    [
        (None, False, 1, PROCESSOR_POOL),  # device: auto on a machine without GPU
        (None, True, 1, GPU_POOL),
        (NVIDIA, False, 2, GPU_POOL),
        (NVIDIA, True, 0, PROCESSOR_POOL),
    ],
)
def test_a_step_waits_in_the_pool_of_the_device_that_it_runs_on(
    declared, here, gpus, pool, tmp_path, monkeypatch
):
    monkeypatch.setenv(GPU_VARIABLE, declared or "")
    monkeypatch.delenv("DPSYNTH_EXECUTOR", raising=False)
    monkeypatch.setattr(module, "_GPU_HERE", tmp_path if here else tmp_path / "none")
    assert model_pool(gpus) == pool
    # Only the end of a process frees the memory of a GPU.
    assert declared_executor().name == ("multiprocess" if here else "in_process")
