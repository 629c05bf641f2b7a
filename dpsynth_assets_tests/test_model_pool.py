"""Steps that run models share a pool, and ask for GPUs only where an installation has some."""

import dagster as dg
import pytest

from dpsynth_assets.defs.sensors import killed_runs_sensor
from dpsynth_assets.orchestration.instance import dagster_instance
from dpsynth_assets.orchestration.resources import model_pool as module
from dpsynth_assets.orchestration.resources.executors import declared_executor
from dpsynth_assets.orchestration.resources.model_pool import (
    FORMER_POOLS,
    GPU_POOL,
    GPU_VARIABLE,
    PROCESSOR_POOL,
    carry_over_limit,
    model_op_tags,
    model_pool,
)

NVIDIA = "nvidia.com/gpu"
ONE_PLACE = {"concurrency": {"pools": {"default_limit": 1}}}


def op_tags(devices):
    @dg.asset(pool=model_pool(devices), op_tags=model_op_tags(devices))
    def stage() -> None: ...

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
    assert "a pool for each kind of device" in skipped.skip_message


def in_a_run(instance):
    assert dg.execute_job(dg.reconstructable(job), instance).success


BOTH = {PROCESSOR_POOL, GPU_POOL}


@pytest.mark.parametrize("former", FORMER_POOLS)
@pytest.mark.parametrize("who", [in_the_daemon, in_a_run])
def test_places_that_were_set_are_kept(who, former, tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSYNTH_EXECUTOR", "in_process")
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=ONE_PLACE) as instance:
        instance.event_log_storage.set_concurrency_slots(former, 3)
        who(instance)
        assert [places(instance)[name] for name in BOTH] == [3, 3]


def test_places_of_the_later_name_come_before_those_of_the_earlier(tmp_path):
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        for name, count in zip(FORMER_POOLS, (2, 3), strict=True):
            instance.event_log_storage.set_concurrency_slots(name, count)
        carry_over_limit(instance)
        assert [places(instance)[name] for name in BOTH] == [2, 2]


def test_the_command_line_says_what_it_kept(tmp_path, monkeypatch, capsys):
    from rich.console import Console

    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    with dagster_instance() as instance:
        instance.event_log_storage.set_concurrency_slots("gpu", 2)
    with dagster_instance(Console()) as instance:
        assert places(instance) == {"gpu": 2, PROCESSOR_POOL: 2, GPU_POOL: 2}
    said = " ".join(capsys.readouterr().out.split())
    assert "models_on_gpus have the 2 places that were set for gpu" in said
    with dagster_instance(Console()):
        assert capsys.readouterr().out == ""


def test_places_set_for_a_new_name_stay(tmp_path):
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        instance.event_log_storage.set_concurrency_slots("gpu", 3)
        instance.event_log_storage.set_concurrency_slots(PROCESSOR_POOL, 1)
        assert "models_on_gpus has the 3 places" in carry_over_limit(instance)
        assert places(instance) == {"gpu": 3, PROCESSOR_POOL: 1, GPU_POOL: 3}
        assert carry_over_limit(instance) is None


def test_a_default_is_no_decision_to_carry_over(tmp_path):
    """The former pool had as many places as every pool of the instance: so have the new ones."""
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=ONE_PLACE) as instance:
        instance.event_log_storage.initialize_concurrency_limit_to_default("models")
        assert places(instance) == {"models": 1}
        assert carry_over_limit(instance) is None
        assert places(instance) == {"models": 1}


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
    monkeypatch.setattr(module, "_GPU_HERE", tmp_path if here else tmp_path / "none")
    assert model_pool(gpus) == pool


def test_a_step_on_processors_runs_while_another_holds_the_gpu(tmp_path):
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=ONE_PLACE) as instance:
        pools = instance.event_log_storage
        for name in BOTH:
            pools.initialize_concurrency_limit_to_default(name)
        assert pools.claim_concurrency_slot(GPU_POOL, "first", "trains").is_claimed
        assert not pools.claim_concurrency_slot(GPU_POOL, "second", "trains").is_claimed
        assert pools.claim_concurrency_slot(PROCESSOR_POOL, "second", "embeds").is_claimed
