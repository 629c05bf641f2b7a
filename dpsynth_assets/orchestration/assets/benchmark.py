"""Assets of a benchmark: a partition for each cell, and the leaderboard of all.

A partition is one budget (ε and number of records) of one seed. Cells are kept on disk: a cell that
is there is read back, so that a cut backfill goes on and a new method fills only its own cells.
"""

from typing import Any

import dagster as dg

from dpsynth_assets.datasets.benchmark_spec import BenchmarkSpec
from dpsynth_assets.files.identity import version_of
from dpsynth_assets.orchestration.metadata import code_references
from dpsynth_assets.orchestration.resources.model_pool import devices_of, step_on
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.orchestration.resources.progress import Progress
from dpsynth_assets.privacy.directed_rounding import declared
from dpsynth_assets.tags import PRIVACY, PUBLIC

LEADERBOARD = "leaderboard"
_COUNTED = ("rows", "seconds", "processor_seconds", "peak_memory_mib")


def benchmark_definitions(spec: BenchmarkSpec) -> dg.Definitions:
    """Every line of every dataset, and the leaderboard."""
    lines = [
        _line(spec, dataset, line)
        for dataset in spec.datasets
        for line in [*spec.references, *(each.name for each in spec.lines(dataset))]
    ]
    return dg.Definitions(assets=[*lines, _leaderboard(spec, [asset.key for asset in lines])])


def budget_key(epsilon: float, records: int) -> str:
    """Name of a budget in the grid of partitions."""
    return f"ε {declared(epsilon)} on {records} records"


def seed_key(seed: int) -> str:
    """Name of a seed in the grid of partitions."""
    return f"seed {seed}"


def _partitions(spec: BenchmarkSpec, dataset: str, line: str) -> dg.PartitionsDefinition[Any]:
    method = next((each for each in spec.methods if each.name == line), None)
    if method is None:
        return _seeds(spec.seeds)
    runs = spec.sizes_of(method, dataset)
    budgets = dg.StaticPartitionsDefinition([budget_key(*size) for size in runs])
    most = max(runs.values(), default=0)
    return dg.MultiPartitionsDefinition({"budget": budgets, "seed": _seeds(most)})


def _seeds(count: int) -> dg.StaticPartitionsDefinition:
    return dg.StaticPartitionsDefinition([seed_key(seed) for seed in range(count)])


def _line(spec: BenchmarkSpec, dataset: str, line: str) -> dg.AssetsDefinition:
    """Cells of one dataset and method, or of one reference."""
    method = next((each for each in spec.methods if each.name == line), None)
    what = "a reference: no method wrote it" if method is None else f"method `{method.method}`"

    @dg.asset(
        key=[spec.name, dataset, line],
        group_name=f"{spec.name}/{dataset}",
        partitions_def=_partitions(spec, dataset, line),
        tags={PRIVACY: PUBLIC},
        kinds={"pytorch"},
        **step_on(devices_of(spec.public.get("language_model", {}).get("device", "auto"))),
        metadata=code_references("dpsynth_assets.benchmark.cells.make_cell"),
        code_version=version_of("benchmark line", spec.without("methods", "grid", "seeds"), method),
        description=(
            f"Corpora of the public dataset {dataset}, {what}. Each partition is written and "
            "scored once, on an account of its own: no budget of a steward is touched."
        ),
    )
    @public_section(f"{spec.name}/{dataset}/{line}")
    def cell(context: dg.AssetExecutionContext, progress: Progress) -> dg.MaterializeResult:
        # Imported here: opening the UI needs neither methods nor scores.
        from dpsynth_assets.benchmark.leaderboard_page import benchmark_folder
        from dpsynth_assets.benchmark.running import DatasetBench

        place = _place(spec, dataset, line, context.partition_key)
        report = progress.start(context, f"{dataset}/{line}")
        bench = DatasetBench(spec, dataset, benchmark_folder(spec.name), report)
        kept = bench.is_done(place)
        return dg.MaterializeResult(metadata=_metadata(bench.run(place), kept=kept))

    return cell


def _place(spec: BenchmarkSpec, dataset: str, line: str, key: str) -> Any:
    """The place that a partition key names."""
    from dpsynth_assets.benchmark.running import places

    keys = getattr(key, "keys_by_dimension", {"seed": str(key)})
    named = keys.get("budget"), keys["seed"]
    for place in places(spec):
        budget = None if place.epsilon is None else budget_key(place.epsilon, place.records)
        own = place.dataset, place.line, (budget, seed_key(place.seed))
        if own == (dataset, line, named):
            return place
    raise dg.Failure(
        f"benchmark {spec.name}: {key} of {dataset}/{line} is no cell: the grid asks for fewer "
        "runs there. Raise `seeds` of its entry, or choose another partition."
    )


def _metadata(found: dict[str, Any], *, kept: bool) -> dict[str, Any]:
    """What a cell's materialisation shows; all of it is about public records."""
    from dpsynth_assets.metrics.registry import benchmarked

    names = ("epsilon", *(metric.name for metric in benchmarked("leaderboard")))
    scores = {name: float(found[name]) for name in names if found.get(name) is not None}
    counted = {name: found[name] for name in _COUNTED if found.get(name) is not None}
    refused = {"refusal": found["refusal"]} if "refusal" in found else {}
    shown = {**scores, **counted, **refused, "code": found.get("code", ""), "kept": kept}
    return {f"dpsynth/{name}": value for name, value in shown.items()}


def _leaderboard(spec: BenchmarkSpec, lines: list[dg.AssetKey]) -> dg.AssetsDefinition:
    @dg.asset(
        key=[spec.name, LEADERBOARD],
        group_name=f"{spec.name}/{LEADERBOARD}",
        deps=[dg.AssetDep(key, partition_mapping=dg.AllPartitionMapping()) for key in lines],
        tags={PRIVACY: PUBLIC},
        kinds={"matplotlib"},
        metadata=code_references("dpsynth_assets.benchmark.leaderboard.leaderboard"),
        code_version=version_of("leaderboard", spec.without()),
        description=(
            "All finished cells side by side: scores against ε, records and cost, what the data "
            "decides, and what it leaves undecided. Missing cells are counted."
        ),
    )
    @public_section(f"{spec.name}/{LEADERBOARD}")
    def leaderboard(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        from dpsynth_assets.benchmark.leaderboard_page import (
            LeaderboardPage,
            benchmark_folder,
            standing_leaderboard,
            write_leaderboard,
        )
        from dpsynth_assets.report.plots import to_markdown

        board = standing_leaderboard(spec)
        page = LeaderboardPage(board)
        files = write_leaderboard(page, benchmark_folder(spec.name))
        drawn = [
            to_markdown(png, title)
            for pictures in page.pictures.values()
            for title, png in pictures.items()
        ]
        context.log.info("%s: %d lines, %d cells missing", spec.name, *_counts(board))
        return dg.MaterializeResult(
            metadata={
                "dpsynth/lines": len(board.standings),
                "dpsynth/missing_cells": board.missing,
                "dpsynth/leaderboard": dg.MetadataValue.md(page.to_text()),
                "dpsynth/plots": dg.MetadataValue.md("\n\n".join(drawn) or "No score yet."),
                "dpsynth/page": dg.MetadataValue.path(str(files["html"])),
            }
        )

    return leaderboard


def _counts(board: Any) -> tuple[int, int]:
    return len(board.standings), board.missing
