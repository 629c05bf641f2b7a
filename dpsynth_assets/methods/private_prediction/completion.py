"""Documents that a batch's budget left unfinished: continued from public text, or dropped."""

from collections.abc import Sequence

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.private_prediction.config import PrivatePredictionConfig
from dpsynth_assets.methods.private_prediction.loop import Document
from dpsynth_assets.methods.private_prediction.prompts import public_prompt
from dpsynth_assets.models.decoding import SamplingRules, sample_documents


def completed(
    config: PrivatePredictionConfig,
    terms: CohortTerms,
    public: PublicInputs,
    documents: Sequence[Document],
    labels: Sequence[int],
) -> list[Document]:
    """Finishes or drops unfinished documents, in place.

    The continuation is sampled at the method's temperature. Every one fits the model's attention
    where a public prompt and a document of full length do (`checked`).

    Args:
        config: Lengths, temperature, and whether to finish or to drop.
        terms: Declared labels.
        public: Language model and seed.
        documents: All documents of a run.
        labels: Index of each document's label.

    **Privacy** The continuation reads a label and tokens that are already released.
    """
    if config.on_exhaustion == "drop":
        return [document for document in documents if document.finished]
    model = public.language_model
    starts = [public_prompt(model, text) for text in terms.label_texts]
    unfinished = [
        (document, starts[label])
        for document, label in zip(documents, labels, strict=True)
        if not document.finished
    ]
    continued = sample_documents(
        model.model,
        [start + document.tokens for document, start in unfinished],
        end_token_id=model.end_token_id,
        pad_token_id=model.pad_token_id,
        max_new_tokens=[config.max_document_tokens - len(d.tokens) for d, _ in unfinished],
        rules=SamplingRules(temperature=config.temperature, seed=public.seed),
    )
    for (document, _), continuation in zip(unfinished, continued, strict=True):
        document.tokens += continuation.tokens
    return list(documents)
