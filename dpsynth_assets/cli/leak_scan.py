"""`dpsynth leak-scan`: search this house for canaries, or rehearse the graph with planted ones."""

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dpsynth_assets.attacks.leak_scan import LeakReport, scan_folders
from dpsynth_assets.paths import home


def leak_scan(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Where to search; default: DPSYNTH_HOME and DAGSTER_HOME."),
    ] = None,
    canaries: Annotated[
        Path | None, typer.Option(help="File with one canary a line, at least eight bytes each.")
    ] = None,
    rehearse: Annotated[
        bool,
        typer.Option(help="Plant thousands in an invented cohort, run everything, break it."),
    ] = False,
    quick: Annotated[
        bool, typer.Option(help="Rehearse without the stages that read nothing private.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Search every byte outside the sensitive store for canaries; exit code 1 if one is found."""
    if rehearse:
        _rehearse(quick=quick, as_json=as_json)
        return
    if canaries is None:
        raise typer.BadParameter("Expected --canaries FILE or --rehearse, got neither.")
    report = scan_folders(folders or _house(), _listed(canaries), exclude=[home().sensitive])
    _show(report, {}, as_json=as_json)
    if not report.clean:
        raise typer.Exit(1)


def _rehearse(*, quick: bool, as_json: bool) -> None:
    from dpsynth_assets.cli.leak_rehearsal import WHOLE, rehearse

    with tempfile.TemporaryDirectory(prefix="dpsynth-rehearsal-") as folder:
        rehearsal = rehearse(Path(folder), everything=not quick)
    ended = {name: run.succeeded for name, run in rehearsal.runs.items()}
    _show(rehearsal.report, ended, as_json=as_json)
    if not as_json:
        typer.echo(
            f"{len(rehearsal.runs[WHOLE].selected)} assets made; {len(rehearsal.broken)} of them "
            "failed later with records in hand."
        )
    if not rehearsal.passed:
        raise typer.Exit(1)


def _house() -> list[Path]:
    """Everything this installation writes."""
    dagster = Path(os.environ.get("DAGSTER_HOME", home().dagster))
    return [home().root, *([dagster] if dagster.is_dir() else [])]


def _listed(file: Path) -> list[str]:
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    if not any(lines):
        raise typer.BadParameter(f"Expected canaries in {file}, got none.")
    return [line for line in lines if line]


def _show(report: LeakReport, runs: dict[str, bool], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"clean": report.clean, **asdict(report), "runs": runs}, indent=2))
        return
    for name, succeeded in runs.items():
        typer.echo(f"run: {name}: {'succeeded' if succeeded else 'failed'}")
    typer.echo(
        f"{report.canaries} canaries as {report.patterns} patterns in {report.files} files, "
        f"{report.bytes_searched / 1e6:.1f} MB: {len(report.leaks)} leaks."
    )
    console = Console(stderr=True)
    lines = [f"{leak.path}: {leak.canaries} canaries ({leak.spelling})" for leak in report.leaks]
    for line in [*lines, *(f"not read: {problem}" for problem in report.unread)]:
        console.print(line, style="red", highlight=False, markup=False, soft_wrap=True)
