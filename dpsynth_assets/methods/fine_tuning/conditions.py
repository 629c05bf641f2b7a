"""Conditions of a generator: what is said of a record in training, and of a row in writing.

Both sides write through `condition_text`, so that what was learned is what is asked for.

Letters: N records, L labels, K topics; bin K holds what no topic fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs
from dpsynth_assets.models.conditional_generator import condition_text

if TYPE_CHECKING:
    from dpsynth_assets.models.topic_model import TopicModel


@dataclass(frozen=True, kw_only=True)
class Conditioning:
    """How conditions of one method are written; public.

    Attributes:
        labels: Declared labels, in order.
        label_texts: How each label reads in a condition; all empty where there is one label.
        document_type: What kind of text the records are; "" if it is not said.
        topic_model: Public topics, whose keywords are given; None for conditions without keywords.
    """

    labels: tuple[str, ...]
    label_texts: tuple[str, ...]
    document_type: str
    topic_model: "TopicModel | None" = None

    def text(self, label: int, topic: int) -> str:
        """Writes the condition of one cell; a negative topic is none."""
        return condition_text(self.keywords(topic), self.document_type, self.label_texts[label])

    def keywords(self, topic: int) -> Sequence[str]:
        """Words that stand for a topic; none where conditions carry none, or for no topic."""
        if self.topic_model is None or topic < 0:
            return ()
        return self.topic_model.condition_keywords(topic)


@dataclass(frozen=True, kw_only=True)
class TrainingPairs:
    """(condition, document) pairs of the private records, in their order. Private.

    Attributes:
        conditions: N texts.
        documents: N texts.
    """

    conditions: list[str] = field(repr=False)
    documents: list[str] = field(repr=False)

    def __len__(self) -> int:
        return len(self.documents)


def conditioning(
    terms: CohortTerms, document_type: str, public: PublicInputs, *, keywords: bool
) -> Conditioning:
    """Reads off declared facts how conditions are written.

    Raises:
        ValueError: If keywords are asked for and there is no topic model.
    """
    if keywords and public.topic_model is None:
        raise ValueError(
            "Expected a topic model, whose keywords conditions carry, got none. Declare "
            "topic_model in the public base."
        )
    texts = terms.label_texts if len(terms.labels) > 1 else ("",) * len(terms.labels)
    return Conditioning(
        labels=terms.labels,
        label_texts=texts,
        document_type=document_type,
        topic_model=public.topic_model if keywords else None,
    )


def training_pairs(private: PrivateInputs, conditioning: Conditioning) -> TrainingPairs:
    """Pairs each record with its condition; records without text or a declared label are left out.

    Raises:
        ValueError: If topics are needed and embeddings are missing or do not match the records.

    **Privacy** A pair depends on its own record and on public values alone: a condition is part of
    what the record's clipped gradient covers, and costs nothing besides (docs/privacy.md). A null
    record, which zero-out neighbours have in place of a record, has no text and contributes no
    gradient: it is as if it were never drawn.

    **Source** CTCL, section 3.3: the ten keywords of the record's topic are its condition.
    """
    index = {label: place for place, label in enumerate(conditioning.labels)}
    labels = [index.get(label, -1) for label in private.records["label"].to_list()]
    topics = _topics(private, conditioning.topic_model)
    texts: dict[tuple[int, int], str] = {}
    conditions, documents = [], []
    for label, topic, text in zip(labels, topics, private.records["text"].to_list(), strict=True):
        if label < 0 or not text.strip():
            continue
        if (label, topic) not in texts:
            texts[label, topic] = conditioning.text(label, topic)
        conditions.append(texts[label, topic])
        documents.append(text)
    return TrainingPairs(conditions=conditions, documents=documents)


def _topics(private: PrivateInputs, topic_model: "TopicModel | None") -> list[int]:
    if topic_model is None:
        return [-1] * private.records.height
    if private.embeddings is None or len(private.embeddings) != private.records.height:
        raise ValueError(
            "Expected one embedding for each private record, got none or another number. Embed "
            "the records again."
        )
    return [int(topic) for topic in topic_model.assign(private.embeddings)]
