"""Writes the demonstrations: every token is one step over a fresh sample of a label's records."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.cluster_histogram import label_indices
from dpsynth_assets.methods.inputs import PassStore, ProgressCallback, PublicInputs
from dpsynth_assets.methods.private_prediction.config import FewShotConfig
from dpsynth_assets.methods.private_prediction.prompts import (
    context_prompts,
    prompt_columns,
    public_prompt,
)
from dpsynth_assets.models.decoding import PackedContexts, PublicContexts
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
    texts: list[list[str]] = [[] for _ in labels]
    indices = label_indices(records["label"].to_list(), labels)
    for label, text in zip(indices.tolist(), records["text"].to_list(), strict=True):
        if label >= 0 and text.strip():
            texts[label].append(text)
    return texts


def write_demonstrations(
    task: FewShotTask,
    texts: Sequence[Sequence[str]],
    mechanisms: Sequence[NoisyProbabilities],
    progress: ProgressCallback,
    passes: PassStore | None = None,
) -> Iterator[Demonstration]:
    """Writes the same number of documents for each label, whatever records it has.

    Args:
        task: Settings and public inputs.
        texts: Private texts of each label.
        mechanisms: The steps of each label.
        progress: Told the share of charged tokens, document by document.
        passes: Where finished documents are kept; they are not written again.

    **Privacy** The steps that a killed run spent on a document it did not finish were seen by
    nobody: no progress is told within a document, since every token of it may be the last.
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
        self._public = PublicContexts(
            model.model,
            [start],
            # Refuses at once what private prompts would need later.
            prompt_columns=max(self._columns, len(start)),
            max_new_tokens=config.max_document_tokens,
            pad_token_id=model.pad_token_id,
            rows_per_prefill=1,
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
        contexts = PackedContexts(
            model.model,
            [prompt + list(released) for prompt in prompts],
            prompt_columns=self._columns + len(released),
            max_new_tokens=1,
            pad_token_id=model.pad_token_id,
            rows_per_prefill=min(config.subsets, _ROWS_PER_PREFILL),
        )
        start = torch.zeros(len(prompts), dtype=torch.long)
        return contexts.next_logits(start, start)
