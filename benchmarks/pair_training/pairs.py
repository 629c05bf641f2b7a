"""Draws the conditions of pretraining pairs, and batches of pairs of similar length.

A document is seen several times, each time under another condition: the keywords of its topic as
fine-tuning gives them, or some of its own, or aspects a language model named; with or without its
type and its label. So the model learns to follow whichever it is given.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
POOL_BATCHES = 24
"""Batches are cut from this many batches' worth of documents sorted by length."""


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

    def like_fine_tuning(self, document: int) -> str:
        """The condition fine-tuning will give: label, and the topic's keywords where known."""
        words = self.topic_keywords[document] or self.own_keywords[document]
        return condition_text(words, None, self.labels[document])

    def all_own_keywords(self, document: int) -> str:
        """Label and the document's own keywords, all of them."""
        return condition_text(self.own_keywords[document], None, self.labels[document])

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


def length_sorted_batches(
    lengths: Sequence[int], batch_tokens: int, random: np.random.Generator
) -> Iterator[np.ndarray]:
    """Endless batches of document indices, every document once an epoch.

    Args:
        lengths: Tokens of each document.
        batch_tokens: Bound on rows times longest document of a batch, one document at least.
        random: Public randomness.
    """
    sizes = np.asarray(lengths)
    pool = max(1, POOL_BATCHES * batch_tokens // max(1, int(sizes.mean())))
    while True:
        order = random.permutation(len(sizes))
        for start in range(0, len(order), pool):
            part = order[start : start + pool]
            batches = _cut(part[np.argsort(sizes[part], kind="stable")], sizes, batch_tokens)
            for place in random.permutation(len(batches)):
                yield batches[place]


def _cut(ordered: np.ndarray, sizes: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Cuts documents in order of length into batches that fit the bound."""
    batches, start = [], 0
    for end in range(1, len(ordered) + 1):
        longest = sizes[ordered[end - 1]]
        if end - start > 1 and longest * (end - start) > batch_tokens:
            batches.append(ordered[start : end - 1])
            start = end - 1
    return [*batches, ordered[start:]]


def _column(documents: "pl.DataFrame", name: str) -> list[str]:
    if name not in documents.columns:
        return []
    return [str(value or "") for value in documents[name].to_list()]
