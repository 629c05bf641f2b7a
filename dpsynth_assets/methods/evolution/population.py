"""Candidate texts with labels and ancestry: which of them survive, and which are released.

A population is public or released, and survivors follow from released votes, which noise makes
negative here and there: nothing here is private.

The released record of an evolution is one Parquet file: `iteration` (from 1), `label` (number),
`parent` (row among the survivors before), `born` (iteration of writing), `votes` (released, noisy),
`survived` (times it was chosen), and `text`, which is left out for losers of all rounds but the
last.

Letters: C candidates, L labels.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

NO_PARENT = -1
"""Parent of a text that was written without another text."""


def random_population(texts: Sequence[str], labels: np.ndarray) -> pl.DataFrame:
    """Texts of the first generation: C rows, one for each candidate.

    Returns:
        Columns `text`, `label` (number), `parent` (row among the survivors before that it varies,
        a survivor's own row, or `NO_PARENT`) and `born` (iteration of writing).
    """
    numbers = np.asarray(labels, dtype=np.int64)
    return pl.DataFrame(
        {
            "text": pl.Series(texts, dtype=pl.String),
            "label": numbers,
            "parent": np.full_like(numbers, NO_PARENT),
            "born": np.zeros_like(numbers),
        }
    )


def chosen(population: pl.DataFrame, places: np.ndarray) -> pl.DataFrame:
    """The candidates at `places`, in that order; their own parents from now on."""
    own = np.arange(len(places), dtype=np.int64)
    return population[places].with_columns(parent=own)


def with_variations(
    survivors: pl.DataFrame, texts: Sequence[str], parents: np.ndarray, iteration: int
) -> pl.DataFrame:
    """Survivors, then `texts`, each a variation of the survivor at its parent's row."""
    new = random_population(texts, survivors["label"].to_numpy()[parents])
    born = np.full(len(texts), iteration, dtype=np.int64)
    return survivors.vstack(new.with_columns(parent=parents, born=born))


def vote_entropy(dp_votes: np.ndarray) -> float:
    """Entropy of the positive votes' shares, in bits: 0 where one candidate has them all."""
    weights = np.maximum(np.asarray(dp_votes, dtype=np.float64), 0.0)
    shares = weights[weights > 0] / max(weights.sum(), 1e-300)
    return float(max(0.0, -(shares * np.log2(shares)).sum()))


def select(dp_votes: np.ndarray, candidate_labels: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Chooses the survivors of each label: most votes first, the earlier one of equal ones.

    Args:
        dp_votes: (C,) released votes.
        candidate_labels: (C,) labels in [0, L).
        sizes: (L,) survivors of each label, from public or released numbers.

    Returns:
        int64 places of survivors, label by label, each once; fewer than asked where a label has
        fewer candidates.

    **Source** Xie et al. 2024, Algorithm 1: ranking, for L > 1 variations.
    """
    votes = np.asarray(dp_votes, dtype=np.float64)
    best = [np.empty(0, dtype=np.int64)]
    for label, size in enumerate(np.asarray(sizes).tolist()):
        places = np.flatnonzero(candidate_labels == label)
        best.append(places[np.argsort(-votes[places], kind="stable")[:size]])
    return np.concatenate(best)


GENERATIONS_FILE = "generations.parquet"


def no_generations() -> pl.DataFrame:
    """An evolution before its first votes."""
    empty = random_population((), np.empty(0))
    return voted_frame(empty, np.empty(0), np.empty(0, dtype=np.int64), 1, last=False)


def voted_frame(
    population: pl.DataFrame,
    dp_votes: np.ndarray,
    survivors: np.ndarray,
    iteration: int,
    *,
    last: bool,
) -> pl.DataFrame:
    """One round's candidates with their released votes."""
    survived = np.bincount(survivors, minlength=population.height)
    frame = population.with_columns(
        pl.lit(iteration, dtype=pl.Int64).alias("iteration"),
        pl.Series("votes", np.asarray(dp_votes, dtype=np.float64)),
        pl.Series("survived", survived.astype(np.int64)),
    )
    if not last:
        kept = pl.when(pl.col("survived") > 0).then(pl.col("text"))
        frame = frame.with_columns(kept.alias("text"))
    return frame.select("iteration", "label", "parent", "born", "votes", "survived", "text")


def write_generations(folder: Path, generations: pl.DataFrame) -> None:
    """Writes the released file."""
    generations.write_parquet(folder / GENERATIONS_FILE)


def read_generations(folder: Path) -> pl.DataFrame:
    """Reads the released file."""
    return pl.read_parquet(folder / GENERATIONS_FILE)


def last_survivors(generations: pl.DataFrame) -> pl.DataFrame:
    """Reads who survived the last round, each once, most votes first within each label."""
    return generations.filter(
        (pl.col("iteration") == pl.col("iteration").max()) & (pl.col("survived") > 0)
    ).sort("label", "votes", descending=[False, True], maintain_order=True)


def generation_facts(generations: pl.DataFrame) -> dict[str, Any]:
    """Released numbers about an evolution, round by round.

    `vote_entropy` is that of the positive votes in bits (a few winners: small);
    `survivors_new` the share of survivors that the round itself had written.
    """
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
