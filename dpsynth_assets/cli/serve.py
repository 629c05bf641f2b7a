"""`dpsynth serve` serves rows through an OpenAI-compatible API; `dpsynth ui` starts the web UI."""

import importlib.util
import ipaddress
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dpsynth_assets.cli.cohorts import CohortName, find_cohort, find_method
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.privacy.errors import PrivacyError

if TYPE_CHECKING:
    from dpsynth_assets.serving.artifacts import Artifact

TOKEN = "DPSYNTH_SERVE_TOKEN"
CACHE_GIB = 2.0
"""vLLM's cache of keys and values for one artifact, where the file declares no `engine: vllm`.

A share of the device's memory, vLLM's own default, leaves no room for a second artifact.
"""
Engine = Literal["auto", "declared", "vllm", "exact", "transformers"]
_PEM = {"exists": True, "dir_okay": False}


def serve(  # noqa: PLR0913 - one option a setting
    cohort: CohortName,
    method: list[str] | None = None,
    host: Annotated[str, typer.Option("--host", "-h")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=1, max=65535)] = 8400,
    engine: Engine = "auto",
    rows: Annotated[int, typer.Option(min=1)] = 256,
    waiting: Annotated[int, typer.Option(min=1)] = 2048,
    tls_certificate: Annotated[Path | None, typer.Option(**_PEM)] = None,
    tls_key: Annotated[Path | None, typer.Option(**_PEM)] = None,
    accept_ex_post: Annotated[bool, typer.Option("--accept-ex-post")] = False,
) -> None:
    """Serve rows from the releases of a cohort, until interrupted.

    A request names a label and a number of rows, and spends no budget. The ledger gets one entry
    per day and artifact, without the content of requests. Clients must send DPSYNTH_SERVE_TOKEN.

    Args:
        cohort: Name of a declared private dataset.
        method: Serve this method; may be repeated. Default: all.
        host: Address to serve on.
        port: Port.
        engine: auto (vLLM where installed), declared, or a kind of engine.
        rows: Maximum number of rows in one request.
        waiting: Maximum number of rows that wait at the same time.
        tls_certificate: PEM file with the certificate of this server.
        tls_key: PEM file with the private key of the certificate.
        accept_ex_post: Also serve releases that are not (ε, δ)-DP.
    """
    from dpsynth_assets.models.engines.protocol import EngineError
    from dpsynth_assets.orchestration.web.guard import Guard, declared_hosts
    from dpsynth_assets.serving.app import Endpoint, RowServer, Served
    from dpsynth_assets.serving.row_queue import RowQueue

    token = os.environ.get(TOKEN, "")
    _expect_private(host, token, tls_certificate, tls_key)
    expect_free(host, port)
    spec = find_cohort(cohort)
    canaries = _canaries(spec)
    with ExitStack() as opened:
        served = {}
        for artifact in _artifacts(spec, engine, method, accept=accept_ex_post):
            try:
                source = opened.enter_context(artifact.open())
            except EngineError as problem:  # Opened on public and released files alone.
                raise typer.BadParameter(f"{artifact.name}: {problem}") from None
            served[artifact.name] = Served(artifact=artifact, source=source)
            labels = ", ".join(map(repr, source.labels))
            typer.echo(f"{artifact.name}: {source.engine}, labels {labels}", err=True)
        sources = {name: each.source for name, each in served.items()}
        queue = RowQueue(sources, canaries=canaries, most_waiting=max(rows, waiting))
        opened.callback(queue.close)
        endpoint = Endpoint(served=served, queue=queue, most_rows=rows, token=token)
        scheme = "http" if tls_certificate is None else "https"
        typer.echo(f"Serving on {scheme}://{host}:{port}/v1 (Ctrl-C ends it)", err=True)
        address = {"host": host, "port": port}
        address |= {"ssl_certfile": tls_certificate, "ssl_keyfile": tls_key}
        app = Guard(endpoint.app(), hosts=declared_hosts())
        with suppress(KeyboardInterrupt):
            RowServer(app, queue, **address).run()


def _artifacts(
    spec: PrivateDatasetSpec, engine: Engine, methods: list[str] | None, *, accept: bool
) -> "list[Artifact]":
    """Releases that rows are written from; those that were named, or all there are.

    Raises:
        PrivacyError: A named one cannot be served, or there is none.
    """
    from dpsynth_assets.methods.planning import plan_dataset
    from dpsynth_assets.orchestration.assets.keys import public_key
    from dpsynth_assets.orchestration.resources.stores import (
        PrivacyLedger,
        ReleaseStore,
        stored_value,
    )
    from dpsynth_assets.run.runner import Runner
    from dpsynth_assets.serving.artifacts import Artifact

    plan = plan_dataset(_with_engine(spec, engine))
    runner = Runner(plan=plan, ledger=PrivacyLedger().open(), store=ReleaseStore())
    value = lambda name: stored_value(public_key(spec.public_data, name))  # noqa: E731
    found, problems = [], []
    for planned in [find_method(plan, each) for each in methods or []] or plan.methods:
        try:
            found.append(Artifact.of(runner, value, planned, accept_ex_post=accept))
        except PrivacyError as problem:
            if methods:
                raise
            problems.append(str(problem))
    if not found:
        raise PrivacyError(" ".join(problems) or f"{spec.name} declares no method.")
    return found


def _canaries(spec: PrivateDatasetSpec) -> list[str]:
    """Declared canaries, which no row may hold.

    Raises:
        PrivacyError: They cannot be read, or one is too short to be looked for.
    """
    from dpsynth_assets.attacks.leak_scan import contains_canary
    from dpsynth_assets.orchestration.checks import read_canaries

    try:
        found = read_canaries(spec)
        contains_canary((), found)
    except (OSError, ValueError) as problem:
        raise PrivacyError(
            f"evaluation.canaries of {spec.name}: expected a list of usable canaries, got another "
            f"one ({problem}). Fix it, or drop the field."
        ) from None
    return found


def _with_engine(spec: PrivateDatasetSpec, engine: Engine) -> PrivateDatasetSpec:
    """The declaration with the engine that shall serve; what it releases does not depend on it."""
    from dpsynth_assets.datasets.public_spec import EngineSpec

    if engine == "auto":
        has_vllm = importlib.util.find_spec("vllm") is not None
        engine = "vllm" if has_vllm and spec.engine.model is None else "declared"
    if engine == "declared" or engine == spec.engine.kind == "vllm":
        return spec
    own = {"cache_gib": CACHE_GIB} if engine == "vllm" else {}
    return spec.model_copy(update={"engine": EngineSpec(kind=engine, **own)})


def _expect_private(host: str, token: str, certificate: Path | None, key: Path | None) -> None:
    """Refuses to serve strangers, and half of a certificate.

    Raises:
        typer.BadParameter: An address that others reach, without a token; or a token that no
            client can send.
    """
    if token and (token.split() != [token] or not token.isprintable()):
        raise typer.BadParameter(
            f"{TOKEN}: expected visible characters without blanks, got others (not shown). Make "
            "one with `openssl rand -hex 32`."
        )
    if (certificate is None) != (key is None):
        raise typer.BadParameter("Expected --tls-certificate and --tls-key together, got one.")
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    if not is_loopback and not token:
        raise typer.BadParameter(
            f"--host: expected a loopback address, got {host}, which other machines can reach. Set "
            f"{TOKEN} to a long random text, and send it as `Authorization: Bearer`."
        )
    if not is_loopback and certificate is None:
        typer.echo(
            "Tokens and rows are sent unencrypted: give --tls-certificate and --tls-key, or serve "
            "behind a proxy that has them.",
            err=True,
        )


def ui(
    host: Annotated[str, typer.Option("--host", "-h")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=1, max=65535)] = 3000,
    workspace: Annotated[
        Path | None, typer.Option("--workspace", "-w", exists=True, dir_okay=False)
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only")] = False,
) -> None:
    """Serve the web UI and run the daemon, until interrupted.

    Refuses requests that a browser sends for pages of other sites. If a proxy serves the UI under
    another host name, add that name to DPSYNTH_UI_HOSTS.

    Args:
        host: Address to serve on.
        port: Port.
        workspace: Dagster workspace file with other code locations.
        read_only: Show everything, but allow no change and run no daemon.
    """
    from dpsynth_assets.orchestration.instance import prepare_dagster_home
    from dpsynth_assets.orchestration.web.services import serve

    prepare_dagster_home()
    expect_free(host, port)
    typer.echo("Starting: reading the definitions may take half a minute.", err=True)
    serve(host, port, workspace, read_only=read_only)


def expect_free(host: str, port: int) -> None:
    """Refuses an address that is taken before anything is started.

    Raises:
        typer.BadParameter: It cannot be bound.
    """
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise typer.BadParameter(
            f"Expected an address that is free, got {host}:{port} ({error.strerror}). Name another "
            "with --host or --port."
        ) from None
