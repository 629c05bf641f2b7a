"""From placed records to a corpus: passes of the loop, then rows and facts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.inputs import PassStore, ProgressCallback, PublicInputs
from dpsynth_assets.methods.private_prediction.batching import Batch, PrivateBatch
from dpsynth_assets.methods.private_prediction.config import PrivatePredictionConfig
from dpsynth_assets.methods.private_prediction.declared_batches import DeclaredBatches
from dpsynth_assets.methods.private_prediction.decoding import constraint_of, decoder_of
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
from dpsynth_assets.methods.rejection_sampling import RowFilter, kept_rows
from dpsynth_assets.methods.stages import SyntheticCorpus
from dpsynth_assets.methods.text_form import TextForm
from dpsynth_assets.models.decoding import Decoder, public_prefix, sample_documents
from dpsynth_assets.models.engines import Sampling

if TYPE_CHECKING:
    import polars as pl

SelectorFactory = Callable[[Sequence[int]], TokenSelector]
"""Makes the selector of one pass, given the indices of its batches."""


@dataclass(frozen=True, kw_only=True)
class GenerationTask:
    """One run of a method: its batches and its inputs, all public.

    Attributes:
        declared: The batches.
        public: Public inputs.
        tokens_per_batch: Private tokens of a batch.
        form: What a text has to be.
        kept: Decides which rows are left out.
    """

    declared: DeclaredBatches
    public: PublicInputs
    tokens_per_batch: int
    form: TextForm
    kept: RowFilter

    @property
    def config(self) -> PrivatePredictionConfig:
        """The method's settings."""
        return self.declared.config

    @property
    def terms(self) -> CohortTerms:
        """The cohort's declared terms."""
        return self.declared.terms

    @cached_property
    def decoder(self) -> Decoder:
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
        constraint = constraint_of(self.terms, model)
        most = config.most_tokens
        if most is None and constraint is not None:  # Every document costs a token.
            most = self.tokens_per_batch * config.max_document_tokens
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
            max_tokens_per_batch=most,
            rows_per_pass=self.declared.rows_per_pass,
            constraint=constraint,
        )


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How the passes of one run are drawn, by whichever process.

    Attributes:
        task: Settings and public inputs.
        selector: Makes the selector of each pass.
        with_public_prompts: Whether the selector compares with each label's public prompt.
        costs: Realised cost of each draw, which the selector fills in; kept with a pass. None where
            the cost is planned.
    """

    task: GenerationTask
    selector: SelectorFactory
    with_public_prompts: bool = False
    costs: RealisedCosts | None = None


def generate_corpus(
    drawing: Drawing,
    batches: Sequence[PrivateBatch],
    progress: ProgressCallback,
    passes: PassStore | None = None,
) -> SyntheticCorpus:
    """Runs the loop over all batches, pass by pass, and writes rows and facts.

    Args:
        drawing: How passes are drawn.
        batches: Private batches, empty ones included.
        progress: Told how far it is: of draws, what is kept of them (`PassProgress`).
        passes: Where finished passes are kept; they are not run again.

    **Privacy** As `written_corpus`.
    """
    task = drawing.task
    parts = parts_of(batches, task.config.batches_per_forward)
    told = PassProgress(len(parts), len(batches), task.rules, progress)
    finished = run_passes(task.decoder, parts, lambda part: _run_pass(drawing, part, told, passes))
    return written_corpus(drawing, batches, finished)


def written_corpus(
    drawing: Drawing, batches: Sequence[Batch], finished: Sequence[Mapping[str, Any]]
) -> SyntheticCorpus:
    """Writes rows and facts of a run from the values of all its passes, in their order.

    **Privacy** Rows and facts are functions of drawn tokens and public settings. Realised costs
    are not: they go into `internal` alone.
    """
    task, costs = drawing.task, drawing.costs
    kept = [fields for values in finished for fields in values["documents"]]
    documents = [Document(**{**fields, "tokens": list(fields["tokens"])}) for fields in kept]
    drawn = sum((np.array(values["drawn"]) for values in finished), np.zeros(2, dtype=np.int64))
    unfinished = sum(not document.finished for document in documents)
    internal = {} if costs is None else {"token_cost_by_position": costs.by_position(documents)}
    labels = [batches[document.batch].label for document in documents]
    written = completed(task, documents, labels)
    rows, judged = kept_rows(_rows(task, batches, written), task.kept)
    facts = {
        "rows": len(rows),
        "tokens": int(rows["n_tokens"].sum()),
        "batches": len(batches),
        "private_tokens": int(drawn[0]),
        "public_tokens": int(drawn[1]),
        "tokens_per_batch": task.rules.tokens_per_batch,
        "unfinished_documents": unfinished,
        **judged,
    }
    return SyntheticCorpus(rows=rows, facts=facts, internal=internal)


def _run_pass(
    drawing: Drawing, part: Part[PrivateBatch], told: PassProgress, passes: PassStore | None
) -> Mapping[str, Any]:
    """Runs one pass, or reads it back; returns its values."""
    known = passes.load(part.number) if passes is not None else None
    if known is not None:
        if drawing.costs is not None:
            drawing.costs.restore(part.own, known)
        told.finish(0, np.array(known["drawn"]))
        return known
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1
        told.step(steps)

    values: Mapping[str, Any] = draw_pass(drawing, part, count)
    if passes is not None:
        passes.save(part.number, dict(values))
        kept = passes.load(part.number)  # Another process may have kept this pass before.
        if kept is not None and kept != values:
            values = kept
            if drawing.costs is not None:
                drawing.costs.restore(part.own, values)
    told.finish(steps, np.array(values["drawn"]) if passes is not None else None)
    return values


def draw_pass(
    drawing: Drawing, part: Part[PrivateBatch], on_step: Callable[[], None] | None = None
) -> dict[str, Any]:
    """Draws one pass; returns JSON values: documents, (private, public) tokens, and costs.

    Args:
        drawing: How it is drawn.
        part: Its batches, empty ones included.
        on_step: Told of each step.

    **Privacy** Noise comes from the entropy of the process that draws. The values are part of the
    release that was paid for; their costs, if any, are private for good.
    """
    task, drawn = drawing.task, np.zeros(2, dtype=np.int64)

    def count(private: int, public: int) -> None:
        drawn[:] += private, public
        if on_step is not None:
            on_step()

    select = drawing.selector([batch.index for batch in part.batches])
    prompts = [_prompts(task, batch, task.rules.prompt_columns) for batch in part.batches]
    documents = generate_documents(
        task.decoder,
        prompts,
        select,
        task.rules,
        count,
        _public_prompts(task, part.batches) if drawing.with_public_prompts else None,
        public_prefixes=_public_prefixes(task),
        row_keys=[key for batch in part.batches for key in batch.keys],
    )
    for document in documents:
        document.batch += part.start
    return {
        "documents": [asdict(document) for document in documents],
        "drawn": drawn.tolist(),
        **({} if drawing.costs is None else drawing.costs.kept(part.own)),
    }


def _prompts(task: GenerationTask, batch: PrivateBatch, columns: int) -> list[list[int]]:
    return context_prompts(
        task.public.language_model,
        task.terms.label_texts[batch.label],
        batch.contexts,
        max_example_tokens=task.config.max_example_tokens,
        columns=columns,
    )


def _public_prompts(task: GenerationTask, batches: Sequence[Batch]) -> list[list[int]]:
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

    Where a schema constrains texts, one that its greatest length cut off is dropped in any case.
    The continuation is sampled at the method's temperature. Every one fits the model's attention
    where a public prompt and a document of full length do (`preconditions`).

    Args:
        task: Settings and public inputs.
        documents: All documents of a run.
        labels: Index of each document's label.

    **Privacy** The continuation reads a label and tokens that are already released.
    """
    config, model = task.config, task.public.language_model
    constraint = task.rules.constraint
    if config.on_exhaustion == "drop":
        finished = [document for document in documents if document.finished]
        return _valid(task, finished)
    starts = [public_prompt(model, text) for text in task.terms.label_texts]
    unfinished = [
        (document, starts[label])
        for document, label in zip(documents, labels, strict=True)
        if not document.finished
    ]
    continued = sample_documents(
        task.decoder,
        [start + document.tokens for document, start in unfinished],
        Sampling(temperature=config.temperature, seed=task.public.seed),
        end_token_id=model.end_token_id,
        pad_token_id=model.pad_token_id,
        limits=[config.max_document_tokens - len(d.tokens) for d, _ in unfinished],
        texts=[constraint.open(document.tokens) for document, _ in unfinished]
        if constraint is not None
        else None,
    )
    for (document, _), continuation in zip(unfinished, continued, strict=True):
        document.tokens += continuation.tokens
    return _valid(task, documents)


def _valid(task: GenerationTask, documents: Sequence[Document]) -> list[Document]:
    """Those whose text is a valid record of the schema; all where none is declared."""
    constraint, decode = task.rules.constraint, task.public.language_model.decode
    return [
        document
        for document in documents
        if constraint is None or constraint.is_followed(decode(document.tokens))
    ]


def _rows(
    task: GenerationTask, batches: Sequence[Batch], documents: Sequence[Document]
) -> "pl.DataFrame":
    """Decodes documents; drops those that are blank."""
    owners = [batches[document.batch] for document in documents]
    return corpus_rows(
        task.public.language_model,
        task.form,
        longest=task.config.max_document_tokens,
        tokens=[document.tokens for document in documents],
        labels=[task.terms.labels[batch.label] for batch in owners],
        batches=[batch.index for batch in owners],
        clusters=[batch.cluster for batch in owners],
    )


def corpus_rows(
    language_model: Any,
    form: TextForm,
    *,
    longest: int,
    tokens: Sequence[Sequence[int]],
    labels: Sequence[str],
    batches: Sequence[int | None],
    clusters: Sequence[int | None],
) -> "pl.DataFrame":
    """Builds a corpus's rows: `text`, `label`, `batch`, `cluster`, `n_tokens`; no blank text.

    `n_tokens` counts what was drawn, also where less of it is of the form.
    """
    import polars as pl

    rows = pl.DataFrame(
        {
            "text": [
                form.read(language_model.decode(ids).strip(), ended=len(ids) < longest)
                for ids in tokens
            ],
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
