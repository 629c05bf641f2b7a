"""The files of `deploy/` are valid, agree with one another, and keep what is private in."""

import configparser
import importlib.util
import json
import re
import shutil
import warnings
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._config import process_config, resolve_to_config_type
from dagster._core.instance.config import dagster_instance_config, dagster_instance_config_schema
from dagster._core.instance.ref import InstanceRef

from dpsynth_assets.orchestration.resources.executors import declared_executor
from dpsynth_assets.orchestration.resources.model_pool import GPU_VARIABLE, model_op_tags

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
VARIABLE = re.compile(r"(?<!\$)\$\{([A-Z_]+)(?::\?)?\}")


def read(name):
    return yaml.safe_load((DEPLOY / name).read_text())


def variables_of_example():
    lines = (DEPLOY / "env.example").read_text().splitlines()
    return {line.split("=")[0] for line in lines if line and not line.startswith("#")}


@pytest.fixture
def production(tmp_path, monkeypatch):
    """A DAGSTER_HOME with the production file, and its variables set."""
    pytest.importorskip("dagster_postgres")
    pytest.importorskip("dagster_aws")
    for name in variables_of_example():
        monkeypatch.setenv(name, "5432" if name.endswith("PORT") else "value")
    shutil.copy(DEPLOY / "dagster.yaml", tmp_path)
    return tmp_path


def test_dagster_accepts_every_line_of_the_instance(production):
    config, _ = dagster_instance_config(str(production))
    assert config["run_monitoring"]["free_slots_after_run_end_seconds"] > 0
    assert config["concurrency"]["pools"] == {"granularity": "op", "default_limit": 1}
    reference = InstanceRef.from_dir(str(production))
    manager = reference.compute_logs_data.rehydrate(type(reference.compute_log_manager))
    assert type(manager).__name__ == "S3ComputeLogManager"
    assert reference.storage_data.class_name == "DagsterPostgresStorage"
    assert type(reference.run_coordinator).__name__ == "QueuedRunCoordinator"


def test_the_example_for_a_laptop_is_accepted_too(tmp_path):
    shutil.copy(ROOT / "dpsynth_assets/orchestration/dagster.yaml", tmp_path)
    with warnings.catch_warnings(action="error"):
        config, _ = dagster_instance_config(str(tmp_path))
    assert config["run_retries"]["enabled"] is False


def test_every_variable_is_in_the_example(tmp_path):
    known = variables_of_example()
    asked = set(VARIABLE.findall((DEPLOY / "compose.yaml").read_text()))
    asked |= set(re.findall(r"\{env: ([A-Z_]+)\}", (DEPLOY / "dagster.yaml").read_text()))
    asked |= set(re.findall(r"\\getenv \w+ ([A-Z_]+)", (DEPLOY / "databases.sql").read_text()))
    assert asked <= known


def test_no_secret_is_written_down():
    for line in (DEPLOY / "env.example").read_text().splitlines():
        if re.search(r"(PASSWORD|SECRET|KEY)\w*=", line):
            assert line.endswith("="), line
    assert "password:" not in (DEPLOY / "helm" / "values.yaml").read_text().lower()


def test_compose_refers_only_to_what_it_declares():
    compose = read("compose.yaml")
    services = compose["services"]
    ignored = (ROOT / ".gitignore").read_text().splitlines()  # what an installation adds itself
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        assert set(service.get("networks", [])) <= set(compose["networks"]), name
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            if source.startswith("."):
                ours = f"deploy/{source.removeprefix('./')}/" in ignored
                assert (DEPLOY / source).exists() or ours, source
            else:
                assert source in compose["volumes"], source
        healthy = [d for d, c in service.get("depends_on", {}).items() if "healthy" in str(c)]
        assert all("healthcheck" in services[dependency] for dependency in healthy), name
        build = service.get("build")
        assert build is None or (DEPLOY / build["context"] / build["dockerfile"]).is_file()


def test_only_the_proxy_is_published():
    services = read("compose.yaml")["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports == ["443:443"]
    assert services["proxy"]["ports"] == ports
    assert services["proxy"]["networks"] == ["front"]
    assert services["vllm"]["networks"] == ["models"]
    reached = {name for name, service in services.items() if "front" in service["networks"]}
    assert reached == {"proxy", "webserver", "auditors"}
    assert read("helm/values.yaml")["ingress"] == {"enabled": False}


def test_the_image_installs_extras_and_copies_files_that_exist():
    text = (DEPLOY / "Dockerfile").read_text()
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    (extras,) = re.findall(r"pip install '\.\[([\w,]+)\]'", text)
    assert set(extras.split(",")) <= set(setup["options.extras_require"])
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source


def made_beside_the_chart():
    """The manifests of `home.yaml`."""
    return list(yaml.safe_load_all((DEPLOY / "helm" / "home.yaml").read_text()))


def served_code():
    """The chart's deployment of our code."""
    (deployment,) = read("helm/values.yaml")["dagster-user-deployments"]["deployments"]
    return deployment


def test_helm_values_refer_to_what_is_there():
    values, made = read("helm/values.yaml"), made_beside_the_chart()
    deployment = served_code()
    volumes = {volume["name"] for volume in deployment["volumes"]}
    assert {mount["name"] for mount in deployment["volumeMounts"]} <= volumes
    assert {"DPSYNTH_HOME", "DPSYNTH_EXECUTOR"} <= set(deployment["env"])
    for part in ("runLauncher", "computeLogManager"):
        chosen = values[part]["type"]
        assert list(values[part]["config"]) == [chosen[0].lower() + chosen[1:]]
    assert values["dagsterDaemon"]["runRetries"] == {"enabled": False}
    asked = re.findall(r"claimName: ([\w-]+)", (DEPLOY / "helm" / "values.yaml").read_text())
    assert {*asked} <= {part["metadata"]["name"] for part in made if "Claim" in part["kind"]}
    (endpoint,) = [part["spec"] for part in made if part["kind"] == "Deployment"]
    (service,) = [part["spec"] for part in made if part["kind"] == "Service"]
    labels = endpoint["template"]["metadata"]["labels"]
    assert endpoint["selector"]["matchLabels"] == service["selector"] == labels


def snake(value):
    """Keys of the chart as the instance writes them; Kubernetes' own parts stay as they are."""
    return {re.sub(r"(?<!^)(?=[A-Z])", "_", key).lower(): part for key, part in value.items()}


def accepted(schema, config):
    result = process_config(resolve_to_config_type(schema), config)
    assert result.success, [error.message for error in result.errors]


def test_dagster_s_own_classes_accept_what_helm_gives_them():
    launchers = pytest.importorskip("dagster_k8s")
    logs = pytest.importorskip("dagster_aws.s3.compute_log_manager")
    values = read("helm/values.yaml")
    launcher = snake(values["runLauncher"]["config"]["k8sRunLauncher"])
    launcher["env_secrets"] = [secret["name"] for secret in launcher["env_secrets"]]
    instance = {"service_account_name": "dagster", "instance_config_map": "dagster-instance"}
    instance |= {"postgres_password_secret": "s", "dagster_home": "/d"}
    accepted(launchers.K8sRunLauncher.config_type(), instance | launcher)
    manager = snake(values["computeLogManager"]["config"]["s3ComputeLogManager"])
    accepted(logs.S3ComputeLogManager.config_type(), manager)
    concurrency = {name: snake(values["concurrency"][name]) for name in ("pools", "runs")}
    monitoring = snake(values["dagsterDaemon"]["runMonitoring"])
    told = {"run_monitoring": monitoring, "concurrency": concurrency}
    accepted(dagster_instance_config_schema(), told)


def of_kubernetes(kind, part):
    """Reads a part of a manifest as Kubernetes' API names it; an unknown key is an error."""
    client = pytest.importorskip("kubernetes.client")
    models = pytest.importorskip("dagster_k8s.models")
    model = getattr(client, kind)
    return models.k8s_model_from_dict(model, models.k8s_snake_case_dict(model, part))


def test_parts_of_manifests_are_of_kubernetes_own_kinds():
    for part in made_beside_the_chart():
        made = of_kubernetes(f"V1{part['kind']}", part)
        assert made.metadata.name == part["metadata"]["name"]
        assert made.api_version == ("apps/v1" if part["kind"] == "Deployment" else "v1")
    values, deployment = read("helm/values.yaml"), served_code()
    lists = {"volumes": "Volume", "volumeMounts": "VolumeMount", "envSecrets": "SecretEnvSource"}
    for key, kind in lists.items():
        assert [of_kubernetes(f"V1{kind}", part) for part in deployment[key]]
    assert of_kubernetes("V1PodSecurityContext", deployment["podSecurityContext"]).run_as_non_root
    for each in (deployment, values["runLauncher"]["config"]["k8sRunLauncher"]):
        assert of_kubernetes("V1ResourceRequirements", each["resources"]).limits


def test_the_code_that_is_served_loads_new_dataset_files_when_it_is_reloaded():
    """`dagster api grpc` would keep the definitions it began with."""
    (entry,) = read("workspace.yaml")["load_from"]
    assert entry["grpc_server"]["host"] in read("compose.yaml")["services"]
    (command,) = re.findall(r"^CMD (.+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert json.loads(command)[:3] == ["dagster", "code-server", "start"]
    assert f'"{entry["grpc_server"]["port"]}", "-m", "dpsynth_assets.definitions"' in command
    assert served_code()["codeServerArgs"] == ["-m", "dpsynth_assets.definitions"]


def test_the_chart_declares_the_gpus_that_steps_ask_for(monkeypatch):
    """What they are called there is what its GPU node hands out."""
    monkeypatch.setenv(GPU_VARIABLE, served_code()["env"][GPU_VARIABLE])
    asked = model_op_tags(1)["dagster-k8s/config"]["container_config"]["resources"]["limits"]
    (endpoint,) = [part for part in made_beside_the_chart() if part["kind"] == "Deployment"]
    (container,) = endpoint["spec"]["template"]["spec"]["containers"]
    assert set(asked) == set(container["resources"]["limits"])


@pytest.mark.parametrize("name", ["compose.yaml", "helm/values.yaml"])
def test_nothing_is_pulled_by_a_moving_tag(name):
    assert not re.search(r"latest\b", (DEPLOY / name).read_text())


@pytest.mark.parametrize("name", ["local", "in_process", "kubernetes"])
def test_executors_accept_their_run_configuration(name, monkeypatch):
    if name == "kubernetes":
        pytest.importorskip("dagster_k8s")
    monkeypatch.setenv("DPSYNTH_EXECUTOR", name)
    monkeypatch.setenv("DPSYNTH_GPU", "nvidia.com/gpu")

    @dg.asset(op_tags=model_op_tags(1))
    def model_step() -> None: ...

    defs = dg.Definitions(assets=[model_step], executor=declared_executor())
    job = defs.resolve_implicit_global_asset_job_def()
    assert dg.validate_run_config(job, read("executors.yaml")[name])


@pytest.mark.parametrize(("name", "remedy"), [("slurm", "local"), ("ray", "extra `ray`")])
def test_an_executor_that_is_not_there_says_what_to_do(name, remedy, monkeypatch):
    if name == "ray" and importlib.util.find_spec("dagster_ray"):
        pytest.skip("dagster-ray is installed")
    monkeypatch.setenv("DPSYNTH_EXECUTOR", name)
    with pytest.raises(ValueError, match=remedy):
        declared_executor()
