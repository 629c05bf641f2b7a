"""What stands of a benchmark: its cells read back, its leaderboard written, cells carried over."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpsynth_assets.benchmark.leaderboard import Leaderboard, leaderboard
from dpsynth_assets.benchmark.leaderboard_page import LeaderboardPage
from dpsynth_assets.benchmark.running import DatasetBench, Place, places
from dpsynth_assets.datasets.benchmark_spec import BenchmarkSpec
from dpsynth_assets.files.kept import JSON
from dpsynth_assets.files.whole_files import write_whole
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import declared

PICTURES = "pictures"
"""Folder of pictures beside the page."""


def benchmark_folder(name: str) -> Path:
    """Where the corpora, facts and scores of a benchmark are kept."""
    return home().benchmarks / name


def standing_leaderboard(spec: BenchmarkSpec, folder: Path | None = None) -> Leaderboard:
    """Reads back what is there; nothing is made."""
    found, missing = [], 0
    for place, scores in kept_cells(spec, folder or benchmark_folder(spec.name)):
        if scores is None:
            missing += 1
        else:
            found.append((place, scores))
    codes = sorted({scores["code"] for _, scores in found if scores.get("code")})
    seconds = sum(scores.get("seconds", 0.0) for _, scores in found)
    facts = {
        "δ": declared(spec.delta),
        "rows scored": _rows_scored(spec),
        "most held-out records": max(each.held_out for each in spec.datasets.values()),
        "finished cells": len(found),
        "hours of all timed cells": f"{seconds / 3600:.1f}",
        "code": ", ".join(codes),
    }
    domains = {name: each.domain for name, each in spec.datasets.items()}
    return leaderboard(spec.name, found, missing=missing, facts=facts, domains=domains)


def _rows_scored(spec: BenchmarkSpec) -> str:
    """The number of rows, and which datasets have another one."""
    own = (f"{each.scored_rows} on {n}" for n, each in spec.datasets.items() if each.scored_rows)
    return ", ".join([str(spec.scored_rows), *own])


def kept_cells(
    spec: BenchmarkSpec, folder: Path
) -> Iterator[tuple[Place, Mapping[str, Any] | None]]:
    """Every cell of a benchmark with its scores; None where they are not there."""
    benches = {name: DatasetBench(spec, name, folder) for name in spec.datasets}
    for place in places(spec):
        yield place, benches[place.dataset].found(place)


def write_leaderboard(page: LeaderboardPage, folder: Path) -> dict[str, Path]:
    """Writes leaderboard.md with its pictures, .html and .json; returns the files by ending."""
    for name, png in page.picture_files.items():
        write_whole(folder / PICTURES / name, png)
    content = {
        "md": page.to_text(PICTURES),
        "html": page.to_html(),
        "json": json.dumps(page.board.to_json(), indent=1, ensure_ascii=False) + "\n",
    }
    files = {ending: folder / f"leaderboard.{ending}" for ending in content}
    for ending, file in files.items():
        write_whole(file, content[ending])
    return files


def export_cells(folder: Path, file: Path) -> int:
    """Writes facts and scores of all finished cells into one file, a line each; no rows."""
    lines = [
        json.dumps({"cell": path.stem, **json.loads(path.read_text("utf-8"))}, ensure_ascii=False)
        for path in sorted((folder / "scores").glob("*.json"))
    ]
    write_whole(file, "\n".join([*lines, ""]))
    return len(lines)


def import_cells(file: Path, folder: Path) -> int:
    """Reads cells that `export_cells` wrote: what is there already stays.

    A benchmark then goes on from them; their rows are not there to be scored otherwise.
    """
    count = 0
    for line in file.read_text("utf-8").splitlines():
        scores = json.loads(line)
        name = scores.pop("cell")
        place = folder / "scores" / f"{name}.json"
        if not place.exists():
            write_whole(place, JSON.write(scores))
            count += 1
    return count
