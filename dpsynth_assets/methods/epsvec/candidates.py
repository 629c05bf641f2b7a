"""Texts the model writes without any record: candidates for fixed shots, and negatives after them.

Letters: Y labels, M texts of a label.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.methods.epsvec.config import SCAFFOLD_TEMPERATURE, EpsVecConfig
from dpsynth_assets.methods.epsvec.prompts import Scaffold
from dpsynth_assets.methods.inputs import ProgressCallback, PublicInputs
from dpsynth_assets.models.engines import Engine, Provenance, Sampling

if TYPE_CHECKING:
    import polars as pl

CANDIDATES_FILE = "candidates.parquet"
"""Columns `label` (index into the declared labels) and `text`; row m is bin m of the histogram."""

ShotsOf = Callable[[int, int], Sequence[Sequence[str]]]
"""From a label and a number of rows: the shots of each row's prompt."""

TextsByLabel = tuple[tuple[str, ...], ...]
"""Y lists of texts, in the order of the declared labels."""


def public_seed(seed: int, purpose: str, *numbers: int) -> int:
    """A seed of public randomness for one purpose, unrelated to those of others."""
    words = [seed, *purpose.encode(), *numbers]
    return int(np.random.SeedSequence(words).generate_state(1)[0])


def write_candidates(
    engine: Engine,
    scaffold: Scaffold,
    config: EpsVecConfig,
    seed: int,
    progress: ProgressCallback,
) -> "pl.DataFrame":
    """Writes the candidate pool: texts of each label from a prompt without examples.

    Returns:
        Columns of `CANDIDATES_FILE`; blank and repeated texts are left out, so that every text is
        one bin.

    Raises:
        ValueError: If a label got fewer different texts than it needs fixed shots.

    **Privacy** Reads nothing private: the bins of the histogram are public.

    **Source** EPSVec, Algorithm 2, line 1, and appendix B.3.
    """
    texts = write_texts(
        engine,
        scaffold,
        shots_of=lambda _label, rows: [()] * rows,
        count=config.candidates,
        config=config,
        seed=public_seed(seed, "candidates"),
        provenance=Provenance.PUBLIC,
        progress=progress,
    )
    different = [list(dict.fromkeys(each)) for each in texts]
    if min(map(len, different)) < config.shots_kept:
        raise ValueError(
            f"Expected at least {config.shots_kept} different candidates of each label, got fewer: "
            "the model repeats itself or writes nothing. Raise candidates."
        )
    return _pool(different)  # [epsvec A2:L1]


def public_candidates(
    documents: Sequence[str], labels: int, config: EpsVecConfig, seed: int
) -> "pl.DataFrame":
    """Draws public documents as the candidates of every label alike.

    Raises:
        ValueError: If there are fewer different documents than kept shots.

    **Privacy** Reads nothing private.
    """
    known = list(dict.fromkeys(text for text in documents if text.strip()))
    if len(known) < config.shots_kept:
        raise ValueError(
            f"Expected at least {config.shots_kept} different public documents as candidates, got "
            f"{len(known)}. Materialise the public corpus, or set candidate_source: model."
        )
    draw = np.random.default_rng(public_seed(seed, "public candidates"))
    texts = [known[row] for row in draw.permutation(len(known))[: config.candidates]]
    return _pool([texts] * labels)


def _pool(texts: Sequence[Sequence[str]]) -> "pl.DataFrame":
    """A table of the candidates of all labels, in their order."""
    import polars as pl

    rows = [(label, text) for label, each in enumerate(texts) for text in each]
    return pl.DataFrame(rows, schema={"label": pl.Int64, "text": pl.String}, orient="row")


def read_candidates(folder: Path) -> "pl.DataFrame":
    """Reads the candidate pool that `write_candidates` made."""
    import polars as pl

    return pl.read_parquet(folder / CANDIDATES_FILE)


def public_texts(public: PublicInputs, purpose: str, count: int | None = None) -> list[str]:
    """Public documents with a word, all or a fixed choice of `count`.

    Raises:
        ValueError: If there are none.
    """
    records = public.public_records
    texts = [] if records is None else [t for t in records["text"].to_list() if t.strip()]
    if not texts:
        raise ValueError(
            f"Expected public documents to take {purpose} from, got none. Materialise the public "
            "corpus."
        )
    order = np.random.default_rng(0).permutation(len(texts))[:count]
    return [texts[row] for row in order]


def write_texts(
    engine: Engine,
    scaffold: Scaffold,
    *,
    shots_of: ShotsOf,
    count: int,
    config: EpsVecConfig,
    seed: int,
    provenance: Provenance,
    progress: ProgressCallback,
) -> TextsByLabel:
    """Writes `count` texts of each label after its shots; blank ones are left out.

    All labels are written at once: a pass of many rows costs little more than one of few.
    """
    labels = range(len(scaffold.label_texts))
    prompts = [
        scaffold.prompt(label, shots) for label in labels for shots in shots_of(label, count)
    ]
    free = Sampling(
        temperature=SCAFFOLD_TEMPERATURE,
        max_new_tokens=config.max_document_tokens,
        seed=public_seed(seed, "texts"),
        stop=scaffold.stop,
    )
    made = engine.generate(
        prompts,
        scaffold.form.constrained(free),
        provenance=provenance,
        progress=lambda share: progress(share, "writing texts"),
    )
    texts = [scaffold.read(each) for each in made]
    of_label = (texts[label * count : (label + 1) * count] for label in labels)
    return tuple(tuple(text for text in each if text) for each in of_label)
