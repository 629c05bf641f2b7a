"""Fixed shots: the candidates nearest to most records, by one noisy histogram.

Letters: N records, d dimensions of an embedding, Y labels, M candidates of all labels together.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import TypeAdapter

from dpsynth_assets.methods.counted_labels import counted_labels
from dpsynth_assets.methods.epsvec.candidates import TextsByLabel
from dpsynth_assets.methods.epsvec.config import EpsVecConfig
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.privacy.histogram import NoisyHistogram
from dpsynth_assets.privacy.nearest import NO_ROW, PublicRows, nearest_rows_of_labels
from dpsynth_assets.privacy.release import Release

if TYPE_CHECKING:
    import polars as pl

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
    candidates: "pl.DataFrame",
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
    text or under an undeclared label vote for nothing.

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
        if private.embeddings is None or len(private.embeddings) != private.records.height:
            raise ValueError(
                "Expected one embedding for each private record, got none or another number. Embed "
                "the records again."
            )
        public = PublicRows(self.candidate_embeddings, distance=False)
        groups = {
            index: public.group(np.flatnonzero(self.candidate_labels == index))
            for index in range(len(self.labels))
        }
        own = counted_labels(private.records, self.labels)  # UNCOUNTED has no group.
        choices = nearest_rows_of_labels(private.embeddings, own, public, groups)
        return np.bincount(choices[choices != NO_ROW], minlength=len(self.candidate_labels))


def _dp_records(dp_counts: np.ndarray, noise_std: float) -> float:
    """Estimates the records of a label by the noisy counts of its candidates.

    Too many rather than too few: a sum below its own noise counts as that noise.
    """
    return max(float(dp_counts.sum()), noise_std * len(dp_counts) ** 0.5, 1.0)


def no_shots(labels: int) -> FixedShots:
    """Prompts without examples."""
    return FixedShots(ranked=((),) * labels)
