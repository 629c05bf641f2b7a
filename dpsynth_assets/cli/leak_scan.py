"""`dpsynth leak-scan`: search this installation's files for canaries."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dpsynth_assets.attacks.leak_scan import LeakReport, scan_folders
from dpsynth_assets.cli.terminal import AsJson, complain, show_json
from dpsynth_assets.paths import SENSITIVE_VARIABLE, home


def leak_scan(
    canaries: Annotated[
        Path, typer.Option(help="File with one canary a line, at least eight bytes each.")
    ],
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Where to search; default: DPSYNTH_HOME and DAGSTER_HOME."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search every byte outside the sensitive store for canaries; exit code 1 if one is found."""
    elsewhere = bool(os.environ.get(SENSITIVE_VARIABLE))
    exclude = [] if elsewhere else [home().local_sensitive]
    report = scan_folders(folders or _written(), _listed(canaries), exclude=exclude)
    if elsewhere:
        typer.echo(
            f"{SENSITIVE_VARIABLE} is set: its objects are sealed and were not searched, only "
            "folders of this machine were.",
            err=True,
        )
    _show(report, as_json=as_json)
    if not report.clean:
        raise typer.Exit(1)


def _written() -> list[Path]:
    """Everything this installation writes."""
    dagster = Path(os.environ.get("DAGSTER_HOME", home().dagster))
    return [home().root, *([dagster] if dagster.is_dir() else [])]


def _listed(file: Path) -> list[str]:
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    if not any(lines):
        raise typer.BadParameter(f"Expected canaries in {file}, got none.")
    return [line for line in lines if line]


def _show(report: LeakReport, *, as_json: bool) -> None:
    if as_json:
        show_json({"clean": report.clean, **asdict(report)})
        return
    typer.echo(
        f"{report.canaries} canaries as {report.patterns} patterns in {report.files} files, "
        f"{report.bytes_searched / 1e6:.1f} MB: {len(report.leaks)} leaks."
    )
    complain(
        *(f"{leak.path}: {leak.canaries} canaries ({leak.spelling})" for leak in report.leaks),
        *(f"not read: {problem}" for problem in report.unread),
    )
