"""Steps that run models share a pool, and ask for GPUs only where an installation has some."""

import dagster as dg
import pytest

from dpsynth_assets.cli.instance import dagster_instance
from dpsynth_assets.defs.sensors import killed_runs_sensor
from dpsynth_assets.resources.executors import declared_executor
from dpsynth_assets.resources.model_pool import (
    FORMER_POOL,
    GPU_VARIABLE,
    MODEL_POOL,
    carry_over_limit,
    model_op_tags,
)

NVIDIA = "nvidia.com/gpu"
ONE_PLACE = {"concurrency": {"pools": {"default_limit": 1}}}


def op_tags(devices):
    @dg.asset(pool=MODEL_POOL, op_tags=model_op_tags(devices))
    def stage() -> None: ...

    assert stage.op.pool == MODEL_POOL
    return stage.op.tags


@pytest.mark.parametrize("declared", [None, "", " "])
def test_nothing_is_asked_for_where_no_gpu_is_declared(declared, monkeypatch):
    monkeypatch.delenv(GPU_VARIABLE, raising=False)
    if declared is not None:
        monkeypatch.setenv(GPU_VARIABLE, declared)
    assert model_op_tags(2) == {}
    assert not {"dagster-k8s/config", "dagster-ray/config"} & set(op_tags(2))


@pytest.mark.parametrize("name", ["1", "yes", "nvidia", "nvidia.com/"])
def test_what_is_no_name_of_gpus_is_refused(name, monkeypatch):
    monkeypatch.setenv(GPU_VARIABLE, name)
    with pytest.raises(ValueError, match=f"e.g. nvidia.com/gpu, got '{name}'"):
        model_op_tags(1)


def test_as_many_are_asked_for_as_share_a_model_and_none_for_the_processor(monkeypatch):
    monkeypatch.setenv(GPU_VARIABLE, NVIDIA)
    assert model_op_tags(4) != model_op_tags(1)
    assert model_op_tags(0) == {}


@pytest.mark.parametrize("gpu", [NVIDIA, "amd.com/gpu", "nvidia.com/mig-1g.5gb"])
def test_a_kubernetes_executor_puts_the_limit_into_the_steps_pod(gpu, monkeypatch):
    job = pytest.importorskip("dagster_k8s.job")
    monkeypatch.setenv(GPU_VARIABLE, gpu)
    manifest = job.construct_dagster_k8s_job(
        job_config=job.DagsterK8sJobConfig(job_image="image", dagster_home="/home"),
        args=["dagster", "api", "execute_step"],
        job_name="step",
        user_defined_k8s_config=job.get_user_defined_k8s_config(op_tags(2)),
    ).to_dict()
    [container] = manifest["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {gpu: "2"}


def test_a_ray_executor_reads_the_number_of_devices(monkeypatch):
    configs = pytest.importorskip("dagster_ray.configs")
    monkeypatch.setenv(GPU_VARIABLE, NVIDIA)
    assert configs.RayExecutionConfig.from_tags(op_tags(2)).num_gpus == 2


# Places that were set under the pool's former name


def places(instance):
    return {pool.name: pool.limit for pool in instance.event_log_storage.get_pool_limits()}


def job() -> dg.JobDefinition:
    @dg.op
    def step() -> None: ...

    @dg.job(executor_def=declared_executor())
    def run() -> None:
        step()

    return run


def in_the_daemon(instance):
    skipped = killed_runs_sensor()(dg.build_sensor_context(instance=instance))
    assert "now called models" in skipped.skip_message


def in_a_run(instance):
    assert dg.execute_job(dg.reconstructable(job), instance).success


@pytest.mark.parametrize("who", [in_the_daemon, in_a_run])
def test_places_that_were_set_are_kept(who, tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSYNTH_EXECUTOR", "in_process")
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=ONE_PLACE) as instance:
        instance.event_log_storage.set_concurrency_slots(FORMER_POOL, 3)
        who(instance)
        assert places(instance)[MODEL_POOL] == 3


def test_the_command_line_says_what_it_kept(tmp_path, monkeypatch, capsys):
    from rich.console import Console

    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    with dagster_instance() as instance:
        instance.event_log_storage.set_concurrency_slots(FORMER_POOL, 2)
    with dagster_instance(Console()) as instance:
        assert places(instance) == {FORMER_POOL: 2, MODEL_POOL: 2}
    assert "now called models: it has the 2 places that were set for gpu" in capsys.readouterr().out
    with dagster_instance(Console()):
        assert capsys.readouterr().out == ""


def test_places_set_for_the_new_name_stay(tmp_path):
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        instance.event_log_storage.set_concurrency_slots(FORMER_POOL, 3)
        instance.event_log_storage.set_concurrency_slots(MODEL_POOL, 1)
        assert carry_over_limit(instance) is None
        assert places(instance)[MODEL_POOL] == 1


def test_a_default_is_no_decision_to_carry_over(tmp_path):
    """The former pool had as many places as every pool of the instance: so has the new one."""
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=ONE_PLACE) as instance:
        instance.event_log_storage.initialize_concurrency_limit_to_default(FORMER_POOL)
        assert places(instance) == {FORMER_POOL: 1}
        assert carry_over_limit(instance) is None
        assert places(instance) == {FORMER_POOL: 1}
