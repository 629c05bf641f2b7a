"""Dataset vectors: the direction from the model's texts to the records, released once.

Letters: N records, Y labels, L layers, d width.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.epsvec.config import RECORDS_PER_PASS, EpsVecConfig
from dpsynth_assets.methods.epsvec.negatives import Negatives, references
from dpsynth_assets.methods.epsvec.plan import VectorNoise
from dpsynth_assets.methods.epsvec.states import StateReader, TextsByLabel, open_reader
from dpsynth_assets.methods.inputs import PrivateInputs, ProgressCallback, PublicInputs
from dpsynth_assets.privacy.events import event_from_json, event_to_json
from dpsynth_assets.privacy.guarantees import Cost, GuaranteeType, Release
from dpsynth_assets.privacy.poisson_sampling import poisson_sample
from dpsynth_assets.privacy.vector_mean import BlockSums, unit_directions
from dpsynth_assets.workers import Here

VECTORS_FILE = "dataset_vectors.safetensors"

_ENTRIES_AT_A_TIME = 1 << 23
"""Entries of the stacked blocks (N Y L d) added at a time: 64 MiB."""
_NO_ENGINE = "Expected an engine that workers can open, got none. Set parts: 1."


@dataclass(frozen=True, kw_only=True)
class DatasetVectors:
    """Directions to steer along, with what they cost. Released; never drawn again.

    Attributes:
        directions: (Y, L, d) float32, norm 1 in each label and layer.
        layers: The L layers, ascending.
        labels: The Y declared labels.
        clip_bounds: (L,) public bounds, the unit of steering strengths.
        signal_over_noise: (Y, L) norm of the noisy mean over the norm that noise alone would have:
            about 1 says that the direction is noise.
        model: Name of the model they belong to.
        cost: The event that was charged, as JSON.
        lengths: (Y, L) how far records lie from negatives, in units of the residual stream, noise
            taken off; None where the number of records of a label is unknown.
    """

    directions: np.ndarray = field(repr=False)
    layers: tuple[int, ...]
    labels: tuple[str, ...]
    clip_bounds: np.ndarray
    signal_over_noise: np.ndarray
    model: str
    cost: dict[str, Any]
    lengths: np.ndarray | None = None

    def save(self, folder: Path) -> None:
        """Writes safetensors with the cost and everything needed to use them in its header."""
        from safetensors.numpy import save_file

        tensors = {
            f"layer_{layer}": np.ascontiguousarray(self.directions[:, place])
            for place, layer in enumerate(self.layers)
        }
        header = {
            name: json.dumps(it, ensure_ascii=False, default=np.ndarray.tolist)
            for name, it in vars(self).items()
            if name not in ("directions", "model")
        }
        save_file(tensors, folder / VECTORS_FILE, metadata={"model": self.model, **header})

    @classmethod
    def load(cls, folder: Path) -> "DatasetVectors":
        """Reads what `save` wrote."""
        from safetensors import safe_open

        with safe_open(folder / VECTORS_FILE, framework="numpy") as file:
            header = file.metadata()
            model = header.pop("model")
            known = {name: json.loads(text) for name, text in header.items()}
            blocks = [file.get_tensor(f"layer_{layer}") for layer in known["layers"]]
        event_from_json(known["cost"])  # Vectors without a readable cost are not used.
        lengths = known["lengths"]
        return cls(
            directions=np.stack(blocks, axis=1),
            layers=tuple(known["layers"]),
            labels=tuple(known["labels"]),
            clip_bounds=np.array(known["clip_bounds"]),
            signal_over_noise=np.array(known["signal_over_noise"]),
            model=model,
            cost=known["cost"],
            lengths=None if lengths is None else np.array(lengths),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class VectorTask:
    """Everything public that the vectors are computed with, here or in a worker.

    Attributes:
        reopened: Opens the engine in another process, where it can be.
        reader: Reads states, in the process that has it open.
        shots: Fixed shots of its prompts.
        negatives: What records are compared with, and the clip bounds.
        noise: What was planned and charged.
        config: How records are paired.
        terms: Declared labels and number of records.
        salt: Public key of the pairing.
        expected_records: (Y,) how many records of each label take part, as far as is public.
    """

    reopened: Callable[[], PublicInputs] | None
    reader: Here[StateReader] = field(repr=False)
    shots: TextsByLabel
    negatives: Negatives
    noise: VectorNoise
    config: EpsVecConfig
    terms: CohortTerms
    salt: str
    expected_records: np.ndarray | None = None

    @property
    def records(self) -> int:
        """Divisor of the sums: the declared number of records, or 1 where none is declared."""
        return self.terms.public_records or 1

    def opened(self) -> StateReader:
        """The reader of states.

        Raises:
            ValueError: It is not open here, and the engine cannot be opened in a worker.
        """
        if self.reader.value is not None:
            return self.reader.value
        if self.reopened is None:
            raise ValueError(_NO_ENGINE)
        engine, layers = self.reopened().required("engine"), self.negatives.layers
        return open_reader(engine, self.config, self.terms, self.shots, layers)

    def differences(self, reader: StateReader, label: int, records: pl.DataFrame) -> np.ndarray:
        """(N, L, d) differences, in clip bounds, of records of one label; [epsvec A1:L3]."""
        states = reader.read(label, records["text"].to_list())
        own = self.negatives.states[label]
        known = references(own, records["record_id"].to_list(), self.salt, self.config)
        return np.asarray((states - known) / self.negatives.clip_bounds[:, None])


def release_vectors(
    task: VectorTask, private: PrivateInputs, progress: ProgressCallback
) -> Release[DatasetVectors]:
    """Releases the noisy mean differences of all labels and layers together, as directions.

    Args:
        task: What is public.
        private: Records with `record_id`, `text` and `label`, whole or in shards.
        progress: Told the share done.

    **Privacy** See `VectorNoise`. A record's differences are functions of itself and public values,
    each measured in its layer's public bound, clipped to norm 1, and summed on an integer lattice;
    noise is drawn once. Bounds scale the noisy means back, and directions are post-processing: they
    do not depend on the divisor, which is no count. Records without text or under an undeclared
    label add nothing.

    Raises:
        ValueError: There are several shards, and the engine cannot be opened in a worker.

    **Source** EPSVec, Algorithm 1, and Algorithm 2, line 4.
    """
    if private.parts is not None and task.reopened is None:
        raise ValueError(_NO_ENGINE)
    reader = task.opened()
    labels, layers, width = len(task.terms.labels), len(reader.layers), reader.engine.width
    mean = task.noise.mean(layers=layers, dimensions=labels * width, records=task.records)
    total = private.counted(
        DifferenceSums(task=task, sums=mean.sums),
        lambda share: progress(share, "reading records inside the model"),
    )
    mean.add_total(total)
    dp_means = mean.release().value.reshape(layers, labels, width)  # [epsvec A1:L6]
    noise_norm = task.noise.noise_std(layers=layers, records=task.records) * np.sqrt(width)
    norms = np.linalg.norm(dp_means, axis=2).T
    vectors = DatasetVectors(
        directions=np.stack([unit_directions(each) for each in dp_means], axis=1).astype(
            np.float32
        ),
        layers=reader.layers,
        labels=task.terms.labels,
        clip_bounds=task.negatives.clip_bounds,
        signal_over_noise=norms / noise_norm,
        model=reader.engine.name,
        cost=event_to_json(task.noise.event()),
        lengths=_lengths(norms, noise_norm, task),
    )  # [epsvec A2:L4]
    cost = Cost(guarantee=GuaranteeType.DP, event=task.noise.event())
    return Release(value=vectors, cost=cost)  # [epsvec A1:L9]


def expected_records(
    terms: CohortTerms, dp_records: Sequence[float], sampling_probability: float
) -> np.ndarray | None:
    """Expects a number of records of each label, by public and released numbers: (Y,) or None.

    The noisy counts of the fixed shots tell; without them labels share the declared number alike.
    """
    most = terms.public_records
    if not dp_records:
        if most is None:
            return None
        dp_records = [most / len(terms.labels)] * len(terms.labels)
    known = np.array(dp_records, dtype=np.float64)
    return sampling_probability * (known if most is None else np.minimum(known, most))


def _lengths(norms: np.ndarray, noise_norm: float, task: VectorTask) -> np.ndarray | None:
    """Estimated norms of the mean differences (Y, L), in units of the residual stream.

    Of a noisy mean v of true mean m, E|v|² = |m|² + (norm of the noise)²; the positive part of
    James and Stein's factor, 1 - noise²/|v|², leaves of v what is nearest to m on average, and
    nothing where |v| is no longer than noise. So steering fades where the budget does not reach.

    Args:
        norms: (Y, L) of the noisy means, in clip bounds, divided by `task.records`.
        noise_norm: What noise alone would have.
        task: Knows the bounds, and how many records there are of each label.

    **Privacy** Post-processing of the noisy means.

    **Source** James and Stein 1961. The paper normalises and finds β by hand: 1 to 800 in Table 5.
    """
    if task.expected_records is None:
        return None
    kept = np.maximum(0.0, 1.0 - (noise_norm / np.maximum(norms, 1e-300)) ** 2)
    of_a_label = task.records / task.expected_records[:, None]
    return np.asarray(norms * kept * of_a_label * task.negatives.clip_bounds)


@dataclass(frozen=True, kw_only=True, eq=False)
class DifferenceSums:
    """Reads some records inside the model and sums their differences, for `PrivateInputs.counted`.

    Attributes:
        task: Opens the reader, and says what records are compared with.
        sums: Clips, rounds to the lattice and adds.

    **Privacy** A record's term is a function of the record and public values, bit for bit, in whole
    numbers; so the sum does not depend on how records were divided, or on who read them.
    """

    task: VectorTask
    sums: BlockSums

    def __call__(self, private: PrivateInputs) -> np.ndarray:
        """Sums the differences of a shard, and counts its records: int64; private."""
        total, labels = self.sums.empty(), self.task.terms.labels
        drawn, done = _drawn(private.records, self.task.noise.sampling_probability), 0
        if drawn.is_empty():
            return total
        reader = self.task.opened()
        for label, name in enumerate(labels):
            mine = drawn.filter(drawn["label"] == name)
            for some in mine.iter_slices(RECORDS_PER_PASS):
                done += some.height
                private.told(done / drawn.height)
                for rows in _cut(self.task.differences(reader, label, some), len(labels)):
                    self.sums.add(total, _stacked(rows, label, len(labels)))
        return total


def _drawn(records: pl.DataFrame, sampling_probability: float) -> pl.DataFrame:
    """Records that take part: each tosses its own coin. Those without text never do."""
    if sampling_probability < 1:
        records = records[poisson_sample(records.height, sampling_probability)]
    return records.filter(pl.col("text").str.strip_chars().str.len_chars() > 0)


def _cut(differences: np.ndarray, labels: int) -> list[np.ndarray]:
    """Cuts (N, L, d) so that the stack over all labels stays small."""
    rows = max(1, _ENTRIES_AT_A_TIME // (labels * differences[0].size))
    return [differences[start : start + rows] for start in range(0, len(differences), rows)]


def _stacked(differences: np.ndarray, label: int, labels: int) -> np.ndarray:
    """Lays (N, L, d) into the places of one label: (N, L, Y d), zeros elsewhere."""
    rows, layers, width = differences.shape
    stacked = np.zeros((rows, layers, labels, width))
    stacked[:, :, label] = differences
    return stacked.reshape(rows, layers, labels * width)
