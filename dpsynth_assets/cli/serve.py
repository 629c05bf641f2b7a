"""`dpsynth serve`, rows of what was released behind an OpenAI-compatible API; `dpsynth ui`."""

import importlib.util
import ipaddress
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsynth_assets.cli.cohorts import CohortName, find_cohort
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.privacy.errors import PrivacyError

if TYPE_CHECKING:
    from dpsynth_assets.serving.artifacts import Artifact, Cohort

TOKEN = "DPSYNTH_SERVE_TOKEN"
CACHE_GIB = 2.0
"""vLLM's cache of keys and values for one artifact, where the file declares no `engine: vllm`.

A share of the device's memory, vLLM's own default, leaves no room for a second artifact.
"""
_PEM = {"exists": True, "dir_okay": False}


def serve(  # noqa: PLR0913 - one option a setting
    cohort: CohortName,
    method: Annotated[
        list[str] | None, typer.Option(help="Serve this method; again for more. Default: all.")
    ] = None,
    host: Annotated[str, typer.Option("--host", "-h", help="Address to serve on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", help="Port.", min=1, max=65535)] = 8400,
    engine: Annotated[
        str, typer.Option(help="auto (vLLM where installed), declared, or a kind of engine.")
    ] = "auto",
    rows: Annotated[int, typer.Option(min=1, help="Most rows of one request.")] = 256,
    waiting: Annotated[int, typer.Option(min=1, help="Most rows that wait at once.")] = 2048,
    tls_certificate: Annotated[Path | None, typer.Option(help="PEM file.", **_PEM)] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file.", **_PEM)] = None,
    accept_ex_post: Annotated[
        bool, typer.Option("--accept-ex-post", help="Also what is not (ε, δ)-DP.")
    ] = False,
) -> None:
    """Serve rows of what a cohort has released, until interrupted.

    A request names a label and a number of rows. It spends nothing; the ledger gets one line a day
    and artifact, without anything of a request. DPSYNTH_SERVE_TOKEN is asked of every client.
    """
    from dpsynth_assets.cli.serve import expect_free
    from dpsynth_assets.models.engines import EngineError
    from dpsynth_assets.orchestration.web.guard import Guard, declared_hosts
    from dpsynth_assets.serving.app import Endpoint, Limits, Served
    from dpsynth_assets.serving.row_queue import RowQueue
    from dpsynth_assets.serving.server import RowServer

    token = os.environ.get(TOKEN, "")
    _expect_private(host, token, tls_certificate, tls_key)
    expect_free(host, port)
    limits = Limits(rows=rows, waiting=max(rows, waiting))
    spec = find_cohort(cohort)
    canaries = _canaries(spec)
    with ExitStack() as opened:
        served = {}
        for artifact in _artifacts(_cohort(spec, engine), method, accept=accept_ex_post):
            try:
                source = opened.enter_context(artifact.open())
            except EngineError as problem:  # Opened on public and released files alone.
                raise typer.BadParameter(f"{artifact.name}: {problem}") from None
            served[artifact.name] = Served(artifact=artifact, source=source)
            labels = ", ".join(map(repr, source.labels))
            typer.echo(f"{artifact.name}: {source.engine}, labels {labels}", err=True)
        queue = RowQueue(
            {name: each.source for name, each in served.items()},
            batch_rows=limits.batch_rows,
            most_waiting=limits.waiting,
            canaries=canaries,
        )
        opened.callback(queue.close)
        endpoint = Endpoint(served=served, queue=queue, limits=limits, token=token)
        scheme = "http" if tls_certificate is None else "https"
        typer.echo(f"Serving on {scheme}://{host}:{port}/v1 (Ctrl-C ends it)", err=True)
        server = RowServer(
            Guard(endpoint.app(), hosts=declared_hosts()),
            queue,
            connections=limits.connections,
            host=host,
            port=port,
            ssl_certfile=tls_certificate,
            ssl_keyfile=tls_key,
        )
        with suppress(KeyboardInterrupt):
            server.run()


def _cohort(spec: PrivateDatasetSpec, engine: str) -> "Cohort":
    """The cohort with its ledger, store and public artifacts, and the engine that shall serve."""
    from dpsynth_assets.methods.planning import plan_dataset
    from dpsynth_assets.orchestration.assets.audit import audit_results
    from dpsynth_assets.orchestration.resources.stores import PrivacyLedger, ReleaseStore
    from dpsynth_assets.serving.artifacts import Cohort

    return Cohort(
        spec=spec,
        plan=plan_dataset(_with_engine(spec, engine)),
        ledger=PrivacyLedger().open(),
        store=ReleaseStore(),
        values=lambda names: _public_values(spec, names),
        find_audits=audit_results,
    )


def _artifacts(cohort: "Cohort", methods: list[str] | None, *, accept: bool) -> "list[Artifact]":
    """Releases that rows are written from; those that were named, or all there are.

    Raises:
        PrivacyError: A named one cannot be served, or there is none.
    """
    name, folders = cohort.spec.name, [planned.folder for planned in cohort.plan.methods]
    for each in methods or []:
        if each not in folders:
            raise typer.BadParameter(
                f"Expected a method of {name} ({', '.join(folders)}), got {each!r}."
            )
    found, problems = [], []
    for planned in cohort.plan.methods:
        if methods and planned.folder not in methods:
            continue
        try:
            found.append(cohort.artifact(planned, accept_ex_post=accept))
        except PrivacyError as problem:
            if methods:
                raise
            problems.append(str(problem))
    if not found:
        raise PrivacyError(" ".join(problems) or f"{name} declares no method.")
    return found


def _canaries(spec: PrivateDatasetSpec) -> list[str]:
    """Declared canaries, which no row may hold.

    Raises:
        PrivacyError: They cannot be read, or one is too short to be looked for.
    """
    from dpsynth_assets.attacks.canaries import contains_canary
    from dpsynth_assets.orchestration.checks import read_canaries

    try:
        found = read_canaries(spec)
        contains_canary((), found)
    except (OSError, ValueError) as problem:
        raise PrivacyError(
            f"evaluation.canaries of {spec.name}: expected the list that the release gate reads, "
            f"got none that can be looked for ({problem}). Mend it, or drop the field."
        ) from None
    return found


def _with_engine(spec: PrivateDatasetSpec, engine: str) -> PrivateDatasetSpec:
    """The declaration with the engine that shall serve; what it releases does not depend on it."""
    from dpsynth_assets.datasets.engine import EngineSpec

    if engine == "auto":
        has_vllm = importlib.util.find_spec("vllm") is not None
        engine = "vllm" if has_vllm and spec.engine.model is None else "declared"
    if engine == "declared" or engine == spec.engine.kind == "vllm":
        return spec
    if engine not in ("vllm", "exact", "transformers"):
        raise typer.BadParameter(
            f"--engine: expected auto, declared, vllm, exact or transformers, got {engine!r}."
        )
    own = {"cache_gib": CACHE_GIB} if engine == "vllm" else {}
    return spec.model_copy(update={"engine": EngineSpec(kind=engine, **own)})


def _public_values(spec: PrivateDatasetSpec, names: Iterable[str]) -> Mapping[str, Any]:
    """Stored artifacts of the cohort's public base."""
    from dpsynth_assets.orchestration.assets.keys import public_key
    from dpsynth_assets.orchestration.io_managers import stored_value

    return {name: stored_value(public_key(spec.public_data, name)) for name in names}


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
            f"--host: expected a loopback address, got {host}, which others reach. Set {TOKEN} to "
            "a long random text, and send it as `Authorization: Bearer`."
        )
    if not is_loopback and certificate is None:
        typer.echo(
            "Tokens and rows travel in the clear: give --tls-certificate and --tls-key, or serve "
            "behind a proxy that has them.",
            err=True,
        )


def ui(
    host: Annotated[str, typer.Option("--host", "-h", help="Address to serve on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", help="Port.", min=1, max=65535)] = 3000,
    workspace: Annotated[
        Path | None,
        typer.Option("--workspace", "-w", exists=True, dir_okay=False, help="Other locations."),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Show everything, change nothing; no daemon.")
    ] = False,
) -> None:
    """Serve the web UI and run the daemon, until interrupted.

    Refuses requests that pages of other sites make a browser send. A proxy that serves the UI under
    another name puts that name in DPSYNTH_UI_HOSTS.
    """
    from dpsynth_assets.orchestration.instance import prepare_dagster_home
    from dpsynth_assets.orchestration.web.services import serve

    prepare_dagster_home()
    expect_free(host, port)
    typer.echo("Opening: reads the definitions, which may take half a minute.", err=True)
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
