"""Fixed shots: the candidates nearest to most records, by one noisy histogram.

Letters: N records, d dimensions of an embedding, Y labels, M candidates of all labels together.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.methods.base import CohortTerms, PrivateInputs
from dpsynth_assets.methods.epsvec.candidates import TextsByLabel, public_seed
from dpsynth_assets.methods.epsvec.plan import shots_event
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.histogram import release_histogram
from dpsynth_assets.privacy.release import Cost, Release

if TYPE_CHECKING:
    import polars as pl

SHOTS_FILE = "fixed_shots.json"


@dataclass(frozen=True, kw_only=True)
class FixedShots:
    """The examples in every prompt. Released.

    Attributes:
        shots: Y lists of k texts, the most voted for first; all empty without fixed shots.
        dp_counts: M noisy counts, one for each candidate; empty where no record was counted.
        noise_std: Standard deviation of the noise on each count (records); 0 without counts.
    """

    shots: TextsByLabel
    dp_counts: tuple[int, ...] = ()
    noise_std: float = 0.0

    @property
    def noisy(self) -> bool:
        """Whether records chose them: they are released then, not merely public."""
        return bool(self.dp_counts)

    def save(self, folder: Path) -> None:
        """Writes JSON."""
        (folder / SHOTS_FILE).write_text(json.dumps(vars(self), ensure_ascii=False))

    @classmethod
    def load(cls, folder: Path) -> "FixedShots":
        """Reads what `save` wrote."""
        read: dict[str, Any] = json.loads((folder / SHOTS_FILE).read_text())
        return cls(
            shots=tuple(tuple(texts) for texts in read["shots"]),
            dp_counts=tuple(read["dp_counts"]),
            noise_std=float(read["noise_std"]),
        )


def release_shots(
    private: PrivateInputs,
    candidates: "pl.DataFrame",
    candidate_embeddings: np.ndarray,
    terms: CohortTerms,
    *,
    shots: int,
    noise_std: float,
) -> Release[FixedShots]:
    """Lets every record vote for the nearest candidate of its label; keeps the top k of each.

    Args:
        private: Records with `text` and `label`, and their embeddings.
        candidates: Columns `label` and `text`; public.
        candidate_embeddings: (M, d) float32, unit length, of the same embedder.
        terms: Declared labels, unit and relation.
        shots: k.
        noise_std: Standard deviation of discrete Gaussian noise on each count (records).

    Raises:
        ValueError: There are no embeddings, or they do not match the records.

    **Privacy** Bins are public: the candidates of all declared labels. A record votes once, for a
    bin that it and public values alone decide, so a record that enters or leaves moves one count
    by one: L2 sensitivity 1 under add/remove and zero-out, √2 under replace-one, times the records
    of a unit (errata B-003.3). The top k are post-processing of the noisy counts. Records without
    text or under an undeclared label vote for nothing.

    **Source** EPSVec, section 4.4; Algorithm 2, line 2. The paper states neither relation nor δ.
    """
    votes = count_votes(private, candidates["label"].to_numpy(), candidate_embeddings, terms.labels)
    release = release_histogram(
        votes,
        noise="gaussian",
        scale=noise_std,
        relation=terms.relation,
        max_records_per_unit=terms.unit.max_records,
    )
    dp_counts = release.value
    chosen = FixedShots(
        shots=top_shots(candidates, dp_counts, len(terms.labels), shots),  # [epsvec A2:L2]
        dp_counts=tuple(int(count) for count in dp_counts),
        noise_std=noise_std,
    )
    cost = Cost(guarantee=GuaranteeType.DP, event=shots_event(noise_std, terms))
    return Release(value=chosen, cost=cost)


def count_votes(
    private: PrivateInputs,
    candidate_labels: np.ndarray,
    candidate_embeddings: np.ndarray,
    labels: Sequence[str],
) -> list[int]:
    """Counts, for each candidate, the records of its label that are nearest to it. Private.

    One product a record: in larger ones a row's last bits follow the number of rows, and a tie
    could turn with a neighbour's presence.
    """
    if private.embeddings is None or len(private.embeddings) != private.records.height:
        raise ValueError(
            "Expected one embedding for each private record, got none or another number. Embed "
            "the records again."
        )
    bins = {label: np.flatnonzero(candidate_labels == index) for index, label in enumerate(labels)}
    known = {label: candidate_embeddings[rows] for label, rows in bins.items()}
    counts = [0] * len(candidate_labels)
    rows = zip(
        private.records["label"].to_list(),
        private.records["text"].to_list(),
        private.embeddings,
        strict=True,
    )
    for label, text, embedding in rows:
        if label in known and text.strip():
            counts[int(bins[label][np.argmax(known[label] @ embedding)])] += 1
    return counts


def top_shots(
    candidates: "pl.DataFrame", dp_counts: np.ndarray, labels: int, shots: int
) -> TextsByLabel:
    """The k candidates of each label with the largest noisy counts, largest first."""
    owners, texts = candidates["label"].to_numpy(), candidates["text"].to_list()
    chosen = []
    for label in range(labels):
        rows = np.flatnonzero(owners == label)
        best = rows[np.argsort(-dp_counts[rows], kind="stable")][:shots]
        chosen.append(tuple(texts[row] for row in best))
    return tuple(chosen)


def random_shots(candidates: "pl.DataFrame", labels: int, shots: int, seed: int) -> FixedShots:
    """Draws k candidates of each label without looking at a record; public.

    **Source** EPSVec, Table 2, "w/o DP-histogram".
    """
    order = np.random.default_rng(public_seed(seed, "shots")).permutation(candidates.height)
    return FixedShots(shots=top_shots(candidates, order, labels, shots))


def no_shots(labels: int) -> FixedShots:
    """Prompts without examples."""
    return FixedShots(shots=((),) * labels)
