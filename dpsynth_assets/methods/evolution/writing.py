"""Rows of a corpus from the survivors of an evolution: post-processing, whatever their number."""

from collections.abc import Sequence

import numpy as np

from dpsynth_assets.methods.evolution.config import EvolutionConfig
from dpsynth_assets.methods.evolution.generations import Survivors
from dpsynth_assets.methods.evolution.text_api import TextApi
from dpsynth_assets.methods.inputs import ProgressCallback
from dpsynth_assets.methods.stages import SyntheticCorpus

_WRITING = 2**31
"""Keeps the stream of written rows apart from those of the rounds."""


def write_rows(
    survivors: Survivors,
    sizes: np.ndarray,
    labels: Sequence[str],
    api: TextApi,
    config: EvolutionConfig,
    seed: int,
    progress: ProgressCallback,
) -> SyntheticCorpus:
    """Writes each label's survivors, most votes first, then variations of them in turn.

    Args:
        survivors: The last survivors.
        sizes: (L,) rows of each label.
        labels: L composite label values.
        api: Writes variations.
        config: Degree of the variations: `last_degree`.
        seed: Public seed.
        progress: Told the share done.

    Returns:
        Columns `text`, `label`, `parent` (number of the survivor) and `variation` (0 for the
        survivor itself). Blank rows are left out.

    **Source** Xie et al. 2024, Algorithm 1, whose last step varies the survivors once; that every
    survivor is varied equally often is what its expansion by L - 1 does in every round.
    """
    import polars as pl

    parents, copies = _parents(survivors.population.labels, sizes)
    names = [labels[number] for number in survivors.population.labels[parents].tolist()]
    texts = [survivors.population.texts[parent] for parent in parents.tolist()]
    new = np.flatnonzero(copies > 0).tolist()
    if new:
        varied = api.vary(
            [texts[row] for row in new],
            [names[row] for row in new],
            degree=config.last_degree,
            seed=int(np.random.SeedSequence([seed, _WRITING]).generate_state(1)[0]),
            progress=lambda share: progress(share, "writing variations of the survivors"),
        )
        for row, text in zip(new, varied, strict=True):
            texts[row] = text
    frame = pl.DataFrame(
        {"text": texts, "label": names, "parent": parents, "variation": copies},
        schema={"text": pl.String, "label": pl.String, "parent": pl.Int64, "variation": pl.Int64},
    )
    written = frame.filter(pl.col("text").str.strip_chars().str.len_chars() > 0)
    progress(1.0, f"{written.height} rows written")
    facts = {
        "rows": written.height,
        "blank_rows_left_out": frame.height - written.height,
        "survivors": int((copies == 0).sum()),
        "variations": len(new),
    }
    return SyntheticCorpus(rows=written, facts=facts)


def _parents(survivor_labels: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Survivor behind each row, and how many rows of it there were before.

    Raises:
        ValueError: A label that is to get rows has no survivor.
    """
    parents, copies = [], []
    for label, size in enumerate(np.asarray(sizes).tolist()):
        places = np.flatnonzero(survivor_labels == label)
        if size and not len(places):
            raise ValueError(
                "Expected survivors of every label that gets rows, got none of one. Release a "
                "population of its own."
            )
        turns = np.arange(size)
        parents.append(places[turns % max(1, len(places))] if size else places[:0])
        copies.append(turns // max(1, len(places)))
    return np.concatenate(parents), np.concatenate(copies).astype(np.int64)
