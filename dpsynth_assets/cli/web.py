"""`dpsynth ui`: the web UI on this machine, and the daemon."""

from pathlib import Path
from typing import Annotated

import typer


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
