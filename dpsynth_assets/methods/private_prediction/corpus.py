"""From a cohort to a corpus: the steps that mean and median share around the loop."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dpsynth_assets.methods.base import (
    CohortTerms,
    MethodPlan,
    PassStore,
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
    fill_slots,
    label_batch_counts,
    uniform_batch_counts,
)
from dpsynth_assets.methods.private_prediction.cluster_histogram import (
    ClusterHistogram,
    assign_clusters,
    label_indices,
)
from dpsynth_assets.methods.private_prediction.config import (
    PrivatePredictionConfig,
    UniformBatchesConfig,
)
from dpsynth_assets.methods.private_prediction.loop import (
    Document,
    GenerationRules,
    TokenSelector,
    generate_documents,
)
from dpsynth_assets.methods.private_prediction.passes import (
    DrawCounter,
    Part,
    parts_of,
    run_passes,
)
from dpsynth_assets.methods.private_prediction.plan import batches_per_label
from dpsynth_assets.methods.private_prediction.prompts import (
    context_prompts,
    prompt_columns,
    public_prompt,
)
from dpsynth_assets.methods.private_prediction.realised_costs import RealisedCosts
from dpsynth_assets.models.decoding import SamplingRules, public_prefix, sample_documents
from dpsynth_assets.privacy.errors import UndeclaredPublicFactError

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
    labels = label_indices(private.records["label"].to_list(), task.terms.labels)
    clusters = assign_clusters(private.embeddings, labels, centers, histogram.centers)
    if task.config.batching == "slots":
        kept = [(label, center) for label, own in enumerate(histogram.centers) for center in own]
        return _filled(task, private.records, labels, clusters, kept)
    cells = batch_counts(
        histogram,
        expected_batch_size=task.config.expected_batch_size,
        examples_per_context=task.config.examples_per_context,
        max_batches=task.config.max_batches,
    )
    return _assigned(task, private.records, labels, clusters, cells)


def uniform_batches(task: GenerationTask, private: PrivateInputs) -> list[PrivateBatch]:
    """Batches within the label, in a public, declared or released number."""
    labels = label_indices(private.records["label"].to_list(), task.terms.labels)
    if task.config.batching == "slots":
        cells = [(label, None) for label in range(len(task.terms.labels))]
        return _filled(task, private.records, labels, None, cells)
    return _assigned(task, private.records, labels, None, _uniform_cells(task))


def _uniform_cells(task: GenerationTask) -> tuple[BatchCell, ...]:
    config = cast("UniformBatchesConfig", task.config)
    per_label = batches_per_label(config, task.terms)
    if per_label is not None:
        return uniform_batch_counts(len(task.terms.labels), per_label, config.max_batches)
    return label_batch_counts(
        released_histogram(task),
        expected_batch_size=config.expected_batch_size,
        examples_per_context=config.examples_per_context,
        max_batches=config.max_batches,
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
        progress: Told the share of private tokens drawn.
        with_public_prompts: Whether the selector compares with each label's public prompt.
        passes: Where finished passes are kept; they are not run again.
        costs: Realised cost of each draw, which the selector fills in; kept with a pass.

    **Privacy** Rows and facts are functions of drawn tokens and public settings. Realised costs
    are not: they go into `internal` alone.
    """
    counter = DrawCounter(task.rules.tokens_per_batch * len(batches), progress)
    finished = run_passes(
        task.public.language_model.model,
        parts_of(batches, task.config.batches_per_forward),
        lambda part: _run_pass(
            task, part, selector, counter.add, with_public_prompts, passes, costs
        ),
    )
    documents = [document for written, _ in finished for document in written]
    drawn = sum((counts for _, counts in finished), np.zeros(2, dtype=np.int64))
    unfinished = sum(not document.finished for document in documents)
    internal = {} if costs is None else {"token_cost_by_position": costs.by_position(documents)}
    completed = _complete(task, batches, documents)
    rows = _rows(task, batches, completed)
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
    on_step: Callable[[int, int], None],
    with_public_prompts: bool,
    passes: PassStore | None,
    costs: RealisedCosts | None,
) -> tuple[list[Document], np.ndarray]:
    """Runs one pass, or reads it back; returns its documents and its (private, public) tokens."""
    known = passes.load(part.number) if passes is not None else None
    if known is not None:
        if costs is not None:
            costs.restore(part.own, known)
        on_step(*known["drawn"])
        return [Document(**fields) for fields in known["documents"]], np.array(known["drawn"])
    drawn = np.zeros(2, dtype=np.int64)

    def count(private: int, public: int) -> None:
        drawn[:] += private, public
        on_step(private, public)

    select = selector([batch.index for batch in part.batches])
    prompts = [_prompts(task, batch, task.rules.prompt_columns) for batch in part.batches]
    public = _public_prompts(task, part.batches) if with_public_prompts else None
    model = task.public.language_model.model
    documents = generate_documents(
        model, prompts, select, task.rules, count, public, public_prefixes=_public_prefixes(task)
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
    return documents, drawn


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


def _filled(
    task: GenerationTask,
    records: "pl.DataFrame",
    labels: np.ndarray,
    clusters: np.ndarray | None,
    cells: Sequence[tuple[int, int | None]],
) -> list[PrivateBatch]:
    if not task.terms.public_slots:
        raise UndeclaredPublicFactError(
            "Expected public_facts.slots in the dataset file for batching: slots, got none. "
            "Declare it, or use batching: hashed."
        )
    return fill_slots(
        records,
        labels,
        clusters,
        cells,
        expected_batch_size=task.config.expected_batch_size,
        examples_per_context=task.config.examples_per_context,
        max_batches=task.config.max_batches,
    )


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
