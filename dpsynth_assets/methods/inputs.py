"""Inputs of a stage: private records, public and released values, and its own checkpoints."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import polars as pl

MadeT = TypeVar("MadeT")

ProgressCallback = Callable[[float, str], None]
"""Called with the share done in [0, 1] and a short public message."""


def silent(_share: float, _message: str) -> None:
    """Takes progress that is not shown."""


class PassStore(Protocol):
    """Passes of one paid release that are finished, so that a killed run need not repeat them.

    **Privacy** A finished pass is part of the release that was paid for; it stays sensitive until
    the whole is committed. What a killed run drew beyond it was never shown, in no message
    either, and is drawn again.
    """

    def load(self, number: int) -> dict[str, Any] | None:
        """Returns the JSON values of a finished pass; None where it has to be run."""

    def save(self, number: int, values: dict[str, Any]) -> None:
        """Keeps a finished pass, for its owner only."""


class SortStep(NamedTuple):
    """One way to sort records into numbered places, each record by itself.

    Attributes:
        sort: Turns the number and the records of a shard, or of a place of the step before, into
            rows for each place; it holds public values only and is defined at the top of a module.
        places: How many places there are, public.
    """

    sort: "Callable[[int, PrivateInputs], Mapping[int, pl.DataFrame]]"
    places: int


class Shards(Protocol):
    """Private records in several shards, of which a worker reads each."""

    def summed(
        self,
        count: "Callable[[PrivateInputs], np.ndarray]",
        state: Sequence[np.ndarray] = (),
        *,
        gpus: float = 0,
        progress: Callable[[float], None] | None = None,
    ) -> np.ndarray:
        """Adds up the whole numbers that `count` returns for each shard; private.

        Args:
            count: See `PrivateInputs.counted`.
            state: What workers find as `PrivateInputs.state`; it travels by the sensitive store.
            gpus: GPUs that one shard needs.
            progress: Told the share of shards done, which is public.
        """

    def draw_passes(
        self,
        steps: Sequence[SortStep],
        draw: "Callable[[int, Sequence[pl.DataFrame]], dict[str, Any]]",
        wanted: Sequence[int],
        *,
        memory: int,
    ) -> Generator[int]:
        """Sorts records into passes and has each drawn by a worker, which keeps it.

        Args:
            steps: The last one's places are the passes.
            draw: Draws a pass, given its number and the rows that were sorted into it, in tables of
                any number and order; returns its JSON values, which the worker keeps where
                `PrivateInputs.passes` finds them. It holds public values only.
            wanted: Numbers of the passes that are not kept yet, ascending.
            memory: Bytes that a draw needs at least, for a scheduler that places it.

        Yields:
            The wanted numbers in their order, each once its pass is kept.
        """


UNCOUNTED = -1
"""In a label's place: of no declared label, or a null record."""


def label_indices(labels: Iterable[str], declared: Sequence[str]) -> np.ndarray:
    """Maps each label to its place among the declared ones, -1 if it is none of them: int64."""
    place = {label: number for number, label in enumerate(declared)}
    return np.array([place.get(label, UNCOUNTED) for label in labels], dtype=np.int64)


def counted_labels(records: pl.DataFrame, declared: Sequence[str]) -> np.ndarray:
    """Finds each record's place among the declared labels, for what counts it or trains on it.

    Args:
        records: N rows with `label` and `text`.
        declared: Declared labels, in order.

    Returns:
        (N,) int64 places, UNCOUNTED for a record of none of them and for one of blank text.

    **Privacy** Reads one record at a time. Blank texts are the null records of zero-out neighbours
    (`public_facts.slots`); elsewhere they were set aside. A null record must count nowhere: in the
    cell of its blank text it would replace a record, which moves two cells instead of one.
    """
    worded = np.array([bool(text.strip()) for text in records["text"]], dtype=bool)
    return np.where(worded, label_indices(records["label"], declared), UNCOUNTED)


@dataclass(frozen=True, kw_only=True)
class PrivateInputs:
    """What a mechanism reads after the ledger was charged. Never logged, never returned.

    Attributes:
        records: Columns `record_id`, `unit_id`, `text`, `label` (strings); held-out rows excluded.
        embeddings: float32 (N, d), rows aligned with `records`, unit length.
        passes: Finished passes of this very release, if the caller keeps them.
        parts: Where a stage works shard by shard (`Stage.in_parts`) and there are several: these.
            `records` is then empty and there are no embeddings.
        state: Arrays of the unfinished release that a count reads beside the records, such as the
            weights of a step. They follow from what was drawn under its charge, and no reader may
            see before it is committed.
        told: Called by a count that takes long, where it reads all records, the share done.
        prepared: What a count made of these records and needs again, by name (`once`).
    """

    records: pl.DataFrame = field(repr=False)
    embeddings: np.ndarray | None = field(default=None, repr=False)
    passes: PassStore | None = field(default=None, repr=False)
    parts: Shards | None = field(default=None, repr=False)
    state: Sequence[np.ndarray] = field(default=(), repr=False)
    told: Callable[[float], None] = field(default=lambda _: None, repr=False, compare=False)
    prepared: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def vectors(self) -> np.ndarray:
        """(N, d) embeddings, one for each record.

        Raises:
            ValueError: There are none, or another number.
        """
        if self.embeddings is None or len(self.embeddings) != self.records.height:
            raise ValueError(
                "Expected one embedding for each private record, got none or another number. Embed "
                "the records again."
            )
        return self.embeddings

    def once(self, name: str, make: Callable[[], MadeT]) -> MadeT:
        """What was made of these records before under this name, or is made now; private."""
        if name not in self.prepared:
            self.prepared[name] = make()
        made: MadeT = self.prepared[name]
        return made

    def counted(
        self,
        count: "Callable[[PrivateInputs], np.ndarray]",
        progress: Callable[[float], None] | None = None,
    ) -> np.ndarray:
        """Counts the records, or sums what they contribute in whole numbers, wherever they lie.

        Args:
            count: Turns the inputs of some records into whole numbers, one for each public bin or
                each coordinate of a lattice, each record by itself: those of all records are the
                sum. It is sent to workers, so it holds public values only and is defined at the
                top of a module. It is called once for every shard: where a mechanism samples
                records, each tosses its coin there.
            progress: Told the share of shards done, or of the one shard (`told`).

        Returns:
            The sums over all records, the same for any number of shards and of workers. Private:
            the caller adds noise, once.
        """
        if self.parts is None:
            return count(replace(self, told=progress or self.told))
        return self.parts.summed(count, progress=progress)

    def rows(self, chosen: np.ndarray) -> "PrivateInputs":
        """Some of the records by their places, with their embeddings; private."""
        embeddings = None if self.embeddings is None else np.asarray(self.embeddings[chosen])
        return PrivateInputs(records=self.records[chosen], embeddings=embeddings)


@dataclass(frozen=True, kw_only=True)
class Released:
    """A stage's release read back from the store.

    Attributes:
        reservation: The ledger charge that paid for it.
        facts: Its JSON values.
        folder: Where its files lie; read-only.
    """

    reservation: str
    facts: Mapping[str, Any]
    folder: Path


@dataclass(frozen=True, kw_only=True)
class PublicInputs:
    """Public or already released values a stage builds on.

    Attributes:
        language_model: `models.language_model.LanguageModel`, loaded.
        cluster_centers: float32 (K, d), unit length, from public embeddings.
        cluster_histogram: The released histogram, if the stage reads it.
        salt: Public string that keys the hash which assigns records to batches.
        seed: Seed of public randomness only (reference corpora, public continuations).
        text_embedder: `models.text_embedder.TextEmbedder`, loaded.
        public_records: Public documents, columns `text` and `label`.
        topic_model: `models.topic_model.TopicModel` of the public base, if it has one.
        topic_histogram: Released noisy counts by label and topic (JSON), if the cohort has them.
        conditional_generator: `models.conditional_generator.ConditionalGenerator`, if it has one.
        engine: Engine of the dataset file (`models.engines`), if a method generates through one.
        released: Releases of earlier stages of the same method, by stage.
        corpora: Published rows of other methods of the cohort that this one builds on, by folder.
        reopened: Opens the language model and the engine again, in a worker; it is sent there. None
            where they came from no public base.
    """

    language_model: Any = None
    cluster_centers: np.ndarray | None = None
    cluster_histogram: Any | None = None
    salt: str = ""
    seed: int = 0
    text_embedder: Any | None = None
    public_records: pl.DataFrame | None = field(default=None, repr=False)
    topic_model: Any | None = None
    topic_histogram: Mapping[str, Any] | None = None
    conditional_generator: Any | None = None
    engine: Any | None = None
    released: Mapping[str, Released] = field(default_factory=dict)
    corpora: "Mapping[str, pl.DataFrame]" = field(default_factory=dict, repr=False)
    reopened: "Callable[[], PublicInputs] | None" = field(default=None, repr=False)

    def required(self, name: str) -> Any:
        """Takes one of these.

        Raises:
            ValueError: It is missing.
        """
        found = getattr(self, name)
        if found is None:
            raise ValueError(
                f"Expected {_ARTIFACTS.get(name, name)} of the public base, or as it was released, "
                "got none. Declare it, and materialise it first."
            )
        return found

    def texts(self, count: int | None = None) -> list[str]:
        """Public documents with a word: all or a fixed choice of `count`; none without a corpus."""
        known = [] if self.public_records is None else self.public_records["text"].to_list()
        texts = [text for text in known if text.strip()]
        return [texts[row] for row in np.random.default_rng(0).permutation(len(texts))[:count]]


_ARTIFACTS = {
    "language_model": "public_language_model",
    "public_records": "public_corpus",
    "cluster_centers": "public_clusters",
}
"""Names of artifacts that are not those of attributes."""


def rows_behind(folder: str, public: PublicInputs) -> pl.DataFrame:
    """Rows of another method's published corpus: columns `text` and `label`.

    Raises:
        ValueError: There is none.
    """
    if folder not in public.corpora:
        raise ValueError(
            f"Expected the published corpus of {folder}, got none. Publish it first, or name "
            "another method's folder as `corpus`."
        )
    return public.corpora[folder]
