"""Draws the conditions of public pairs that a generator is trained further on, and writes them.

A document is seen several times, each time under another condition: the keywords of its topic as
fine-tuning gives them, or some of its own, or aspects a language model named; with or without its
type and its label. So the model learns to follow whichever it is given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pair_training.keywords import document_keywords

from dpsynth_assets.models.conditional_generator.encoding import (
    KEYWORDS,
    LABEL,
    aspects_text,
    condition_text,
)

if TYPE_CHECKING:
    import polars as pl

NO_KEYWORDS_SHARE = 0.05
"""Unclassified documents have no topic keywords; the model meets such conditions too."""
FEWEST_KEYWORDS = 3


@dataclass(frozen=True)
class ConditionSource:
    """Aspects of N public documents, and how often each aspect is shown.

    Attributes:
        own_keywords: Most telling words of each document.
        topic_keywords: Keywords of each document's topic; empty tuples where there is none.
        document_types: Type of each document, or empty.
        labels: Label text of each document, or empty.
        aspects: Aspects a language model named, or empty mappings.
        topic_share: Probability of topic keywords where a document has both kinds.
        aspect_share: Probability of a language model's aspects where a document has them.
        detail_share: Probability, each, that type and label are shown.
    """

    own_keywords: tuple[tuple[str, ...], ...] = field(repr=False)
    topic_keywords: tuple[tuple[str, ...], ...] = field(repr=False)
    document_types: tuple[str, ...] = field(repr=False)
    labels: tuple[str, ...] = field(repr=False)
    aspects: tuple[Mapping[str, str], ...] = field(repr=False)
    topic_share: float = 0.5
    aspect_share: float = 0.5
    detail_share: float = 0.5

    @classmethod
    def of(
        cls,
        documents: "pl.DataFrame",
        topic_keywords: Sequence[Sequence[str]] | None,
        aspects: Sequence[Mapping[str, str]] | None,
        topic_share: float,
    ) -> "ConditionSource":
        """Collects what is known of documents.

        Args:
            documents: Columns `text`, optionally `label` and `document_type`; without the latter
                the label says what type a document has.
            topic_keywords: Keywords of each document's topic, or None.
            aspects: What a language model said of each document, or None.
            topic_share: See the class.
        """
        count = documents.height
        labels = _column(documents, "label")
        types = _column(documents, "document_type") or labels
        nothing: list[tuple[str, ...]] = [()] * count
        return cls(
            own_keywords=tuple(document_keywords(documents["text"].to_list())),
            topic_keywords=tuple(tuple(words) for words in (topic_keywords or nothing)),
            document_types=tuple(types or [""] * count),
            labels=tuple(labels or [""] * count),
            aspects=tuple(aspects or [{}] * count),
            topic_share=topic_share,
        )

    def draw(self, document: int, random: np.random.Generator) -> str:
        """One condition for a document."""
        if self.aspects[document] and random.random() < self.aspect_share:
            return self._named_aspects(document, random)
        shows_type, shows_label = random.random(2) < self.detail_share
        return condition_text(
            self._keywords(document, random),
            self.document_types[document] if shows_type else None,
            self.labels[document] if shows_label else None,
        )

    def _keywords(self, document: int, random: np.random.Generator) -> tuple[str, ...]:
        own, topic = self.own_keywords[document], self.topic_keywords[document]
        kind, count = random.random(2)
        if kind < NO_KEYWORDS_SHARE:
            return ()
        if topic and (not own or random.random() < self.topic_share):
            return topic
        kept = FEWEST_KEYWORDS + int(count * max(1, len(own) - FEWEST_KEYWORDS + 1))
        return tuple(own[place] for place in random.permutation(len(own))[:kept])

    def _named_aspects(self, document: int, random: np.random.Generator) -> str:
        """Some of the named aspects, in a random order; keywords always."""
        named = self.aspects[document]
        names = [name for name in named if name == KEYWORDS or random.random() < self.detail_share]
        if self.labels[document] and random.random() < self.detail_share:
            named, names = {**named, LABEL: self.labels[document]}, [*names, LABEL]
        order = random.permutation(len(names))
        return aspects_text({names[place]: named[names[place]] for place in order})


def write_pairs(
    source: ConditionSource, documents: Sequence[str], path: Path, *, draws: int, seed: int = 0
) -> None:
    """Writes a file of pairs: every document under several conditions, in a random order.

    Args:
        source: Conditions of N documents.
        documents: N texts.
        path: Parquet file with columns `condition` and `document`.
        draws: Conditions of each document.
        seed: Public.
    """
    import polars as pl

    random = np.random.default_rng(seed)
    rows = random.permutation(np.tile(np.arange(len(documents)), draws)).tolist()
    pairs = {
        "condition": [source.draw(row, random) for row in rows],
        "document": [documents[row] for row in rows],
    }
    pl.DataFrame(pairs).write_parquet(path, row_group_size=10_000)


def _column(documents: "pl.DataFrame", name: str) -> list[str]:
    if name not in documents.columns:
        return []
    return [str(value or "") for value in documents[name].to_list()]
