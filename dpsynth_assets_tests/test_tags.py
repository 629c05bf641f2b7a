"""Steps that run models ask Kubernetes and Ray for the GPUs they need, in words both read."""

import dagster as dg
import pytest

from dpsynth_assets.tags import GPU_OP_TAGS, GPU_POOL, gpu_op_tags


def op_tags(devices):
    @dg.asset(pool=GPU_POOL, op_tags=gpu_op_tags(devices))
    def stage() -> None: ...

    assert stage.op.pool == GPU_POOL
    return stage.op.tags


def test_one_device_is_asked_for_unless_more_share_a_model():
    assert gpu_op_tags() == GPU_OP_TAGS
    assert gpu_op_tags(4) != GPU_OP_TAGS


def test_a_kubernetes_executor_puts_the_limit_into_the_steps_pod():
    job = pytest.importorskip("dagster_k8s.job")
    manifest = job.construct_dagster_k8s_job(
        job_config=job.DagsterK8sJobConfig(job_image="image", dagster_home="/home"),
        args=["dagster", "api", "execute_step"],
        job_name="step",
        user_defined_k8s_config=job.get_user_defined_k8s_config(op_tags(2)),
    ).to_dict()
    [container] = manifest["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}


def test_a_ray_executor_reads_the_number_of_devices():
    configs = pytest.importorskip("dagster_ray.configs")
    assert configs.RayExecutionConfig.from_tags(op_tags(2)).num_gpus == 2
