"""A fitted topic model and its files: assigns topics to documents, names keywords of a topic.

Shapes: N documents, K topics, d dimensions.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dpsynth_assets.models.topic_model.nearest import nearest_topics
from dpsynth_assets.models.topic_model.settings import TopicModelSettings

FORMAT = "dpsynth topic model"
FORMAT_VERSION = 1
"""Raised when the files or their meaning change; a folder of another version is refused."""

TENSORS_FILE = "topics.safetensors"
TABLE_FILE = "topics.parquet"
MANIFEST_FILE = "manifest.json"
LIBRARIES = ("hdbscan", "faiss-cpu", "numpy", "scikit-learn")


class TopicModelError(RuntimeError):
    """A topic model cannot be loaded: says what was expected, what was found and what to do."""


def write_files(
    folder: Path,
    tensors: Mapping[str, np.ndarray],
    table: Mapping[str, list[Any]],
    facts: Mapping[str, Any],
) -> None:
    """Writes arrays, the table of topics and, last, the manifest that makes the folder whole."""
    import polars as pl
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, folder / TENSORS_FILE)
    pl.DataFrame(dict(table)).write_parquet(folder / TABLE_FILE)
    manifest = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "libraries": {name: version(name) for name in LIBRARIES},
        **facts,
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False)
    (folder / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")


def read_files(
    folder: Path,
) -> tuple[dict[str, np.ndarray], dict[str, list[Any]], dict[str, Any]]:
    """Reads what `write_files` wrote: arrays, columns and manifest.

    Raises:
        TopicModelError: There is no topic model, another version's, or a file is damaged.
    """
    manifest = _read_manifest(folder)
    import polars as pl
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(folder / TENSORS_FILE)
        table = pl.read_parquet(folder / TABLE_FILE).to_dict(as_series=False)
    except (OSError, SafetensorError, pl.exceptions.PolarsError):
        raise TopicModelError(
            f"Expected {TENSORS_FILE} and {TABLE_FILE} whole in {str(folder)!r}, got a missing or "
            "damaged file. Fit the topic model again."
        ) from None
    return tensors, table, manifest


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TopicModelError(
            f"Expected a topic model in {str(folder)!r}, got no {MANIFEST_FILE} there. Fit one, or "
            "name the folder it was saved to."
        ) from None
    except (OSError, ValueError):
        raise TopicModelError(
            f"Expected a readable {MANIFEST_FILE} in {str(folder)!r}, got a damaged one. Fit the "
            "topic model again."
        ) from None
    found = (manifest.get("format"), manifest.get("version")) if isinstance(manifest, dict) else ()
    if found != (FORMAT, FORMAT_VERSION):
        raise TopicModelError(
            f"Expected format ({FORMAT!r}, {FORMAT_VERSION}) in {str(folder)!r}, got {found}. Fit "
            "the topic model again with this version."
        )
    return manifest


@dataclass(frozen=True, kw_only=True, eq=False)
class TopicModel:
    """Public topics, their keywords, and how near a document must be to belong to one.

    Attributes:
        embeddings: float32 (K, d), unit length: mean direction of each topic's members.
        keywords: Ten lower-case words for each of the K topics, most telling first.
        fallback_keywords: Ten words that all topics share, for unclassified documents.
        threshold: Smallest cosine to its nearest topic at which a document belongs to it.
        sizes: int64 (K,), public documents that belong to each topic.
        settings: How the topics were fitted.
        embedder: Name of the text embedder; "" if it was not said.
    """

    embeddings: np.ndarray = field(repr=False)
    keywords: tuple[tuple[str, ...], ...] = field(repr=False)
    fallback_keywords: tuple[str, ...]
    threshold: float
    sizes: np.ndarray = field(repr=False)
    settings: TopicModelSettings = field(repr=False)
    embedder: str = ""

    def __post_init__(self) -> None:
        """Refuses parts of different numbers of topics."""
        counts = len(self.embeddings), len(self.keywords), len(self.sizes)
        if self.embeddings.ndim != 2 or len(set(counts)) != 1 or counts[0] == 0:
            raise ValueError(
                f"Expected embeddings (K, d), keywords and sizes of the same K >= 1 topics, got "
                f"{self.embeddings.shape}, {counts[1]} and {counts[2]}."
            )

    @property
    def topics(self) -> int:
        """K."""
        return len(self.embeddings)

    @property
    def bins(self) -> int:
        """K + 1: the topics and the unclassified bin."""
        return self.topics + 1

    @property
    def unclassified(self) -> int:
        """Index of the unclassified bin: K."""
        return self.topics

    def assign(self, embeddings: np.ndarray) -> np.ndarray:
        """Assigns each document to its nearest topic, or to the unclassified bin.

        Args:
            embeddings: float (N, d), unit length; may be a memory map.

        Returns:
            int64 (N,) in [0, K]; K where no topic's cosine reaches `threshold`.

        Raises:
            ValueError: The embeddings have another dimension or are no matrix.

        **Privacy** A document's topic depends on itself and on this public model alone.

        **Source** Tan et al. 2025, section 3.3 ("the closest topic embedding") and appendix F
        (the unclassified bin).
        """
        if embeddings.ndim != 2 or embeddings.shape[1] != self.embeddings.shape[1]:
            raise ValueError(
                f"Expected embeddings (N, {self.embeddings.shape[1]}), got {embeddings.shape}. Use "
                f"the embedder that fitted the topics{self.embedder and ': ' + self.embedder}."
            )
        topics, cosines = nearest_topics(embeddings, self.embeddings)
        # `not >=` so that a cosine that is no number is unclassified as well.
        topics[~(cosines >= np.float32(self.threshold))] = self.unclassified
        return topics

    def condition_keywords(self, topic: int) -> tuple[str, ...]:
        """Names the keywords a generator is given for a topic in [0, K].

        The unclassified bin has no topic of its own: it gets `fallback_keywords`, the words that
        public topics share most evenly, which say what kind of text it is and not what about.

        Raises:
            ValueError: The topic is not in [0, K].
        """
        if not 0 <= topic <= self.topics:
            raise ValueError(f"Expected a topic in [0, {self.topics}], got {topic}.")
        return self.fallback_keywords if topic == self.unclassified else self.keywords[topic]

    def save(self, folder: str | Path) -> None:
        """Writes safetensors, Parquet and a JSON manifest into a folder, created if missing."""
        write_files(
            Path(folder),
            tensors={
                "embeddings": self.embeddings.astype(np.float32),
                "threshold": np.array([self.threshold], dtype=np.float32),
            },
            table={
                "topic": list(range(self.topics)),
                "keywords": [list(words) for words in self.keywords],
                "size": self.sizes.tolist(),
            },
            facts={
                "topics": self.topics,
                "embedder": self.embedder,
                "fallback_keywords": list(self.fallback_keywords),
                "settings": self.settings.model_dump(mode="json"),
            },
        )

    @classmethod
    def load(cls, folder: str | Path) -> "TopicModel":
        """Reads what `save` wrote.

        Raises:
            TopicModelError: There is no topic model, another version's, or a file is damaged.
        """
        tensors, table, manifest = read_files(Path(folder))
        try:
            return cls(**_fields(tensors, table, manifest))
        except (KeyError, TypeError, ValueError):
            raise TopicModelError(
                f"Expected files of one topic model in {str(folder)!r}, got parts that do not "
                "agree. Fit the topic model again."
            ) from None


def _fields(
    tensors: Mapping[str, np.ndarray], table: Mapping[str, list[Any]], manifest: Mapping[str, Any]
) -> dict[str, Any]:
    if table["topic"] != list(range(manifest["topics"])):
        raise ValueError("Expected topics in order.")
    return {
        "embeddings": tensors["embeddings"],
        "keywords": tuple(tuple(words) for words in table["keywords"]),
        "fallback_keywords": tuple(manifest["fallback_keywords"]),
        "threshold": float(tensors["threshold"][0]),
        "sizes": np.asarray(table["size"], dtype=np.int64),
        "settings": TopicModelSettings.model_validate(manifest["settings"]),
        "embedder": str(manifest["embedder"]),
    }
