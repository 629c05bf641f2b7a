"""Texts that the model writes without any record, and fixed shots: those nearest to most records.

Letters: N records, d dimensions of an embedding, Y labels, M candidates of all labels together.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from pydantic import TypeAdapter

from dpsynth_assets.methods.epsvec.config import SCAFFOLD_TEMPERATURE, EpsVecConfig
from dpsynth_assets.methods.epsvec.states import Scaffold, TextsByLabel
from dpsynth_assets.methods.inputs import (
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
    counted_labels,
)
from dpsynth_assets.models.engines.protocol import Engine, Provenance, Sampling
from dpsynth_assets.privacy.guarantees import Release
from dpsynth_assets.privacy.histogram import NoisyHistogram
from dpsynth_assets.privacy.nearest import NO_ROW, PublicRows, nearest_rows_of_labels

CANDIDATES_FILE = "candidates.parquet"
"""Columns `label` (index into the declared labels) and `text`; row m is bin m of the histogram."""

ShotsOf = Callable[[int, int], Sequence[Sequence[str]]]
"""From a label and a number of rows: the shots of each row's prompt."""


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
) -> pl.DataFrame:
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
) -> pl.DataFrame:
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


def _pool(texts: Sequence[Sequence[str]]) -> pl.DataFrame:
    """A table of the candidates of all labels, in their order."""
    rows = [(label, text) for label, each in enumerate(texts) for text in each]
    return pl.DataFrame(rows, schema={"label": pl.Int64, "text": pl.String}, orient="row")


def read_candidates(folder: Path) -> pl.DataFrame:
    """Reads the candidate pool that `write_candidates` made."""
    return pl.read_parquet(folder / CANDIDATES_FILE)


def public_texts(public: PublicInputs, purpose: str, count: int | None = None) -> list[str]:
    """Public documents with a word, all or a fixed choice of `count`.

    Raises:
        ValueError: If there are none.
    """
    texts = public.texts(count)
    if not texts:
        raise ValueError(
            f"Expected public documents to take {purpose} from, got none. Materialise the public "
            "corpus."
        )
    return texts


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


SHOTS_FILE = "fixed_shots.json"


@dataclass(frozen=True, kw_only=True)
class FixedShots:
    """Candidates in the order of their noisy counts, of which prompts hold the first. Released.

    Attributes:
        ranked: Y lists of texts, the most voted for first; all empty without fixed shots.
        weights: Y lists of shares in which prompts draw from them; empty without fixed shots.
        dp_records: Y noisy numbers of records, never below their own noise; empty where no record
            was counted.
        noise_std: Standard deviation of the noise on each count (records); 0 without counts.
    """

    ranked: TextsByLabel
    weights: tuple[tuple[float, ...], ...] = ()
    dp_records: tuple[float, ...] = ()
    noise_std: float = 0.0

    @property
    def noisy(self) -> bool:
        """Whether records chose them: they are released then, not merely public."""
        return bool(self.dp_records)

    def leading(self, count: int) -> TextsByLabel:
        """The `count` most voted for of each label: the prompt that states are read behind.

        **Source** EPSVec, section 4.4: the top k of the noisy histogram.
        """
        return tuple(texts[:count] for texts in self.ranked)  # [epsvec A2:L2]

    def drawn(
        self, label: int, rows: int, config: EpsVecConfig, seed: int
    ) -> list[tuple[str, ...]]:
        """The shots of each row's prompt, drawn by their weights from those that are kept.

        Row i draws from a stream of its own. Where no more are kept than a prompt holds, as in the
        paper, all prompts are the same.

        **Privacy** Post-processing: weights are noisy counts, the randomness is public.
        """
        texts = self.ranked[label][: config.shots_kept]
        if len(texts) <= config.shots:
            return [texts] * rows
        shares = np.array(self.weights[label][: len(texts)])
        chosen = [
            np.random.default_rng((seed, row)).choice(
                len(texts), config.shots, replace=False, p=shares / shares.sum()
            )
            for row in range(rows)
        ]
        return [tuple(texts[place] for place in places) for places in chosen]

    def save(self, folder: Path) -> None:
        """Writes JSON."""
        (folder / SHOTS_FILE).write_text(json.dumps(vars(self), ensure_ascii=False))

    @classmethod
    def load(cls, folder: Path) -> "FixedShots":
        """Reads what `save` wrote."""
        return TypeAdapter(cls).validate_json((folder / SHOTS_FILE).read_text())


def release_shots(
    histogram: NoisyHistogram,
    private: PrivateInputs,
    candidates: pl.DataFrame,
    candidate_embeddings: np.ndarray,
    labels: Sequence[str],
) -> Release[FixedShots]:
    """Lets every record vote for the nearest candidate of its label; ranks candidates by votes.

    Args:
        histogram: Noise on each count, and its price.
        private: Records with `text` and `label`, and their embeddings.
        candidates: Columns `label` and `text`; public.
        candidate_embeddings: (M, d) float32, unit length, of the same embedder.
        labels: Declared labels.

    Raises:
        ValueError: There are no embeddings, or they do not match the records.

    **Privacy** Bins are public: the candidates of all declared labels. A record votes once, for a
    bin that it and public values alone decide, so a record that enters or leaves moves one count
    by one: L2 sensitivity 1 under add/remove and zero-out, √2 under replace-one, times the records
    of a unit (errata B-003.3). The top k are post-processing of the noisy counts. Records without
    text or under an undeclared label vote for no candidate.

    **Source** EPSVec, section 4.4; Algorithm 2, line 2. The paper states neither relation nor δ.
    """
    votes = ShotVotes(
        candidate_labels=candidates["label"].to_numpy(),
        candidate_embeddings=candidate_embeddings,
        labels=tuple(labels),
    )
    made = histogram.release(private.counted(votes).tolist())
    dp_counts = made.value
    owners, texts = candidates["label"].to_numpy(), candidates["text"].to_list()
    own = [np.flatnonzero(owners == label) for label in range(len(labels))]
    ranks = [rows[np.argsort(-dp_counts[rows], kind="stable")] for rows in own]
    chosen = FixedShots(
        ranked=tuple(tuple(texts[row] for row in rows) for rows in ranks),
        weights=tuple(tuple(np.maximum(dp_counts[rows], 0.5).tolist()) for rows in ranks),
        dp_records=tuple(_dp_records(dp_counts[rows], histogram.scale) for rows in own),
        noise_std=histogram.scale,
    )
    return Release(value=chosen, cost=made.cost)


@dataclass(frozen=True, kw_only=True, eq=False)
class ShotVotes:
    """Counts votes of some records for candidates, for `PrivateInputs.counted`.

    Nearest is the largest inner product, found exactly (`privacy.nearest`): no record decides for
    which candidate another one votes.

    Attributes:
        candidate_labels: (M,) places of the candidates' labels.
        candidate_embeddings: (M, d) float32, unit length.
        labels: Declared labels, in order.
    """

    candidate_labels: np.ndarray
    candidate_embeddings: np.ndarray
    labels: tuple[str, ...]

    def __call__(self, private: PrivateInputs) -> np.ndarray:
        """Counts, for each candidate, the records of its label nearest to it: (M,) int64; private.

        Raises:
            ValueError: There is not one embedding for each record.
        """
        public = PublicRows(self.candidate_embeddings, distance=False)
        groups = public.by_label(self.candidate_labels)
        own = counted_labels(private.records, self.labels)  # UNCOUNTED has no group.
        choices = nearest_rows_of_labels(private.vectors, own, public, groups)
        return np.bincount(choices[choices != NO_ROW], minlength=len(self.candidate_labels))


def _dp_records(dp_counts: np.ndarray, noise_std: float) -> float:
    """Estimates the records of a label by the noisy counts of its candidates.

    Too many rather than too few: a sum below its own noise counts as that noise.
    """
    return max(float(dp_counts.sum()), noise_std * len(dp_counts) ** 0.5, 1.0)


def no_shots(labels: int) -> FixedShots:
    """Prompts without examples."""
    return FixedShots(ranked=((),) * labels)
