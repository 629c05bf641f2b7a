"""Collects the rows and facts of a corpus from all passes of the generation loop."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import polars as pl

from dpsynth_assets.methods.base import form_of, mechanism_of
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.private_prediction.decoding import (
    constraint_of,
    context_prompts,
    prompt_columns,
    public_prompt,
)
from dpsynth_assets.methods.private_prediction.loop import (
    Document,
    GenerationRules,
    TokenSelector,
    generate_documents,
)
from dpsynth_assets.methods.private_prediction.preconditions import charged_decoder
from dpsynth_assets.methods.private_prediction.split_batches import (
    PrivateBatch,
    RunBatches,
)
from dpsynth_assets.methods.rejection_sampling import RowFilter, kept_rows
from dpsynth_assets.methods.stages import Mechanism, Stage, SyntheticCorpus
from dpsynth_assets.models.decoding import Decoder, public_prefix, sample_documents
from dpsynth_assets.models.engines.protocol import Sampling
from dpsynth_assets.models.row_rules import TextForm
from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.token_selection import PrivateTokenMeter

if TYPE_CHECKING:
    from dpsynth_assets.methods.private_prediction.method import BatchPrediction


QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}


@dataclass(frozen=True, kw_only=True)
class RealisedCosts:
    """Ex-post ε of a run's draws, filled in by its selector.

    Attributes:
        by_batch: (batches,) float64, sum over the batch's draws so far, and over draws of other
            batches that rounding of its records may have moved.
        by_draw: (batches, r) float64, in the order of the draws; zero where nothing was drawn.
    """

    by_batch: np.ndarray = field(repr=False)
    by_draw: np.ndarray = field(repr=False)

    @classmethod
    def of_nothing(cls, batches: int, tokens_per_batch: int) -> Self:
        """Before the first draw."""
        return cls(by_batch=np.zeros(batches), by_draw=np.zeros((batches, tokens_per_batch)))

    def kept(self, own: Sequence[int]) -> dict[str, Any]:
        """JSON values of the batches of one pass, for its owner only."""
        return {"costs": self.by_batch[own].tolist(), "draw_costs": self.by_draw[own].tolist()}

    def restore(self, own: Sequence[int], values: Mapping[str, Any]) -> None:
        """Takes back what `kept` gave of one pass."""
        self.by_batch[own] = values["costs"]
        self.by_draw[own] = values["draw_costs"]

    def by_position(self, documents: Sequence[Document]) -> dict[str, np.ndarray]:
        """Distribution of the cost of a token by its place in its document.

        Args:
            documents: All documents of the run, those of a batch in the order in which they ended.

        Returns:
            Arrays over places 0, 1, ...: `count` of draws there, `mean`, and the quantiles `p10`,
            `p50` and `p90` over all batches and documents. An end token stands at the place it
            took. Where a schema constrains texts, places count drawn tokens alone.

        **Source** Amin et al. 2025, Appendix D.4, Figures 5 and 6.
        """
        place = self._place_of_draw(documents)
        drawn = place >= 0
        order = np.argsort(place[drawn], kind="stable")
        count = np.bincount(place[drawn])
        parts = np.split(self.by_draw[drawn][order], np.cumsum(count)[:-1]) if len(count) else []
        shown = {"count": count, "mean": np.array([part.mean() for part in parts])}
        for name, level in QUANTILES.items():
            shown[name] = np.array([np.quantile(part, level) for part in parts])
        return shown

    def _place_of_draw(self, documents: Sequence[Document]) -> np.ndarray:
        """(batches, r) place of each draw in its document; -1 where nothing was drawn."""
        place = np.full(self.by_draw.shape, -1, dtype=np.int64)
        drawn = np.zeros(len(place), dtype=np.int64)
        for document in documents:
            start, draws = drawn[document.batch], document.private_tokens
            place[document.batch, start : start + draws] = np.arange(draws)
            drawn[document.batch] += draws
        return place


@dataclass(frozen=True, kw_only=True)
class BatchTokens(Mechanism):
    """The private tokens of every batch: what a batch draws, and what all draws cost together.

    Attributes:
        tokens: r, private tokens of a batch, public. Batches share no record, so r adaptive draws
            of one batch are the cost of all of them.
    """

    tokens: int

    @abstractmethod
    def event(self) -> Event | None:
        """Prices r tokens of every batch, also where a batch stops early; None: ex post alone."""

    @abstractmethod
    def opened(
        self,
        meter: PrivateTokenMeter,
        batches: Sequence[int] = (),
        costs: RealisedCosts | None = None,
        /,
    ) -> TokenSelector:
        """Opens what draws the tokens of one pass.

        Args:
            meter: Of r tokens a batch, which no draw can exceed.
            batches: Indices of its batches among those of the run.
            costs: Realised costs of the run, to which each draw's is added; None where the cost is
                planned.
        """


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How the passes of one run are drawn, by any process; public but for its costs.

    Attributes:
        method: The bound method.
        stage: Its planned stage.
        batches: The batches of the run, and how they are filled.
        public: Public inputs.
    """

    method: "BatchPrediction[Any]"
    stage: Stage
    batches: RunBatches
    public: PublicInputs = field(repr=False)

    @cached_property
    def drawn(self) -> BatchTokens:
        """The private tokens of its batches."""
        return mechanism_of(self.stage, BatchTokens)  # type: ignore[type-abstract]

    @cached_property
    def costs(self) -> RealisedCosts | None:
        """Realised cost of each draw, which the selector fills in; kept with a pass.

        None where the cost is planned.
        """
        if self.drawn.event() is not None:
            return None
        return RealisedCosts.of_nothing(len(self.batches.batches), self.drawn.tokens)

    @cached_property
    def decoder(self) -> Decoder:
        """What decodes prompts."""
        return charged_decoder(self.method.config, self.method.terms, self.public.language_model)

    @cached_property
    def rules(self) -> GenerationRules:
        """The loop's public rules."""
        model, method = self.public.language_model, self.method
        config, terms = method.config, method.terms
        constraint = constraint_of(terms, model)
        most = config.most_tokens
        if most is None and constraint is not None:  # Every document costs a token.
            most = self.drawn.tokens * config.max_document_tokens
        return GenerationRules(
            tokens_per_batch=self.drawn.tokens,
            max_document_tokens=config.max_document_tokens,
            min_tokens_for_new_document=config.min_tokens_for_new_document,
            end_token_id=model.end_token_id,
            pad_token_id=model.pad_token_id,
            prompt_columns=prompt_columns(
                model,
                terms.label_texts,
                config.examples_per_context,
                config.max_example_tokens,
            ),
            max_tokens_per_batch=most,
            rows_per_pass=method.declared.rows_per_pass,
            constraint=constraint,
        )


def written_corpus(drawing: Drawing, finished: Sequence[Mapping[str, Any]]) -> SyntheticCorpus:
    """Writes rows and facts of a run from the values of all its passes, in their order.

    **Privacy** Rows and facts are functions of drawn tokens and public settings. Realised costs
    are not: they go into `internal` alone.
    """
    costs, method, batches = drawing.costs, drawing.method, drawing.batches.batches
    kept = [fields for values in finished for fields in values["documents"]]
    documents = [Document(**{**fields, "tokens": list(fields["tokens"])}) for fields in kept]
    drawn = sum((np.array(values["drawn"]) for values in finished), np.zeros(2, dtype=np.int64))
    unfinished = sum(not document.finished for document in documents)
    internal = {} if costs is None else {"token_cost_by_position": costs.by_position(documents)}
    labels = [batches[document.batch].label for document in documents]
    written = completed(drawing, documents, labels)
    owners = [batches[document.batch] for document in written]
    frame = corpus_rows(
        drawing.public.language_model,
        form_of(method),
        longest=drawing.method.config.max_document_tokens,
        tokens=[document.tokens for document in written],
        labels=[drawing.method.terms.labels[batch.label] for batch in owners],
        batches=[batch.index for batch in owners],
        clusters=[batch.cluster for batch in owners],
    )
    rows, judged = kept_rows(frame, RowFilter.of(method, drawing.public))
    facts = {
        "rows": len(rows),
        "tokens": int(rows["n_tokens"].sum()),
        "batches": len(batches),
        "private_tokens": int(drawn[0]),
        "public_tokens": int(drawn[1]),
        "tokens_per_batch": drawing.rules.tokens_per_batch,
        "unfinished_documents": unfinished,
        **judged,
    }
    return SyntheticCorpus(rows=rows, facts=facts, internal=internal)


def draw_pass(
    drawing: Drawing,
    batches: Sequence[PrivateBatch],
    on_step: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Draws one pass; returns JSON values: documents, (private, public) tokens, and costs.

    Args:
        drawing: How it is drawn.
        batches: Its batches, empty ones included.
        on_step: Told of each step.

    **Privacy** Noise comes from the entropy of the process that draws. The values are part of the
    release that was paid for; their costs, if any, are private permanently.
    """
    drawn = np.zeros(2, dtype=np.int64)

    def count(private: int, public: int) -> None:
        drawn[:] += private, public
        if on_step is not None:
            on_step()

    model, texts = drawing.public.language_model, drawing.method.terms.label_texts
    beside = [public_prompt(model, texts[batch.label]) for batch in batches]
    prompts = [
        context_prompts(
            model,
            texts[batch.label],
            batch.contexts,
            max_example_tokens=drawing.method.config.max_example_tokens,
            columns=drawing.rules.prompt_columns,
        )
        for batch in batches
    ]
    indices = [batch.index for batch in batches]
    meter = PrivateTokenMeter(drawing.drawn.tokens, len(batches))
    documents = generate_documents(
        drawing.decoder,
        prompts,
        drawing.drawn.opened(meter, indices, drawing.costs),
        drawing.rules,
        count,
        beside if drawing.method.compares_with_public_prompts else None,
        public_prefixes=_public_prefixes(drawing),
        row_keys=[key for batch in batches for key in batch.keys],
    )
    for document in documents:
        document.batch = indices[document.batch]
    return {
        "documents": [asdict(document) for document in documents],
        "drawn": drawn.tolist(),
        **({} if drawing.costs is None else drawing.costs.kept(indices)),
    }


def _public_prefixes(drawing: Drawing) -> list[list[int]]:
    """What every private prompt of a label begins with, regardless of its examples: read once."""
    model, config = drawing.public.language_model, drawing.method.config

    def prompt_of(label_text: str, example: str) -> list[int]:
        examples = [example] * config.examples_per_context
        ids: list[int] = model.prompt_ids(label_text, examples, config.max_example_tokens)
        return ids

    return [public_prefix(partial(prompt_of, text)) for text in drawing.method.terms.label_texts]


def completed(
    drawing: Drawing, documents: Sequence[Document], labels: Sequence[int]
) -> list[Document]:
    """Finishes unfinished documents from public text, in place, or drops them.

    Where a schema constrains texts, one that its greatest length cut off is dropped in any case.
    The continuation is sampled at the method's temperature. Every one fits the model's attention
    where a public prompt and a document of full length do (`preconditions`).

    Args:
        drawing: Settings and public inputs.
        documents: All documents of a run.
        labels: Index of each document's label.

    **Privacy** The continuation reads a label and tokens that are already released.
    """
    config, model = drawing.method.config, drawing.public.language_model
    constraint = drawing.rules.constraint
    if config.on_exhaustion == "drop":
        finished = [document for document in documents if document.finished]
        return _valid(drawing, finished)
    starts = [public_prompt(model, text) for text in drawing.method.terms.label_texts]
    unfinished = [
        (document, starts[label])
        for document, label in zip(documents, labels, strict=True)
        if not document.finished
    ]
    continued = sample_documents(
        drawing.decoder,
        model,
        [start + document.tokens for document, start in unfinished],
        Sampling(temperature=config.temperature, seed=drawing.public.seed),
        limits=[config.max_document_tokens - len(d.tokens) for d, _ in unfinished],
        texts=[constraint.open(document.tokens) for document, _ in unfinished]
        if constraint is not None
        else None,
    )
    for (document, _), continuation in zip(unfinished, continued, strict=True):
        document.tokens += continuation
    return _valid(drawing, documents)


def _valid(drawing: Drawing, documents: Sequence[Document]) -> list[Document]:
    """Those whose text is a valid record of the schema; all where none is declared."""
    constraint, decode = drawing.rules.constraint, drawing.public.language_model.decode
    return [
        document
        for document in documents
        if constraint is None or constraint.is_followed(decode(document.tokens))
    ]


def corpus_rows(
    language_model: Any,
    form: TextForm,
    *,
    longest: int,
    tokens: Sequence[Sequence[int]],
    labels: Sequence[str],
    batches: Sequence[int | None],
    clusters: Sequence[int | None],
) -> pl.DataFrame:
    """Builds a corpus's rows: `text`, `label`, `batch`, `cluster`, `n_tokens`; no blank text.

    `n_tokens` counts what was drawn, also where less of it is of the form.
    """
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
