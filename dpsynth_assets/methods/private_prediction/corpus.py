"""From placed records to a corpus: passes of the loop, then rows and facts."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.inputs import PassStore, ProgressCallback, PublicInputs
from dpsynth_assets.methods.private_prediction.batching import PrivateBatch
from dpsynth_assets.methods.private_prediction.config import PrivatePredictionConfig
from dpsynth_assets.methods.private_prediction.declared_batches import DeclaredBatches
from dpsynth_assets.methods.private_prediction.decoding import decoder_of
from dpsynth_assets.methods.private_prediction.loop import (
    Document,
    GenerationRules,
    TokenSelector,
    generate_documents,
)
from dpsynth_assets.methods.private_prediction.passes import (
    Part,
    PassProgress,
    parts_of,
    run_passes,
)
from dpsynth_assets.methods.private_prediction.preconditions import check_slack
from dpsynth_assets.methods.private_prediction.prompts import (
    context_prompts,
    prompt_columns,
    public_prompt,
)
from dpsynth_assets.methods.private_prediction.realised_costs import RealisedCosts
from dpsynth_assets.methods.stages import SyntheticCorpus
from dpsynth_assets.models.decoding import SamplingRules, public_prefix, sample_documents

if TYPE_CHECKING:
    import polars as pl

SelectorFactory = Callable[[Sequence[int]], TokenSelector]
"""Makes the selector of one pass, given the indices of its batches."""


@dataclass(frozen=True, kw_only=True)
class GenerationTask:
    """One run of a method: its batches and its inputs, all public."""

    declared: DeclaredBatches
    public: PublicInputs
    tokens_per_batch: int

    @property
    def config(self) -> PrivatePredictionConfig:
        """The method's settings."""
        return self.declared.config

    @property
    def terms(self) -> CohortTerms:
        """The cohort's declared terms."""
        return self.declared.terms

    @cached_property
    def decoder(self) -> Any:
        """What decodes prompts."""
        model = self.public.language_model
        decoder = decoder_of(self.terms, model)
        # No caller may draw with rounding that is not charged.
        check_slack(self.config, self.terms, model, decoder)
        return decoder

    @cached_property
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
            max_tokens_per_batch=getattr(config, "max_tokens_per_batch", None),
            rows_per_pass=self.declared.rows_per_pass,
        )


def generate_corpus(
    task: GenerationTask,
    batches: Sequence[PrivateBatch],
    selector: SelectorFactory,
    progress: ProgressCallback,
    *,
    with_public_prompts: bool = False,
    passes: PassStore | None = None,
    costs: RealisedCosts | None = None,
) -> SyntheticCorpus:
    """Runs the loop over all batches, pass by pass, and writes rows and facts.

    Args:
        task: Settings and public inputs.
        batches: Private batches, empty ones included.
        selector: Makes the selector of each pass.
        progress: Told how far it is: of draws, what is kept of them (`PassProgress`).
        with_public_prompts: Whether the selector compares with each label's public prompt.
        passes: Where finished passes are kept; they are not run again.
        costs: Realised cost of each draw, which the selector fills in; kept with a pass.

    **Privacy** Rows and facts are functions of drawn tokens and public settings. Realised costs
    are not: they go into `internal` alone.
    """
    parts = parts_of(batches, task.config.batches_per_forward)
    told = PassProgress(len(parts), len(batches), task.rules, progress)
    finished = run_passes(
        task.decoder,
        parts,
        lambda part: _run_pass(task, part, selector, told, with_public_prompts, passes, costs),
    )
    documents = [document for ended, _ in finished for document in ended]
    drawn = sum((counts for _, counts in finished), np.zeros(2, dtype=np.int64))
    unfinished = sum(not document.finished for document in documents)
    internal = {} if costs is None else {"token_cost_by_position": costs.by_position(documents)}
    labels = [batches[document.batch].label for document in documents]
    written = completed(task, documents, labels)
    rows = _rows(task, batches, written)
    facts = {
        "rows": len(rows),
        "tokens": int(rows["n_tokens"].sum()),
        "batches": len(batches),
        "private_tokens": int(drawn[0]),
        "public_tokens": int(drawn[1]),
        "tokens_per_batch": task.rules.tokens_per_batch,
        "unfinished_documents": unfinished,
    }
    return SyntheticCorpus(rows=rows, facts=facts, internal=internal)


def _run_pass(
    task: GenerationTask,
    part: Part,
    selector: SelectorFactory,
    told: PassProgress,
    with_public_prompts: bool,
    passes: PassStore | None,
    costs: RealisedCosts | None,
) -> tuple[list[Document], np.ndarray]:
    """Runs one pass, or reads it back; returns its documents and its (private, public) tokens."""
    known = passes.load(part.number) if passes is not None else None
    if known is not None:
        if costs is not None:
            costs.restore(part.own, known)
        told.finish(0, np.array(known["drawn"]))
        return [Document(**fields) for fields in known["documents"]], np.array(known["drawn"])
    drawn, steps = np.zeros(2, dtype=np.int64), 0

    def count(private: int, public: int) -> None:
        nonlocal steps
        drawn[:] += private, public
        steps += 1
        told.step(steps)

    select = selector([batch.index for batch in part.batches])
    prompts = [_prompts(task, batch, task.rules.prompt_columns) for batch in part.batches]
    public = _public_prompts(task, part.batches) if with_public_prompts else None
    documents = generate_documents(
        task.decoder,
        prompts,
        select,
        task.rules,
        count,
        public,
        public_prefixes=_public_prefixes(task),
        row_keys=[key for batch in part.batches for key in batch.keys],
    )
    for document in documents:
        document.batch += part.start
    if passes is not None:
        values = {
            "documents": [asdict(document) for document in documents],
            "drawn": drawn.tolist(),
            **({} if costs is None else costs.kept(part.own)),
        }
        passes.save(part.number, values)
    told.finish(steps, drawn if passes is not None else None)
    return documents, drawn


def _prompts(task: GenerationTask, batch: PrivateBatch, columns: int) -> list[list[int]]:
    return context_prompts(
        task.public.language_model,
        task.terms.label_texts[batch.label],
        batch.contexts,
        max_example_tokens=task.config.max_example_tokens,
        columns=columns,
    )


def _public_prompts(task: GenerationTask, batches: Sequence[PrivateBatch]) -> list[list[int]]:
    """The prompt without examples of each batch's label."""
    texts = task.terms.label_texts
    return [public_prompt(task.public.language_model, texts[batch.label]) for batch in batches]


def _public_prefixes(task: GenerationTask) -> list[list[int]]:
    """What every private prompt of a label begins with, whatever its examples: read once."""
    model, config = task.public.language_model, task.config

    def prompt_of(label_text: str, example: str) -> list[int]:
        examples = [example] * config.examples_per_context
        ids: list[int] = model.prompt_ids(label_text, examples, config.max_example_tokens)
        return ids

    return [public_prefix(partial(prompt_of, text)) for text in task.terms.label_texts]


def completed(
    task: GenerationTask, documents: Sequence[Document], labels: Sequence[int]
) -> list[Document]:
    """Finishes unfinished documents from public text, in place, or drops them.

    The continuation is sampled at the method's temperature. Every one fits the model's attention
    where a public prompt and a document of full length do (`preconditions`).

    Args:
        task: Settings and public inputs.
        documents: All documents of a run.
        labels: Index of each document's label.

    **Privacy** The continuation reads a label and tokens that are already released.
    """
    config, model = task.config, task.public.language_model
    if config.on_exhaustion == "drop":
        return [document for document in documents if document.finished]
    starts = [public_prompt(model, text) for text in task.terms.label_texts]
    unfinished = [
        (document, starts[label])
        for document, label in zip(documents, labels, strict=True)
        if not document.finished
    ]
    continued = sample_documents(
        task.decoder,
        [start + document.tokens for document, start in unfinished],
        end_token_id=model.end_token_id,
        pad_token_id=model.pad_token_id,
        max_new_tokens=[config.max_document_tokens - len(d.tokens) for d, _ in unfinished],
        rules=SamplingRules(temperature=config.temperature, seed=task.public.seed),
    )
    for (document, _), continuation in zip(unfinished, continued, strict=True):
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
