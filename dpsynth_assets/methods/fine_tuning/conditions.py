"""Conditions of a generator: keywords and types, from a record in training and a topic in writing.

Both sides write through `condition_text`, so that what was learned is what is asked for.

Letters: N records, L labels, K topics; bin K holds what no topic fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.inputs import UNCOUNTED, PrivateInputs, PublicInputs, counted_labels
from dpsynth_assets.models.conditional_generator.encoding import condition_text, prompt_condition
from dpsynth_assets.models.prompt_templates import PromptTemplates, default_templates

if TYPE_CHECKING:
    from dpsynth_assets.models.topic_model.model import TopicModel

NO_TOPIC = -1
"""Topic of what carries no keywords."""


@dataclass(frozen=True, kw_only=True)
class Conditioning:
    """How conditions of one method are written: aspect lines, or a prompt's words; public.

    Attributes:
        labels: Declared labels, in order.
        label_texts: How each label reads in a condition; all empty where there is one label and
            conditions are aspect lines.
        document_type: What kind of text the records are; "" if it is not said.
        topic_model: Public topics, whose keywords are given; None for conditions without keywords.
        templates: Prompts in which conditions stand in the label's place; None for aspect lines.
    """

    labels: tuple[str, ...]
    label_texts: tuple[str, ...]
    document_type: str
    topic_model: "TopicModel | None" = None
    templates: PromptTemplates | None = None

    def text(self, label: int, topic: int) -> str:
        """Writes the condition of one cell; a negative topic is none."""
        label_text, keywords = self.label_texts[label], self.keywords(topic)
        if self.templates is not None:
            return prompt_condition(label_text, keywords)
        return condition_text(keywords, self.document_type, label_text)

    def public_text(self, topic: int) -> str:
        """Writes the condition of a public document, of which a topic is known at most."""
        keywords = self.keywords(topic)
        return (
            condition_text(keywords) if self.templates is None else prompt_condition("", keywords)
        )

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
    terms: CohortTerms,
    document_type: str,
    public: PublicInputs,
    *,
    keywords: bool,
    templates: PromptTemplates | None = None,
) -> Conditioning:
    """Reads off declared facts how conditions are written.

    Args:
        terms: Labels, and how they read.
        document_type: What kind of text the records are; "" if it is not said.
        public: Holds the topics.
        keywords: Whether conditions carry those of a record's topic.
        templates: Prompts of a language model; None for aspect lines.

    Raises:
        ValueError: If keywords are asked for and there is no topic model.
    """
    said = len(terms.labels) > 1 or templates is not None
    texts = terms.label_texts if said else ("",) * len(terms.labels)
    return Conditioning(
        labels=terms.labels,
        label_texts=texts,
        document_type=document_type,
        topic_model=public.required("topic_model") if keywords else None,
        templates=templates,
    )


def generator_prompts(
    terms: CohortTerms, document_type: str, *, keywords: bool
) -> PromptTemplates | None:
    """Chooses the prompts that a base's language model is fine-tuned and asked with.

    Returns:
        The dataset file's templates; without any, the default ones for `document_type`. None
        where the generator is no language model of the base, which reads aspect lines.

    Raises:
        ValueError: Keywords have no place in the declared templates.
    """
    if terms.generator is None or terms.generator.kind != "language_model":
        return None
    labelled = any(terms.label_texts)
    declared, model = terms.prompts, terms.language_model
    asks = model is None or model.asks
    default = default_templates(terms.domain, labelled=labelled, asks=asks)
    if declared is None or replace(declared, instruction=default.instruction) == default:
        if declared is not None and document_type == terms.domain and (labelled or not keywords):
            return declared
        return default_templates(document_type or "Texts", labelled=labelled or keywords, asks=asks)
    if keywords and declared.public_frame("x") == declared.public_frame("y"):
        raise ValueError(
            "Expected {label} in prompt.public or prompt.response_start, where keywords of a topic "
            "are written, got none. Write it there, or drop prompt."
        )
    return declared


def training_pairs(private: PrivateInputs, conditioning: Conditioning) -> TrainingPairs:
    """Pairs each record with its condition; records without text or a declared label are left out.

    Raises:
        ValueError: If topics are needed and embeddings are missing or do not match the records.

    **Privacy** A pair depends on its own record and on public values alone: a condition is part of
    what the record's clipped gradient covers, and costs nothing besides (docs/proofs.md). A null
    record, which zero-out neighbours have in place of a record, has no text and contributes no
    gradient: it is as if it were never drawn.

    **Source** CTCL, section 3.3 [ctcl S3.3]: the ten keywords of the record's topic are its
    condition.
    """
    labels = counted_labels(private.records, conditioning.labels).tolist()
    topics = [NO_TOPIC] * private.records.height
    if conditioning.topic_model is not None:
        topics = conditioning.topic_model.assign(private.vectors).tolist()
    texts: dict[tuple[int, int], str] = {}
    conditions, documents = [], []
    for label, topic, text in zip(labels, topics, private.records["text"].to_list(), strict=True):
        if label == UNCOUNTED:
            continue
        if (label, topic) not in texts:
            texts[label, topic] = conditioning.text(label, topic)
        conditions.append(texts[label, topic])
        documents.append(text)
    return TrainingPairs(conditions=conditions, documents=documents)
