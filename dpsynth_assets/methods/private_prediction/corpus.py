"""From a cohort to a corpus: the steps that mean and median share around the loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dpsynth_assets.methods.base import (
    CohortTerms,
    MethodPlan,
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
    SyntheticCorpus,
)
from dpsynth_assets.methods.private_prediction.batching import (
    BatchCell,
    PrivateBatch,
    assign_records,
    batch_counts,
)
from dpsynth_assets.methods.private_prediction.cluster_histogram import (
    ClusterHistogram,
    assign_clusters,
    label_indices,
)
from dpsynth_assets.methods.private_prediction.config import PrivatePredictionConfig
from dpsynth_assets.methods.private_prediction.loop import (
    Document,
    GenerationRules,
    TokenSelector,
    generate_documents,
)
from dpsynth_assets.methods.private_prediction.prompts import (
    context_prompts,
    prompt_columns,
    public_prompt,
)
from dpsynth_assets.models.decoding import SamplingRules, sample_documents

if TYPE_CHECKING:
    import polars as pl

SelectorFactory = Callable[[Sequence[int]], TokenSelector]
"""Makes the selector of one pass, given the indices of its batches."""


@dataclass(frozen=True, kw_only=True)
class GenerationTask:
    """One run of a method: settings and inputs, public but for `batches`."""

    config: PrivatePredictionConfig
    terms: CohortTerms
    public: PublicInputs
    tokens_per_batch: int

    @property
    def rules(self) -> GenerationRules:
        """The loop's public rules."""
        model, config = self.public.language_model, self.config
        return GenerationRules(
            tokens_per_batch=self.tokens_per_batch,
            max_document_tokens=config.max_document_tokens,
            min_tokens_for_new_document=config.min_tokens_for_new_document,
            end_token_id=model.end_token_id,
            pad_token_id=model.pad_token_id,
            prompt_columns=prompt_columns(
                model,
                self.terms.label_texts,
                config.examples_per_context,
                config.max_example_tokens,
            ),
        )


def clustered_batches(task: GenerationTask, private: PrivateInputs) -> list[PrivateBatch]:
    """Batches within (label, public cluster), in numbers read off the released histogram.

    Raises:
        ValueError: If centres, histogram or embeddings are missing, or the histogram's labels are
            not the declared ones.
    """
    histogram, centers = released_histogram(task), task.public.cluster_centers
    if centers is None or private.embeddings is None:
        raise ValueError(
            "Expected cluster centres and embeddings, got one or both missing. "
            "Materialise public_clusters and private_embeddings first."
        )
    cells = batch_counts(
        histogram,
        expected_batch_size=task.config.expected_batch_size,
        examples_per_context=task.config.examples_per_context,
        max_batches=task.config.max_batches,
    )
    labels = label_indices(private.records["label"].to_list(), task.terms.labels)
    clusters = assign_clusters(private.embeddings, labels, centers, histogram.centers)
    return _assigned(task, private.records, labels, clusters, cells)


def uniform_batches(
    task: GenerationTask, private: PrivateInputs, cells: Sequence[BatchCell]
) -> list[PrivateBatch]:
    """Batches within the label, in a public number."""
    labels = label_indices(private.records["label"].to_list(), task.terms.labels)
    return _assigned(task, private.records, labels, None, cells)


def generate_corpus(
    task: GenerationTask,
    batches: Sequence[PrivateBatch],
    selector: SelectorFactory,
    progress: ProgressCallback,
) -> SyntheticCorpus:
    """Runs the loop over all batches, pass by pass, and writes rows and facts.

    **Privacy** Rows and facts are functions of drawn tokens and public settings.
    """
    rules = task.rules
    planned = max(1, rules.tokens_per_batch * len(batches))
    drawn = 0

    def on_step(tokens: int) -> None:
        nonlocal drawn
        drawn += tokens
        progress(min(1.0, drawn / planned), f"{drawn} of at most {planned} private tokens")

    documents: list[Document] = []
    for start in range(0, len(batches), task.config.batches_per_forward):
        part = batches[start : start + task.config.batches_per_forward]
        select = selector([batch.index for batch in part])
        prompts = [_prompts(task, batch, rules.prompt_columns) for batch in part]
        model = task.public.language_model.model
        for document in generate_documents(model, prompts, select, rules, on_step):
            document.batch += start
            documents.append(document)
    completed = _complete(task, batches, documents)
    rows = _rows(task, batches, completed)
    facts = {
        "rows": len(rows),
        "tokens": int(rows["n_tokens"].sum()),
        "batches": len(batches),
        "private_tokens": drawn,
        "tokens_per_batch": rules.tokens_per_batch,
        "unfinished_documents": sum(not document.finished for document in documents),
    }
    return SyntheticCorpus(rows=rows, facts=facts)


def released_histogram(task: GenerationTask) -> ClusterHistogram:
    """The released histogram of this cohort.

    Raises:
        ValueError: If there is none, or its labels are not the declared ones.
    """
    histogram = task.public.cluster_histogram
    if histogram is None:
        raise ValueError(
            "Expected a released cluster histogram, got none. Declare cluster_histogram in the "
            "dataset file and materialise it, or set batches_per_label."
        )
    _check_labels(histogram, task.terms)
    return cast("ClusterHistogram", histogram)


def _check_labels(histogram: ClusterHistogram, terms: CohortTerms) -> None:
    if histogram.labels != terms.labels:
        raise ValueError(
            f"Expected a histogram over the declared labels {list(terms.labels)}, got one over "
            f"{list(histogram.labels)}. Materialise the cluster histogram again."
        )


def _assigned(
    task: GenerationTask,
    records: "pl.DataFrame",
    labels: np.ndarray,
    clusters: np.ndarray | None,
    cells: Sequence[BatchCell],
) -> list[PrivateBatch]:
    return assign_records(
        records,
        labels,
        clusters,
        cells,
        expected_batch_size=task.config.expected_batch_size,
        examples_per_context=task.config.examples_per_context,
        salt=task.public.salt,
    )


def _prompts(task: GenerationTask, batch: PrivateBatch, columns: int) -> list[list[int]]:
    return context_prompts(
        task.public.language_model,
        task.terms.label_texts[batch.label],
        batch.contexts,
        max_example_tokens=task.config.max_example_tokens,
        columns=columns,
    )


def _complete(
    task: GenerationTask, batches: Sequence[PrivateBatch], documents: Sequence[Document]
) -> list[Document]:
    """Finishes or drops documents that their batch's budget left unfinished, in place.

    The continuation is sampled at the method's temperature.

    **Privacy** The continuation reads a label and tokens that are already released.
    """
    if task.config.on_exhaustion == "drop":
        return [document for document in documents if document.finished]
    open_documents = [document for document in documents if not document.finished]
    model = task.public.language_model
    starts = {
        label: public_prompt(model, text) for label, text in enumerate(task.terms.label_texts)
    }
    continued = sample_documents(
        model.model,
        [starts[batches[d.batch].label] + d.tokens for d in open_documents],
        end_token_id=model.end_token_id,
        pad_token_id=model.pad_token_id,
        max_new_tokens=[task.config.max_document_tokens - len(d.tokens) for d in open_documents],
        rules=SamplingRules(temperature=task.config.temperature, seed=task.public.seed),
    )
    for document, continuation in zip(open_documents, continued, strict=True):
        document.tokens += continuation.tokens
    return list(documents)


def _rows(
    task: GenerationTask, batches: Sequence[PrivateBatch], documents: Sequence[Document]
) -> "pl.DataFrame":
    """Decodes documents; drops those that are blank."""
    owners = [batches[document.batch] for document in documents]
    return corpus_rows(
        task.public.language_model,
        tokens=[document.tokens for document in documents],
        labels=[task.terms.labels[batch.label] for batch in owners],
        batches=[batch.index for batch in owners],
        clusters=[batch.cluster for batch in owners],
    )


def corpus_rows(
    language_model: Any,
    *,
    tokens: Sequence[Sequence[int]],
    labels: Sequence[str],
    batches: Sequence[int | None],
    clusters: Sequence[int | None],
) -> "pl.DataFrame":
    """Builds a corpus's rows: `text`, `label`, `batch`, `cluster`, `n_tokens`; no blank text."""
    import polars as pl

    rows = pl.DataFrame(
        {
            "text": [language_model.decode(ids).strip() for ids in tokens],
            "label": list(labels),
            "batch": list(batches),
            "cluster": list(clusters),
            "n_tokens": [len(ids) for ids in tokens],
        },
        schema={
            "text": pl.String,
            "label": pl.String,
            "batch": pl.Int32,
            "cluster": pl.Int32,
            "n_tokens": pl.Int32,
        },
    )
    return rows.filter(pl.col("text") != "")


def planned_tokens(plan: MethodPlan) -> int:
    """Reads r off a plan. Raises ValueError if the plan refused."""
    if plan.refusal is not None or plan.tokens_per_batch is None:
        raise ValueError(f"Expected a plan that can run, got a refusal: {plan.refusal}")
    return plan.tokens_per_batch
