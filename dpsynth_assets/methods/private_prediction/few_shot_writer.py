"""Demonstrations, every token one step over a fresh sample of a label's records; extra documents.

Extra documents are written after demonstrations alone, and are free.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.inputs import (
    PassStore,
    ProgressCallback,
    PublicInputs,
    counted_labels,
)
from dpsynth_assets.methods.private_prediction.config import FewShotConfig
from dpsynth_assets.methods.private_prediction.corpus import corpus_rows
from dpsynth_assets.methods.private_prediction.decoding import (
    context_prompts,
    prompt_columns,
    public_prompt,
)
from dpsynth_assets.methods.private_prediction.preconditions import charged_decoder
from dpsynth_assets.methods.stages import SyntheticCorpus
from dpsynth_assets.models.decoding import Decoder, sample_documents
from dpsynth_assets.models.engines import Sampling
from dpsynth_assets.models.row_rules import TextForm
from dpsynth_assets.privacy.noisy_probabilities import NoisyProbabilities

if TYPE_CHECKING:
    import polars as pl
    import torch

_ROWS_PER_PREFILL = 64
"""Most prompts of one forward pass: bounds memory, and is public."""


@dataclass(frozen=True, kw_only=True)
class FewShotTask:
    """One run: settings and inputs, all public."""

    config: FewShotConfig
    terms: CohortTerms
    public: PublicInputs

    @property
    def model(self) -> Any:
        """The language model."""
        return self.public.language_model

    @cached_property
    def decoder(self) -> Decoder:
        """What decodes prompts."""
        return charged_decoder(self.config, self.terms, self.public.language_model)


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """A released token sequence without its end token.

    Attributes:
        label: Index of its label.
        tokens: In order.
        steps: Private tokens drawn, the end token included.
    """

    label: int
    tokens: list[int]
    steps: int


def texts_by_label(records: "pl.DataFrame", labels: Sequence[str]) -> list[list[str]]:
    """Lists each label's texts. A null record has none, and takes no part (zero-out)."""
    own = counted_labels(records, labels)
    return [records.filter(own == label)["text"].to_list() for label in range(len(labels))]


def write_demonstrations(
    task: FewShotTask,
    texts: Sequence[Sequence[str]],
    mechanisms: Sequence[NoisyProbabilities],
    progress: ProgressCallback,
    passes: PassStore | None = None,
) -> Iterator[Demonstration]:
    """Writes the same number of documents for each label, regardless of its records.

    Args:
        task: Settings and public inputs.
        texts: Private texts of each label.
        mechanisms: The steps of each label.
        progress: Told the share of charged tokens, document by document.
        passes: Where finished documents are kept; they are not written again.

    **Privacy** The steps that a killed run spent on a document it did not finish were seen by
    no reader: no progress is shown within a document, since every token of it may be the last.
    Documents of one label are numbered alike in every run, so each is released once.
    """
    total = sum(mechanism.steps for mechanism in mechanisms)
    each = task.config.documents_per_label
    done = 0
    for label, mechanism in enumerate(mechanisms):
        writer: LabelWriter | None = None
        for number in range(label * each, (label + 1) * each):
            known = None if passes is None else passes.load(number)
            if known is not None:
                yield Demonstration(**known)
            else:
                writer = writer or LabelWriter(task, label, texts[label], mechanism)
                written = writer.write()
                if passes is not None:
                    passes.save(number, asdict(written))
                yield written
            done += task.config.max_document_tokens
            progress(done / total, f"{done} of {total} private tokens charged")


class LabelWriter:
    """Writes documents of one label token by token.

    **Privacy** Private texts reach the prompts of the subsets they were sampled into, and nothing
    else; the M prompts of a step are padded to a length that public settings and released tokens
    fix, and are read in passes of their own, apart from the public prompt.
    """

    def __init__(
        self, task: FewShotTask, label: int, texts: Sequence[str], mechanism: NoisyProbabilities
    ) -> None:
        config, model = task.config, task.model
        self._task, self._label, self._texts = task, label, texts
        self._mechanism = mechanism
        self._columns = prompt_columns(
            model, task.terms.label_texts, config.examples_per_subset, config.max_example_tokens
        )
        start = public_prompt(model, task.terms.label_texts[label])
        self._public = task.decoder.open(
            [start],
            # Refuses at once what private prompts would need later.
            prompt_columns=max(self._columns, len(start)),
            max_new_tokens=config.max_document_tokens,
            rows_per_prefill=1,
            public=True,
        )

    def write(self) -> Demonstration:
        """Writes one document of at most the greatest length."""
        tokens: list[int] = []
        limit, end = self._task.config.max_document_tokens, self._task.model.end_token_id
        while len(tokens) < limit:
            token = self._next_token(tokens)
            if token == end:
                return Demonstration(label=self._label, tokens=tokens, steps=len(tokens) + 1)
            tokens.append(token)
        return Demonstration(label=self._label, tokens=tokens, steps=limit)

    def _next_token(self, released: Sequence[int]) -> int:
        """Draws a sample and releases one token: one step of the mechanism."""
        public_logits = self._public_logits(released)
        subsets = self._mechanism.draw(len(self._texts))
        private_logits = self._private_logits(subsets, released)
        return self._mechanism.select(private_logits, public_logits)

    def _public_logits(self, released: Sequence[int]) -> "torch.Tensor":
        """Computes (V,) logits of the prompt without examples after the released tokens."""
        import torch

        last = torch.tensor(released[-1:] or [self._task.model.pad_token_id])
        return self._public.next_logits(last, torch.tensor([len(released)]))[0]

    def _private_logits(
        self, subsets: Sequence[np.ndarray], released: Sequence[int]
    ) -> "torch.Tensor":
        """Computes (M, V) logits of the subsets' prompts after the released tokens."""
        import torch

        config, model = self._task.config, self._task.model
        prompts = context_prompts(
            model,
            self._task.terms.label_texts[self._label],
            [[self._texts[record] for record in subset] for subset in subsets],
            max_example_tokens=config.max_example_tokens,
            columns=self._columns,
        )
        contexts = self._task.decoder.open(
            [prompt + list(released) for prompt in prompts],
            prompt_columns=self._columns + len(released),
            max_new_tokens=1,
            rows_per_prefill=min(config.subsets, _ROWS_PER_PREFILL),
        )
        start = torch.zeros(len(prompts), dtype=torch.long)
        return contexts.next_logits(start, start)


def few_shot_corpus(
    task: FewShotTask, demonstrations: Sequence[Demonstration], progress: ProgressCallback
) -> SyntheticCorpus:
    """Builds rows: `batch` numbers the demonstrations and is empty for extra documents.

    **Privacy** Rows and facts are functions of released tokens and public settings.
    """
    import polars as pl

    extra = _extra_documents(task, demonstrations, progress)
    labels = [demonstration.label for demonstration in demonstrations] + [e[0] for e in extra]
    rows = corpus_rows(
        task.model,
        TextForm.of(None, task.terms.prompts, task.terms.label_texts),
        longest=task.config.max_document_tokens,
        tokens=[demonstration.tokens for demonstration in demonstrations] + [e[1] for e in extra],
        labels=[task.terms.labels[label] for label in labels],
        batches=[*range(len(demonstrations)), *(None for _ in extra)],
        clusters=[None] * len(labels),
    ).with_columns(
        pl.when(pl.col("batch").is_null())
        .then(pl.lit("extra"))
        .otherwise(pl.lit("demonstration"))
        .alias("origin")
    )
    facts = {
        "rows": len(rows),
        "tokens": int(rows["n_tokens"].sum()),
        "demonstrations": len(demonstrations),
        "extra_documents": len(extra),
        "private_tokens": sum(demonstration.steps for demonstration in demonstrations),
    }
    return SyntheticCorpus(rows=rows, facts=facts)


def _extra_documents(
    task: FewShotTask, demonstrations: Sequence[Demonstration], progress: ProgressCallback
) -> list[tuple[int, list[int]]]:
    """Samples (label, tokens) pairs after demonstrations of the label: free post-processing."""
    config, model, terms = task.config, task.model, task.terms
    labels = [index % len(terms.labels) for index in range(config.extra_documents)]
    if not labels:
        return []
    draw = np.random.default_rng(task.public.seed)
    prompts = [
        _extra_prompt(task, label, _some_texts(task, label, demonstrations, draw))
        for label in labels
    ]
    sampled = sample_documents(
        task.decoder,
        prompts,
        Sampling(max_new_tokens=config.max_document_tokens, seed=task.public.seed),
        end_token_id=model.end_token_id,
        pad_token_id=model.pad_token_id,
        progress=lambda share: progress(1.0, f"{share:.0%} of {len(labels)} extra documents"),
    )
    return [(label, each.tokens) for label, each in zip(labels, sampled, strict=True)]


def _extra_prompt(task: FewShotTask, label: int, texts: Sequence[str]) -> list[int]:
    """Writes the prompt of an extra document, its examples cut where they leave no room for it.

    N examples fit at the cut of the private ones, for which `check_few_shot` found room.
    """
    config, model, label_texts = task.config, task.model, task.terms.label_texts
    longest, count = config.max_document_tokens, config.examples_per_subset
    ids: list[int] = model.prompt_ids(label_texts[label], texts, longest)
    limit = task.decoder.attention_limit
    if limit is None or len(ids) + longest <= limit:
        return ids
    columns = limit - longest
    frame = prompt_columns(model, label_texts, count, 1) - count
    cut = max(1, (columns - frame) // count)
    return context_prompts(
        model, label_texts[label], [texts], max_example_tokens=cut, columns=columns
    )[0]


def _some_texts(
    task: FewShotTask,
    label: int,
    demonstrations: Sequence[Demonstration],
    draw: np.random.Generator,
) -> list[str]:
    """Picks up to N released texts of a label, in random order."""
    texts = [
        task.model.decode(each.tokens).strip() for each in demonstrations if each.label == label
    ]
    texts = [text for text in texts if text]
    chosen = draw.permutation(len(texts))[: task.config.examples_per_subset]
    return [texts[index] for index in chosen]
