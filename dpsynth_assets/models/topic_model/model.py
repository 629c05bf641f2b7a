"""A fitted topic model and its files: assigns topics to documents, names keywords of a topic.

Shapes: N documents, K topics, d dimensions.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pydantic import Field

from dpsynth_assets.datasets.fields import Declaration, Refusal
from dpsynth_assets.privacy.nearest import PublicRows, nearest_rows, pair_scores, windows

NOISE = -1
"""Group of a document that belongs to no dense group."""

KEYWORDS = 10
"""Keywords of a topic, as in the paper."""


class TopicModelSettings(Declaration):
    """Settings of a topic model. Defaults suit thousands of documents and millions."""

    sample_documents: int = Field(50_000, ge=100, le=1_000_000)
    """Documents that density clustering sees."""
    neighbors: int = Field(10, ge=1, le=100)
    """Documents averaged before clustering."""
    dimensions: int = Field(15, ge=2, le=100)
    """Principal components clustered in."""
    min_cluster_size: int = Field(20, ge=2, le=100_000)
    """Fewest documents of the sample in a dense group."""
    min_samples: int = Field(5, ge=1, le=1_000)
    """Neighbours that define density."""
    max_topic_share: float = Field(0.05, gt=0, le=1)
    """Largest share of the sample in a group not cut again."""
    min_topics: int = Field(10, ge=1, le=100_000)
    """With fewer, the largest are split."""
    max_topics: int = Field(2_000, ge=1, le=100_000)
    """With more, the nearest merge."""
    refinements: int = Field(2, ge=0, le=20)
    """Passes that move topics to the mean of their members."""
    unclassified_percentile: float = Field(0.1, ge=0, le=50)
    """Percentile of public cosines below which no topic is."""
    vocabulary: int = Field(20_000, ge=100, le=1_000_000)
    """Words that may become keywords."""
    min_word_documents: int = Field(5, ge=1)
    """Documents that hold a keyword; at most a hundredth of a corpus."""
    keyword_documents: int = Field(500, ge=10, le=1_000_000)
    """Nearest members of a topic whose words are counted."""
    keyword_words: int = Field(256, ge=10, le=100_000)
    """Words of a document that are counted."""
    candidates: int = Field(20, ge=KEYWORDS, le=1_000)
    """Telling words of a topic that keywords are of."""
    diversity: float = Field(0.3, ge=0, le=1)
    """Weight of being unlike earlier keywords, in [0, 1]."""
    seed: int = Field(0, ge=0)
    """Public seed of the sample and of k-means."""

    def refusals(self) -> Iterator[Refusal]:
        """Bounds of the number of topics that exclude each other."""
        if self.min_topics > self.max_topics:
            got = f"{self.min_topics} > {self.max_topics}"
            remedy = "Lower min_topics or raise max_topics."
            yield Refusal("min_topics", "min_topics <= max_topics", remedy, got)


def nearest_topics(
    embeddings: np.ndarray, topic_embeddings: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Finds each document's topic of largest cosine.

    Args:
        embeddings: float (N, d), unit length; may be a memory map, read a window at a time.
        topic_embeddings: float32 (K, d), unit length.

    Returns:
        int64 (N,) topics, of equally near ones the lowest, and float32 (N,) cosines.

    **Privacy** A row depends on its document and on public topics alone, bit for bit: the topic is
    found exactly (`privacy.nearest`), and the cosine is a float64 sum in one order, rounded once.
    """
    public = PublicRows(topic_embeddings, distance=False)
    topics = nearest_rows(embeddings, public)
    cosines = np.empty(len(embeddings), dtype=np.float32)
    for window, rows in windows(embeddings):
        cosines[window] = pair_scores(rows, public, np.arange(len(rows)), topics[window])
    return topics, cosines


def unit_rows(values: np.ndarray) -> np.ndarray:
    """Scales rows to length one, float32; a zero row stays zero."""
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return np.asarray(values / np.maximum(lengths, 1e-12), dtype=np.float32)


FORMAT = "dpsynth topic model"
FORMAT_VERSION = 1
"""Raised when the files or their meaning change; a folder of another version is refused."""

TENSORS_FILE = "topics.safetensors"
TABLE_FILE = "topics.parquet"
MANIFEST_FILE = "manifest.json"
LIBRARIES = ("hdbscan", "faiss-cpu", "numpy", "scikit-learn")


class TopicModelError(RuntimeError):
    """A topic model cannot be loaded: says what was expected, what was found and what to do."""


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

    @property
    def topics(self) -> int:
        """K."""
        return len(self.embeddings)

    @property
    def bins(self) -> int:
        """K + 1: the topics and, last, the unclassified bin."""
        return self.topics + 1

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
        topics, cosines = nearest_topics(embeddings, self.embeddings)
        # `not >=` so that a cosine that is no number is unclassified as well.
        topics[~(cosines >= np.float32(self.threshold))] = self.topics
        return topics

    def condition_keywords(self, topic: int) -> tuple[str, ...]:
        """Names the keywords a generator is given for a topic in [0, K].

        The unclassified bin has no topic of its own: it gets `fallback_keywords`, the words that
        public topics share most evenly, which say what kind of text it is and not what about.
        """
        return self.fallback_keywords if topic == self.topics else self.keywords[topic]

    def save(self, folder: str | Path) -> None:
        """Writes safetensors, Parquet and, last, the JSON manifest that makes the folder whole."""
        from safetensors.numpy import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST_FILE).unlink(missing_ok=True)
        tensors = {
            "embeddings": np.ascontiguousarray(self.embeddings, dtype=np.float32),
            "threshold": np.array([self.threshold], dtype=np.float32),
        }
        save_file(tensors, folder / TENSORS_FILE)
        table = {
            "topic": list(range(self.topics)),
            "keywords": [list(words) for words in self.keywords],
            "size": self.sizes.tolist(),
        }
        pl.DataFrame(table).write_parquet(folder / TABLE_FILE)
        manifest = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "libraries": {name: version(name) for name in LIBRARIES},
            "topics": self.topics,
            "embedder": self.embedder,
            "fallback_keywords": list(self.fallback_keywords),
            "settings": self.settings.model_dump(mode="json"),
        }
        text = json.dumps(manifest, indent=2, ensure_ascii=False)
        (folder / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> "TopicModel":
        """Reads what `save` wrote.

        Raises:
            TopicModelError: There is no topic model, another version's, or a file is damaged.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        folder = Path(folder)
        try:
            manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
            tensors = load_file(folder / TENSORS_FILE)
            table = pl.read_parquet(folder / TABLE_FILE).to_dict(as_series=False)
            return cls(**_fields(tensors, table, manifest))
        except (
            OSError, ValueError, KeyError, TypeError, SafetensorError, pl.exceptions.PolarsError
        ):  # fmt: skip
            raise TopicModelError(
                f"Expected whole files of one {FORMAT} of version {FORMAT_VERSION} in "
                f"{str(folder)!r}, got none, a missing file, damaged ones, or another version's. "
                "Fit the topic model with this version, or name the folder it was saved to."
            ) from None


def _fields(
    tensors: Mapping[str, np.ndarray], table: Mapping[str, list[Any]], manifest: Mapping[str, Any]
) -> dict[str, Any]:
    if (manifest["format"], manifest["version"]) != (FORMAT, FORMAT_VERSION):
        raise ValueError("Expected this format.")
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
