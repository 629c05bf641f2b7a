"""Rows of a corpus from the survivors of an evolution: post-processing, whatever their number."""

from collections.abc import Sequence

import numpy as np

from dpsynth_assets.methods.evolution.config import EvolutionConfig
from dpsynth_assets.methods.evolution.generations import Survivors
from dpsynth_assets.methods.evolution.text_api import TextApi
from dpsynth_assets.methods.inputs import ProgressCallback
from dpsynth_assets.methods.rejection_sampling import (
    EVERY_ROW,
    RowFilter,
    round_seed,
    write_accepted,
)
from dpsynth_assets.methods.stages import SyntheticCorpus
from dpsynth_assets.methods.text_form import FREE, TextForm

_WRITING = 2**31
"""Keeps the stream of written rows apart from those of the rounds."""


def write_rows(  # noqa: PLR0913 - public values, each of another source
    survivors: Survivors,
    sizes: np.ndarray,
    labels: Sequence[str],
    api: TextApi,
    config: EvolutionConfig,
    seed: int,
    progress: ProgressCallback,
    *,
    kept: RowFilter = EVERY_ROW,
    form: TextForm = FREE,
) -> SyntheticCorpus:
    """Writes each label's survivors, most votes first, then variations of them in turn.

    In the place of a row that is not kept stands a further variation of the same survivor.

    Args:
        survivors: The last survivors.
        sizes: (L,) rows of each label.
        labels: L composite label values.
        api: Writes variations.
        config: Degree of the variations: `last_degree`.
        seed: Public seed.
        progress: Told the share done.
        kept: Decides which rows are kept.
        form: What a text has to be.

    Returns:
        Columns `text`, `label`, `parent` (number of the survivor) and `variation` (0 for the
        survivor itself).

    **Source** Xie et al. 2024, Algorithm 1, whose last step varies the survivors once; that every
    survivor is varied equally often is what its expansion by L - 1 does in every round.
    """
    import polars as pl

    parents, copies = _parents(survivors.population.labels, sizes)
    names = [labels[number] for number in survivors.population.labels[parents].tolist()]
    survivor_of = [survivors.population.texts[parent] for parent in parents.tolist()]
    tries = np.zeros(len(parents), dtype=np.int64)

    def write(places: Sequence[int], round_number: int, progress: ProgressCallback) -> list[str]:
        tries[places] = round_number
        new = [place for place in places if round_number or copies[place]]
        texts = {place: form.read(survivor_of[place]) for place in places}
        if new:
            varied = api.vary(
                [survivor_of[place] for place in new],
                [names[place] for place in new],
                degree=config.last_degree,
                seed=round_seed(_writing_seed(seed), round_number),
                progress=lambda share: progress(share, "writing variations of the survivors"),
            )
            texts |= dict(zip(new, map(form.read, varied), strict=True))
        return [texts[place] for place in places]

    texts, judged = write_accepted(write, kept, len(parents), progress)
    variation = np.where(tries > 0, np.maximum(copies, 1), copies)
    frame = pl.DataFrame(
        {"text": texts, "label": names, "parent": parents, "variation": variation},
        schema={"text": pl.String, "label": pl.String, "parent": pl.Int64, "variation": pl.Int64},
    ).drop_nulls("text")
    survived = int((frame["variation"] == 0).sum())
    facts = {
        "rows": frame.height,
        "survivors": survived,
        "variations": frame.height - survived,
        **judged,
    }
    return SyntheticCorpus(rows=frame, facts=facts)


def _writing_seed(seed: int) -> int:
    return int(np.random.SeedSequence([seed, _WRITING]).generate_state(1)[0])


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
