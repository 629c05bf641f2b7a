"""`dpsynth account`: prices mechanisms and reproduces published numbers, without any data."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, cast

import typer
from rich.console import Console
from rich.table import Table

from dpsynth_assets.privacy.accounting import epsilon_of, epsilon_of_fixed
from dpsynth_assets.privacy.bounded_range import bounded_range_eta
from dpsynth_assets.privacy.calibration import largest_token_count
from dpsynth_assets.privacy.events import BoundedRangeEvent, DiscreteLaplaceEvent, Event
from dpsynth_assets.privacy.histogram import histogram_event
from dpsynth_assets.privacy.published import AMIN_2025_TABLE_10, PublishedSetting
from dpsynth_assets.privacy.units import NeighboringRelation

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Price mechanisms without any data.",
)

Delta = Annotated[float, typer.Option(help="Public δ of the guarantee, between 0 and 1.")]
Accountant = Annotated[
    Literal["zcdp", "tight"],
    typer.Option(help="zcdp: valid for adaptive plans. tight: for a plan fixed beforehand."),
]
Relation = Annotated[NeighboringRelation, typer.Option(help="When two datasets are neighbours.")]
RecordsPerUnit = Annotated[int, typer.Option(help="Records one privacy unit may contribute.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]


@app.command()
def tokens(  # noqa: PLR0913 - one argument an option
    expected_batch_size: Annotated[int, typer.Option(help="Fixed public prompts per batch, s.")],
    clip_bound: Annotated[float, typer.Option(help="Bound c of clipped logits.")],
    temperature: Annotated[float, typer.Option(help="Sampling temperature τ.")],
    delta: Delta,
    tokens: Annotated[int | None, typer.Option(help="Private tokens a batch; prints ε.")] = None,
    target_epsilon: Annotated[
        float | None, typer.Option(help="Target ε; prints the largest number of tokens.")
    ] = None,
    accountant: Accountant = "zcdp",
    relation: Relation = NeighboringRelation.ADD_REMOVE,
    max_records_per_unit: RecordsPerUnit = 1,
    as_json: AsJson = False,
) -> None:
    """Prices private tokens: ε of a number of tokens, or the most tokens within an ε."""
    with refusals():
        if (tokens is None) == (target_epsilon is None):
            raise ValueError(
                "Expected exactly one of --tokens and --target-epsilon, got "
                f"{'neither' if tokens is None else 'both'}. Give the one you know."
            )
        eta = bounded_range_eta(
            clip_bound=clip_bound,
            expected_batch_size=expected_batch_size,
            temperature=temperature,
            relation=relation,
            max_records_per_unit=max_records_per_unit,
        )
        if tokens is None:
            tokens = largest_token_count(
                eta=eta,
                target_epsilon=cast("float", target_epsilon),
                delta=delta,
                accountant=accountant,
            )
        event = BoundedRangeEvent(eta=eta, count=tokens)
        epsilon = epsilon_of([event], delta, accountant)
    result = {
        "mechanism": "tokens",
        "expected_batch_size": expected_batch_size,
        "clip_bound": clip_bound,
        "temperature": temperature,
        "relation": str(relation),
        "max_records_per_unit": max_records_per_unit,
        "target_epsilon": target_epsilon,
        "tokens": tokens,
        "eta": eta,
        "rho": float(event.rho),
        "delta": delta,
        "accountant": accountant,
        "epsilon": epsilon,
    }
    say = _say_epsilon if target_epsilon is None else _say_tokens
    _print(result, as_json, say)


@app.command()
def histogram(
    scale: Annotated[float, typer.Option(help="Noise scale in counts.")],
    delta: Delta,
    noise: Annotated[Literal["laplace", "gaussian"], typer.Option(help="Noise.")] = "laplace",
    accountant: Accountant = "tight",
    relation: Relation = NeighboringRelation.ADD_REMOVE,
    max_records_per_unit: RecordsPerUnit = 1,
    as_json: AsJson = False,
) -> None:
    """Prices one noisy histogram over public bins; one release is a fixed plan, hence `tight`."""
    with refusals():
        event = histogram_event(
            noise=noise,
            scale=scale,
            relation=relation,
            max_records_per_unit=max_records_per_unit,
        )
        epsilon = epsilon_of_fixed([event], delta, accountant)
    result = {
        "mechanism": "histogram",
        "noise": noise,
        "scale": scale,
        "relation": str(relation),
        "max_records_per_unit": max_records_per_unit,
        "rho": float(event.rho),
        "pure_epsilon": _pure_epsilon(event),
        "delta": delta,
        "accountant": accountant,
        "epsilon": epsilon,
    }
    _print(result, as_json, _say_epsilon)


@app.command()
def table10(as_json: AsJson = False) -> None:
    """Reproduces the token counts of Table 10 of Amin et al. 2025, and how many the same ε buys.

    Takes about a quarter of a minute: the tight counts compose every token adaptively.
    """
    rows = [_table_row(setting) for setting in AMIN_2025_TABLE_10]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(title="Private tokens a batch may emit: Table 10 of Amin et al. 2025")
    for name in ("corpus", "ε", "δ", "batch size", "printed", "zCDP", "tight", "more text"):
        table.add_column(name, justify="left" if name == "corpus" else "right")
    for row in rows:
        gain = row["tokens_tight"] / row["tokens_printed"] - 1
        table.add_row(
            row["dataset"],
            f"{row['target_epsilon']:g}",
            f"{row['delta']:.2e}",
            f"{row['expected_batch_size']}",
            f"{row['tokens_printed']}",
            f"{row['tokens_zcdp']}",
            f"{row['tokens_tight']}",
            f"+{gain:.0%}",
        )
    console = Console()
    console.print(table)
    console.print(
        "Add/remove of one record, one record a prompt, clip bound 9, temperature 1.5, δ = n^-1.1."
    )


def _table_row(setting: PublishedSetting) -> dict[str, Any]:
    eta = bounded_range_eta(
        clip_bound=setting.clip_bound,
        expected_batch_size=setting.expected_batch_size,
        temperature=setting.temperature,
        relation=NeighboringRelation.ADD_REMOVE,
    )
    ours = {
        f"tokens_{accountant}": largest_token_count(
            eta=eta,
            target_epsilon=setting.target_epsilon,
            delta=setting.delta,
            accountant=accountant,
        )
        for accountant in ("zcdp", "tight")
    }
    return {
        "dataset": setting.dataset,
        "target_epsilon": setting.target_epsilon,
        "delta": setting.delta,
        "expected_batch_size": setting.expected_batch_size,
        "clip_bound": setting.clip_bound,
        "temperature": setting.temperature,
        "eta": eta,
        "tokens_printed": setting.printed_tokens,
        **ours,
    }


@contextmanager
def refusals() -> Iterator[None]:
    """Turns a ValueError of the kernel into one line on stderr and exit code 2."""
    try:
        yield
    except ValueError as refusal:
        typer.echo(str(refusal), err=True)
        raise typer.Exit(2) from None


def _print(result: dict[str, Any], as_json: bool, say: Callable[[dict[str, Any]], str]) -> None:
    if not as_json:
        Console().print(say(result), highlight=False, soft_wrap=True)
        return
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in result.items()
    }
    typer.echo(json.dumps(finite))


def _say_epsilon(result: dict[str, Any]) -> str:
    pure = result.get("pure_epsilon")
    alone = "" if pure is None else f"; ε = {_up(pure)} with δ = 0 if nothing else is released"
    return f"ε = {_up(result['epsilon'])} at {_terms(result)}{alone}"


def _pure_epsilon(event: Event) -> float | None:
    """ε with δ = 0, where the event has one."""
    return float(event.epsilon) if isinstance(event, DiscreteLaplaceEvent) else None


def _say_tokens(result: dict[str, Any]) -> str:
    return (
        f"{result['tokens']} private tokens a batch: ε = {_up(result['epsilon'])} "
        f"of {result['target_epsilon']:g} at {_terms(result)}"
    )


def _terms(result: dict[str, Any]) -> str:
    unit = result["max_records_per_unit"]
    records = "one record" if unit == 1 else f"up to {unit} records"
    return (
        f"δ = {result['delta']:g} ({result['accountant']} accountant, {result['relation']} of "
        f"{records})"
    )


def _up(epsilon: float) -> str:
    """Writes ε with four decimals, rounded up: a printed ε never understates."""
    return f"{math.ceil(epsilon * 1e4) / 1e4:.4f}" if math.isfinite(epsilon) else "infinite"
