"""The released record of an evolution: every candidate that was voted on, with its votes.

One Parquet file: `iteration` (from 1), `label` (number), `parent` (row among the survivors before),
`born` (iteration of writing), `votes` (released, noisy), `survived` (times it was chosen), and
`text`, which is left out for losers of all rounds but the last.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.methods.evolution.population import Population
from dpsynth_assets.methods.evolution.selection import vote_entropy

if TYPE_CHECKING:
    import polars as pl

GENERATIONS_FILE = "generations.parquet"


def no_generations() -> "pl.DataFrame":
    """An evolution before its first votes."""
    empty = Population.random((), np.empty(0))
    return voted_frame(empty, np.empty(0), np.empty(0, dtype=np.int64), 1, last=False)


def voted_frame(
    population: Population,
    dp_votes: np.ndarray,
    survivors: np.ndarray,
    iteration: int,
    *,
    last: bool,
) -> "pl.DataFrame":
    """One round's candidates with their released votes."""
    import polars as pl

    survived = np.bincount(survivors, minlength=population.size)
    frame = population.frame().with_columns(
        pl.lit(iteration, dtype=pl.Int64).alias("iteration"),
        pl.Series("votes", np.asarray(dp_votes, dtype=np.float64)),
        pl.Series("survived", survived.astype(np.int64)),
    )
    if not last:
        kept = pl.when(pl.col("survived") > 0).then(pl.col("text"))
        frame = frame.with_columns(kept.alias("text"))
    return frame.select("iteration", "label", "parent", "born", "votes", "survived", "text")


def write_generations(folder: Path, generations: "pl.DataFrame") -> None:
    """Writes the released file."""
    generations.write_parquet(folder / GENERATIONS_FILE)


def read_generations(folder: Path) -> "pl.DataFrame":
    """Reads the released file."""
    import polars as pl

    return pl.read_parquet(folder / GENERATIONS_FILE)


@dataclass(frozen=True)
class Survivors:
    """The last survivors, those with most votes first within each label.

    Attributes:
        population: Their texts and labels, each once.
        dp_votes: Their released votes of the last round.
    """

    population: Population = field(repr=False)
    dp_votes: np.ndarray = field(repr=False)


def last_survivors(generations: "pl.DataFrame") -> Survivors:
    """Reads who survived the last round."""
    import polars as pl

    last = generations.filter(
        (pl.col("iteration") == pl.col("iteration").max()) & (pl.col("survived") > 0)
    ).sort("label", "votes", descending=[False, True], maintain_order=True)
    return Survivors(Population.from_frame(last), last["votes"].to_numpy())


def generation_facts(generations: "pl.DataFrame") -> dict[str, Any]:
    """Released numbers about an evolution, round by round.

    `vote_entropy` is that of the positive votes in bits (a few winners: small);
    `survivors_new` the share of survivors that the round itself had written.
    """
    import polars as pl

    rounds = generations.partition_by("iteration", maintain_order=True)
    alive = [frame.filter(pl.col("survived") > 0) for frame in rounds]
    last = rounds[-1]
    return {
        "iterations": len(rounds),
        "candidates": max(frame.height for frame in rounds),
        "survivors": alive[-1].height,
        "vote_entropy": [round(vote_entropy(f["votes"].to_numpy()), 4) for f in rounds],
        "survivors_new": [
            round(float((f["born"] == f["iteration"] - 1).to_numpy().mean()), 4) for f in alive
        ],
        "last_vote_entropy": round(vote_entropy(last["votes"].to_numpy()), 4),
        "votes_total": [float(frame["votes"].sum()) for frame in rounds],
    }
