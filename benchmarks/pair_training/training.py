"""Continues the training of a named model on public (condition, document) pairs, as CTCL does.

Equal documents, settings and thread count give equal weights: the budget is counted in tokens, and
every draw comes from `PairTrainingSettings.seed`. Everything here is public.

**Source**: Tan et al. 2025, section 3.1, for the task and the cosine schedule; the optimizer is
ours.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pair_training.pairs import (
    ConditionSource,
    length_sorted_batches,
)
from pair_training.sharded_gradients import open_shards, shares
from pydantic import BaseModel, ConfigDict, Field

from dpsynth_assets.models.conditional_generator.encoding import PairBatch
from dpsynth_assets.models.conditional_generator.generator import ConditionalGenerator
from dpsynth_assets.models.language_model import token_losses

if TYPE_CHECKING:
    import polars as pl
    import torch

ProgressCallback = Callable[[float, str], None]
FACTS_FILE = "training_facts.json"
FEWEST_DOCUMENTS = 20


class PairTrainingSettings(BaseModel):
    """Budget and seed of a training on pairs. Rates suit models of a million numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token_budget: int = Field(280_000, ge=1, description="Document tokens in all.")
    batch_tokens: int = Field(1024, ge=64, description="Document tokens of one optimizer step.")
    topic_share: float = Field(
        0.5, ge=0, le=1, description="Share of conditions with topic keywords, not the document's."
    )
    matrix_learning_rate: float = Field(0.03, gt=0, description="Muon, for matrices.")
    learning_rate: float = Field(1e-2, gt=0, description="AdamW, for embeddings, norms, biases.")
    warmup_share: float = Field(0.05, ge=0, lt=1, description="Share of the budget to warm up.")
    held_out_share: float = Field(0.03, gt=0, lt=1, description="Documents kept for perplexity.")
    seed: int = Field(0, ge=0, description="Public seed of every draw.")
    threads: int = Field(
        2, ge=1, description="CPU threads, each on a part of every batch; they move last bits."
    )


def train_on_pairs(
    generator: ConditionalGenerator,
    documents: "pl.DataFrame",
    topic_keywords: Sequence[Sequence[str]] | None,
    folder: Path,
    settings: PairTrainingSettings | None = None,
    progress: ProgressCallback | None = None,
    *,
    aspects: Sequence[Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Trains a generator further, in place, and writes it to a folder.

    Args:
        generator: Opened for this training alone: its weights change.
        documents: Columns `text`, optionally `label`, `document_type` and `group`. Whole outermost
            groups (`a` of `a/b`) are held out where there are groups.
        topic_keywords: Keywords of each document's topic, as fine-tuning will give them; an empty
            row for an unclassified document; None to use the documents' own keywords alone.
        folder: Folder to write; files of an earlier model are replaced.
        settings: Budget and seed.
        progress: Called with the share done and a public message.
        aspects: What a language model said of each document; see `aspects_from_language_model`.

    Returns:
        Public facts: `parameters`, `training_tokens`, `steps`, `documents`, `loss` (nats, last
        steps), and on held-out public documents `perplexity` under conditions as fine-tuning gives
        them, `perplexity_own_keywords`, and `perplexity_other_condition` under the condition of
        another document: the further above `perplexity`, the more the condition steers.

    Raises:
        ValueError: Too few documents, or rows that do not match.
    """
    settings = settings or PairTrainingSettings()
    report = progress or _no_progress
    _check(documents, topic_keywords, aspects)
    report(0.0, "keywords")
    source = ConditionSource.of(documents, topic_keywords, aspects, settings.topic_share)
    with _seeded(settings):
        generator.model.requires_grad_(True).train()
        training, held_out = _split(documents, settings)
        pairs = _Pairs(generator, documents, source, training)
        facts = _optimize(generator, pairs, settings, report)
        generator.model.requires_grad_(False).eval()
        facts |= held_out_perplexities(generator, documents["text"].to_list(), source, held_out)
    generator.save(folder)
    facts["documents"] = documents.height
    (folder / FACTS_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    report(1.0, f"public perplexity {facts['perplexity']:.2f}")
    return facts


class _Pairs:
    """Batches of encoded pairs: documents encoded once, conditions drawn anew each time."""

    def __init__(
        self,
        generator: ConditionalGenerator,
        documents: "pl.DataFrame",
        source: ConditionSource,
        rows: np.ndarray,
    ) -> None:
        self._generator, self._source, self._rows = generator, source, rows
        texts = documents["text"].to_list()
        bound = generator.max_document_tokens
        self.documents = generator.encoder.document_ids([texts[row] for row in rows], bound)

    def batches(self, settings: PairTrainingSettings) -> Iterator[PairBatch]:
        """Endless training batches on the generator's device."""
        random = np.random.default_rng(settings.seed)
        encoder, bound = self._generator.encoder, self._generator.max_condition_tokens
        lengths = [len(tokens) for tokens in self.documents]
        for places in length_sorted_batches(lengths, settings.batch_tokens, random):
            drawn = [self._source.draw(int(self._rows[place]), random) for place in places]
            conditions = encoder.condition_ids(drawn, bound)
            batch = encoder.pad(conditions, [self.documents[place] for place in places])
            yield batch.to(self._generator.device)


def _optimize(
    generator: ConditionalGenerator,
    pairs: _Pairs,
    settings: PairTrainingSettings,
    report: ProgressCallback,
) -> dict[str, Any]:
    """Spends the token budget; returns loss, steps, tokens and parameters."""
    import torch

    model = generator.model
    optimizers = _optimizers(model, settings)
    tokens = steps = 0
    smooth_loss = math.nan
    with open_shards(model, settings.threads) as gradients:
        for batch in pairs.batches(settings):
            counted = int((batch.labels >= 0).sum())
            parts = [_rows(batch, own) for own in shares(len(batch.labels), settings.threads)]
            loss = gradients.fill(parts, lambda part: _losses(model, part).sum(), counted)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            share = tokens / settings.token_budget
            for optimizer in optimizers:
                _set_learning_rate(optimizer, _schedule(share, settings.warmup_share))
                optimizer.step()
            tokens, steps = tokens + counted, steps + 1
            smooth_loss = _smooth(smooth_loss, loss)
            if tokens >= settings.token_budget:
                break
            if steps % 20 == 0:
                report(
                    min(0.99, tokens / settings.token_budget),
                    f"public loss {smooth_loss:.3f}, perplexity {math.exp(smooth_loss):.2f}",
                )
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "training_tokens": tokens,
        "steps": steps,
        "loss": round(smooth_loss, 4),
    }


def encoded_pairs(
    generator: ConditionalGenerator, conditions: Sequence[str], documents: Sequence[str]
) -> PairBatch:
    """Pads pairs of text into one batch, cut to the generator's own bounds."""
    encoder = generator.encoder
    prompts = encoder.condition_ids(conditions, generator.max_condition_tokens)
    return encoder.pad(prompts, encoder.document_ids(documents, generator.max_document_tokens))


def _losses(model: Any, batch: PairBatch) -> "torch.Tensor":
    return token_losses(model(**batch.inputs, use_cache=False).logits, batch.labels)


def _rows(batch: PairBatch, own: slice) -> PairBatch:
    return PairBatch({name: each[own] for name, each in batch.inputs.items()}, batch.labels[own])


def _smooth(average: float, value: float) -> float:
    return value if math.isnan(average) else 0.95 * average + 0.05 * value


def _optimizers(model: Any, settings: PairTrainingSettings) -> list["torch.optim.Optimizer"]:
    """Muon for the matrices inside the layers, AdamW for embeddings, norms and biases."""
    import torch

    inner = [p for name, p in model.named_parameters() if p.dim() == 2 and ".layers." in name]
    inner_ids = {id(parameter) for parameter in inner}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in inner_ids]
    adam = torch.optim.AdamW(
        rest, lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    if not inner:
        return [adam]
    return [torch.optim.Muon(inner, lr=settings.matrix_learning_rate, weight_decay=0.0), adam]


def _schedule(share: float, warmup_share: float) -> float:
    """Linear warm-up, then half a cosine down to 2 %; never zero, so the first step moves."""
    if share < warmup_share:
        return 0.1 + 0.9 * share / warmup_share
    done = (share - warmup_share) / (1.0 - warmup_share)
    return 0.02 + 0.98 * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))


def _set_learning_rate(optimizer: "torch.optim.Optimizer", factor: float) -> None:
    for group in optimizer.param_groups:
        group.setdefault("base", group["lr"])
        group["lr"] = group["base"] * factor


def _split(
    documents: "pl.DataFrame", settings: PairTrainingSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers to train on and rows held out, whole outermost groups where there are groups."""
    if "group" in documents.columns:
        groups = [group.split("/")[0] for group in documents["group"].to_list()]
    else:
        groups = [str(row) for row in range(documents.height)]
    distinct = sorted(set(groups))
    order = np.random.default_rng(settings.seed).permutation(len(distinct))
    count = max(1, round(settings.held_out_share * len(distinct)))
    chosen = {distinct[place] for place in order[:count]}
    held = np.array([group in chosen for group in groups])
    return np.flatnonzero(~held), np.flatnonzero(held)


@contextmanager
def _seeded(settings: PairTrainingSettings) -> Iterator[None]:
    """Fixes torch's generator and thread count for the run, and restores both."""
    import torch

    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        torch.set_num_threads(settings.threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _check(
    documents: "pl.DataFrame",
    topic_keywords: Sequence[Sequence[str]] | None,
    aspects: Sequence[Mapping[str, str]] | None,
) -> None:
    if documents.height < FEWEST_DOCUMENTS:
        raise ValueError(
            f"Expected at least {FEWEST_DOCUMENTS} public documents to train on, got "
            f"{documents.height}; point the public corpus at a larger file."
        )
    for name, given in (("topic_keywords", topic_keywords), ("aspects", aspects)):
        if given is not None and len(given) != documents.height:
            raise ValueError(
                f"Expected {name} for each of {documents.height} documents, got {len(given)}."
            )


def _no_progress(_share: float, _message: str) -> None:
    """Reports to nobody."""


def public_perplexity(
    generator: ConditionalGenerator,
    pairs: Sequence[tuple[str, str]],
    batch_rows: int = 32,
) -> float:
    """Perplexity of public documents under their conditions: exp of the mean loss of a token.

    Args:
        generator: Any generator.
        pairs: (condition, document), at least one; public, since the value carries no noise.
        batch_rows: Pairs of one forward pass.
    """
    import torch

    ordered = sorted(pairs, key=lambda pair: len(pair[1]))
    total, tokens = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(ordered), batch_rows):
            conditions, texts = zip(*ordered[start : start + batch_rows], strict=True)
            batch = encoded_pairs(generator, conditions, texts).to(generator.device)
            total += float(_losses(generator.model, batch).double().sum())
            tokens += int((batch.labels >= 0).sum())
    return math.exp(total / tokens)


def held_out_perplexities(
    generator: ConditionalGenerator,
    texts: Sequence[str],
    source: ConditionSource,
    held_out: np.ndarray,
) -> dict[str, float]:
    """Perplexities of held-out documents under three kinds of condition; see the facts above."""
    rows = [int(row) for row in held_out]
    others = rows[1:] + rows[:1]
    kinds = {
        "perplexity": [source.like_fine_tuning(row) for row in rows],
        "perplexity_own_keywords": [source.all_own_keywords(row) for row in rows],
        "perplexity_other_condition": [source.like_fine_tuning(row) for row in others],
    }
    written = [texts[row] for row in rows]
    return {
        name: round(public_perplexity(generator, list(zip(conditions, written, strict=True))), 3)
        for name, conditions in kinds.items()
    }
