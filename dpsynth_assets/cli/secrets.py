"""`dpsynth secrets`: what protecting secrets costs, beside what is printed about it."""

from pathlib import Path
from typing import Annotated

import typer

from dpsynth_assets.cli.one_line import OneLineGroup
from dpsynth_assets.cli.pricing.commands import AsJson, numbers, refusals, show, up_significant
from dpsynth_assets.cli.terminal import show_table
from dpsynth_assets.metrics.secret_comparison import (
    NoiseComparison,
    compare_noise,
    simulated_incidence,
)

app = typer.Typer(
    cls=OneLineGroup, no_args_is_help=True, help="Compare noise for secrets with Gaussian DP."
)


@app.callback()
def main() -> None:
    """Keeps the command a group of one."""


@app.command("noise-ratio")
def noise_ratio(
    prior: Annotated[float, typer.Option(help="p of every secret.")] = 1e-4,
    ratios: Annotated[
        list[str] | None, typer.Option(help="r / p, several separated by commas.")
    ] = None,
    records: Annotated[int, typer.Option(help="Records N.")] = 8000,
    secrets: Annotated[
        list[str] | None, typer.Option(help="Numbers of secrets, several separated by commas.")
    ] = None,
    incidence: Annotated[
        float, typer.Option(help="Probability with which a record holds a secret.")
    ] = 0.01,
    seed: Annotated[int, typer.Option(help="Public seed of the simulated incidence.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="PNG file to write the picture to.")] = None,
    as_json: AsJson = False,
) -> None:
    """Simulates appendix B.1 of SecPE: noise of secret protection beside that of Gaussian DP.

    Three levels of noise: as printed (not a guarantee), what the printed sampling really needs,
    and what sampling that uses the data needs.
    """
    with refusals():
        counts = [int(number) for number in numbers(secrets, "secrets") or [400]]
        budgets = numbers(ratios, "ratios") or [2, 5, 10, 20, 50, 100, 200, 400]
        rows = [
            compare_noise(held, records, prior=prior, ratio=ratio)
            for count in counts
            for held in [simulated_incidence(records, count, incidence, seed)]
            for ratio in budgets
        ]
    if plot is not None:
        _write_plot(rows, plot)
    if as_json:
        show(
            {"prior": prior, "incidence": incidence, "rows": [r.to_json() for r in rows]}, "", True
        )
        return
    _print(rows)


def _write_plot(rows: list[NoiseComparison], place: Path) -> None:
    from dpsynth_assets.report.plots import noise_ratio_plot

    varies = "ratio" if len({row.ratio for row in rows}) > 1 else "secrets"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(noise_ratio_plot(rows, varies))


def _print(rows: list[NoiseComparison]) -> None:
    columns = (
        "secrets",
        "r/p",
        "GDP, one record",
        "as printed: NO guarantee",
        "r/p it attains",
        "printed sampling needs",
        "its records a round",
        "using the data needs",
        "its records a round",
    )
    cells = (
        (
            str(row.secrets),
            f"{row.ratio:g}",
            up_significant(row.gaussian),
            _noise(row, row.printed),
            up_significant(row.printed_ratio),
            _noise(row, row.needed),
            f"{row.records_used:.1f}",
            _noise(row, row.needed_if_used),
            f"{row.records_if_used:.0f}",
        )
        for row in rows
    )
    title = "Noise std of counts, one round, in records (σ of GDP / σ)"
    show_table(columns, cells, title=title, numeric=columns, width=132)


def _noise(row: NoiseComparison, noise_std: float) -> str:
    if noise_std == 0:
        return "0 (∞)"
    return f"{up_significant(noise_std)} ({row.gaussian / noise_std:.3g})"
