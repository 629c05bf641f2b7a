"""`dpsynth benchmark`: methods side by side on public corpora, and their leaderboard."""

import time
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from dpsynth_assets.cli.terminal import Report, progress_lines, say

app = typer.Typer(no_args_is_help=True, help="Run methods side by side on public corpora.")


@app.command()
def run(
    name: str,
    minutes: float = 24 * 60.0,
    dataset: list[str] | None = None,
    line: list[str] | None = None,
) -> None:
    """Run the missing cells and score them; an interrupted run continues where it stopped.

    Exit code 2 if the benchmark cannot be used.

    Args:
        name: Name of a declared benchmark, or its YAML file.
        minutes: Start no further cell after this number of minutes.
        dataset: Only this dataset; may be repeated.
        line: Only this line (method with settings); may be repeated.
    """
    from transformers.utils.logging import disable_progress_bar

    from dpsynth_assets.benchmark.leaderboard_page import benchmark_folder
    from dpsynth_assets.benchmark.running import DatasetBench, places

    disable_progress_bar()
    spec = _spec(name)
    deadline = time.monotonic() + 60 * minutes
    folder, console = benchmark_folder(spec.name), Console(stderr=True)
    shown: list[Report] = []  # Of the cell that runs.
    report = lambda share, message: shown[-1](share, message)  # noqa: E731
    benches = {each: DatasetBench(spec, each, folder, report) for each in spec.datasets}
    lines = {each.name for each in spec.methods} | set(spec.references)
    _require("--dataset", dataset or [], set(spec.datasets))
    _require("--line", line or [], lines)
    asked = [
        place
        for place in places(spec)
        if (not dataset or place.dataset in dataset) and (not line or place.line in line)
    ]
    lacking = [place for place in asked if not benches[place.dataset].is_done(place)]
    done = len(asked) - len(lacking)
    for number, place in enumerate(lacking):
        if time.monotonic() > deadline:
            break
        say(f"{_told(place)}: started; {len(lacking) - number} cells left", to=console)
        shown.append(progress_lines(_told(place), console, seconds=60))
        found = benches[place.dataset].run(place)
        typer.echo(f"{_told(place)}: {_scores(found)}")
        done += 1
    typer.echo(f"{done} of {len(asked)} cells are finished, in {folder}.")


@app.command()
def report(name: str, output: Path | None = None) -> None:
    """Compare the finished cells on one page, without making further cells.

    Args:
        name: Name of a declared benchmark, or its YAML file.
        output: Folder to write leaderboard.md, .html and .json to.
    """
    from dpsynth_assets.benchmark.leaderboard_page import (
        LeaderboardPage,
        benchmark_folder,
        standing_leaderboard,
        write_leaderboard,
    )

    spec = _spec(name)
    page = LeaderboardPage(standing_leaderboard(spec))
    files = write_leaderboard(page, output or benchmark_folder(spec.name))
    typer.echo(f"{page.to_text()}\nPage: {files['html']}")


@app.command()
def export(name: str, file: Path) -> None:
    """Write facts and scores of all finished cells, but no rows, into one file.

    Args:
        name: Name of a declared benchmark, or its YAML file.
        file: File to write, with one line per finished cell.
    """
    from dpsynth_assets.benchmark.leaderboard_page import benchmark_folder, export_cells

    count = export_cells(benchmark_folder(_spec(name).name), file)
    typer.echo(f"{count} cells in {file}.")


@app.command(name="import")
def import_(name: str, file: Path) -> None:
    """Import cells that another machine has finished; cells that exist here are kept.

    Args:
        name: Name of a declared benchmark, or its YAML file.
        file: File that `dpsynth benchmark export` wrote.
    """
    from dpsynth_assets.benchmark.leaderboard_page import benchmark_folder, import_cells

    if not file.is_file():
        raise typer.BadParameter(f"expected a file that `export` wrote, found none at {file}")
    count = import_cells(file, benchmark_folder(_spec(name).name))
    typer.echo(f"{count} cells were imported.")


def _spec(name: str) -> Any:
    from dpsynth_assets.datasets.benchmark_spec import found_benchmark

    return found_benchmark(name)


def _require(option: str, given: list[str], known: set[str]) -> None:
    for each in given:
        if each not in known:
            raise typer.BadParameter(
                f"{option}: expected one of {', '.join(sorted(known))}, got {each!r}"
            )


def _told(place: Any) -> str:
    from dpsynth_assets.privacy.directed_rounding import declared

    budget = "" if place.epsilon is None else f", ε {declared(place.epsilon)}"
    return (
        f"{place.dataset}/{place.line}{budget}, {place.records} records at most, seed {place.seed}"
    )


def _scores(found: dict[str, Any]) -> str:
    from dpsynth_assets.metrics.registry import compared

    if "refusal" in found:
        return f"method refused: {found['refusal']}"
    shown = {name: metric.form for name, metric in compared().items()} | {"rows": "d"}
    told = [f"{name} {found[name]:{form}}" for name, form in shown.items() if name in found]
    return ", ".join([*told, f"{found.get('processor_seconds', 0):.0f} processor s"])
