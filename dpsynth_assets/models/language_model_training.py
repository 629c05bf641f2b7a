"""Trains a small Llama-architecture model on public documents, in the few-shot document format.

Every training sequence is a prompt: whole documents of one label, one after another, most of the
time from one group of similar documents. A model of a million parameters learns from this to write
like the documents before it, which is what private prediction asks of it. The result is a folder
in the transformers format that `AutoModelForCausalLM` and vLLM load.

Equal documents, settings and thread count give equal weights: the budget is counted in tokens, and
every draw comes from `TrainingSettings.seed`. Training data is public; nothing here is private.
"""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from dpsynth_assets.models.byte_tokenizer import train_tokenizer
from dpsynth_assets.models.copying_start import CopyingHeads, start_with_copying
from dpsynth_assets.models.document_format import EMBEDDED
from dpsynth_assets.models.language_model import load_language_model
from dpsynth_assets.models.prompt_sampler import EncodedDocuments, PromptSampler, encode_documents
from dpsynth_assets.models.sharded_gradients import open_shards, shares

if TYPE_CHECKING:
    import polars as pl
    import torch

ProgressCallback = Callable[[float, str], None]
FACTS_FILE = "training_facts.json"


class TrainingSettings(BaseModel):
    """Size, budget and seed of the embedded language model. Defaults fit the demo on two cores."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    vocabulary: int = Field(2048, ge=300, le=65536, description="Tokens of the byte-level BPE.")
    width: int = Field(128, ge=16, description="Hidden width d; a multiple of `heads`.")
    layers: int = Field(4, ge=1, description="Transformer layers L.")
    heads: int = Field(2, ge=1, description="Query heads per layer.")
    key_value_heads: int = Field(
        1, ge=1, description="Key/value heads: few, because DP decoding is bound by reading them."
    )
    feed_forward: int = Field(352, ge=16, description="Width of the gated feed-forward layer.")
    rotary_base: float = Field(1e5, gt=1, description="θ of the rotary position encoding.")
    max_positions: int = Field(2048, ge=64, description="Longest prompt the model accepts, tokens.")
    max_document_tokens: int = Field(160, ge=8, description="Documents are cut to this, tokens.")
    token_budget: int = Field(1_100_000, ge=1, description="Training tokens in all.")
    batch_tokens: int = Field(2048, ge=64, description="Tokens of one optimizer step.")
    sequence_tokens: tuple[int, ...] = Field(
        (192,), description="Curriculum: sequence length of each equal share of the budget."
    )
    group_share: float = Field(
        0.65, ge=0, le=1, description="Share of sequences that start from one group."
    )
    matrix_learning_rate: float = Field(0.03, gt=0, description="Muon, for matrices.")
    learning_rate: float = Field(8e-3, gt=0, description="AdamW, for embeddings and norms.")
    warmup_share: float = Field(0.05, ge=0, lt=1, description="Share of the budget to warm up.")
    held_out_share: float = Field(0.03, gt=0, lt=1, description="Documents kept for perplexity.")
    hold_copying_share: float = Field(
        0.8, ge=0, le=1, description="Share of the budget in which the copying heads stay as set."
    )
    seed: int = Field(0, description="Public seed of initial weights and of the order of text.")
    threads: int = Field(
        2, ge=1, description="CPU threads, each on a part of every batch; they move last bits."
    )
    device: str = Field("cpu", description="Torch device to train on.")


def train_language_model(
    documents: "pl.DataFrame",
    output: Path,
    settings: TrainingSettings | None = None,
    progress: ProgressCallback | None = None,
) -> dict[str, Any]:
    """Trains tokenizer and model on public documents and writes both to a folder.

    Args:
        documents: Columns `text`, optionally `label` (default: no label) and `group`. A group
            `a/b` lies within group `a`. Without the column, similar documents are found by words.
        output: Folder to write; files of an earlier model are replaced.
        settings: Size, budget and seed.
        progress: Called with the share done and a public message.

    Returns:
        Public facts: `parameters`, `training_tokens`, `steps`, `documents`, `loss` (nats, last
        steps), `perplexity` and `perplexity_by_position` on held-out public documents.

    Raises:
        ValueError: Too few documents, or a width that the heads do not divide.
    """
    import torch

    settings = settings or TrainingSettings()
    report = progress or _no_progress
    _check(documents, settings)
    report(0.0, "training the tokenizer")
    output.mkdir(parents=True, exist_ok=True)
    train_tokenizer(_tokenizer_texts(documents), settings.vocabulary, output)
    with _seeded(settings):
        _new_model(settings, output).save_pretrained(output)
        codec = load_language_model(output, device="cpu")
        encoded = encode_documents(codec, documents, settings.max_document_tokens, settings.seed)
        training, held_out = encoded.split(settings.held_out_share, settings.seed)
        model = codec.model.to(settings.device).requires_grad_(True).train()
        facts = _optimize(model, training, settings, report)
        facts |= held_out_perplexity(model, held_out, settings)
        model.to("cpu", torch.float32).save_pretrained(output)
    facts["documents"] = documents.height
    (output / FACTS_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    report(1.0, f"public perplexity {facts['perplexity']:.2f}")
    return facts


def _no_progress(_share: float, _message: str) -> None:
    """Reports to nobody."""


def _check(documents: "pl.DataFrame", settings: TrainingSettings) -> None:
    if settings.width % settings.heads or settings.heads % settings.key_value_heads:
        raise ValueError(
            "Expected width to be a multiple of heads and heads of key_value_heads, got "
            f"{settings.width}, {settings.heads}, {settings.key_value_heads}."
        )
    if documents.height < 20:
        raise ValueError(
            f"Expected at least 20 public documents to train on, got {documents.height}; "
            "point the public corpus at a larger file."
        )


@contextmanager
def _seeded(settings: TrainingSettings) -> Iterator[None]:
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


def _tokenizer_texts(documents: "pl.DataFrame") -> Iterator[str]:
    """Documents as they will be written, label included; the first characters of long ones."""
    labels = documents["label"] if "label" in documents.columns else [""] * documents.height
    for text, label in zip(documents["text"], labels, strict=True):
        yield EMBEDDED.opening_text(label) + text[:2000]


def _new_model(settings: TrainingSettings, folder: Path) -> Any:
    """A Llama of the asked size with tied embeddings and the tokenizer's special tokens."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.width,
        intermediate_size=settings.feed_forward,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.key_value_heads,
        rope_parameters={"rope_type": "default", "rope_theta": settings.rotary_base},
        max_position_embeddings=settings.max_positions,
        tie_word_embeddings=True,
        initializer_range=0.5 * settings.width**-0.5,
        rms_norm_eps=1e-5,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    if settings.layers > 1:
        start_with_copying(model)
    return model


def _optimize(
    model: Any, training: EncodedDocuments, settings: TrainingSettings, report: ProgressCallback
) -> dict[str, Any]:
    """Spends the token budget; returns loss, steps, tokens and parameters."""
    import torch

    optimizers = _optimizers(model, settings)
    copying_heads = CopyingHeads(model) if settings.layers > 1 else None
    sampler = PromptSampler(training, settings.group_share, settings.seed)
    tokens = steps = 0
    smooth_loss = math.nan
    with open_shards(model, settings.threads) as gradients:
        while tokens < settings.token_budget:
            share = tokens / settings.token_budget
            rows = torch.from_numpy(_next_rows(sampler, settings, share)).to(settings.device)
            parts = [rows[own] for own in shares(len(rows), settings.threads)]
            targets = rows.numel() - len(rows)
            loss = gradients.fill(parts, lambda part: _next_token_loss(model, part).sum(), targets)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                _set_learning_rate(optimizer, _schedule(share, settings.warmup_share))
                optimizer.step()
            if copying_heads is not None and share < settings.hold_copying_share:
                copying_heads.restore()
            tokens, steps = tokens + rows.numel(), steps + 1
            smooth_loss = _smooth(smooth_loss, loss)
            if steps % 20 == 0:
                done = min(0.99, tokens / settings.token_budget)
                report(done, f"public loss {smooth_loss:.3f}")
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "training_tokens": tokens,
        "steps": steps,
        "loss": round(smooth_loss, 4),
    }


def _next_rows(sampler: PromptSampler, settings: TrainingSettings, share: float) -> np.ndarray:
    """One batch of sequences, as long as the curriculum says at this share of the budget."""
    stages = settings.sequence_tokens
    length = stages[min(len(stages) - 1, int(share * len(stages)))]
    return sampler.rows(max(1, settings.batch_tokens // length), length)[0]


def _smooth(average: float, value: float) -> float:
    return value if math.isnan(average) else 0.95 * average + 0.05 * value


def _optimizers(model: Any, settings: TrainingSettings) -> list["torch.optim.Optimizer"]:
    """Muon for the matrices inside the layers, AdamW for embeddings and norms."""
    import torch

    inner = [p for name, p in model.named_parameters() if p.dim() == 2 and ".layers." in name]
    inner_ids = {id(parameter) for parameter in inner}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in inner_ids]
    adam = torch.optim.AdamW(
        rest, lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    muon = torch.optim.Muon(inner, lr=settings.matrix_learning_rate, weight_decay=0.0)
    return [muon, adam]


def _schedule(share: float, warmup_share: float) -> float:
    """Linear warm-up, then linear decay to 3 %; never zero, so the first step moves."""
    if share < warmup_share:
        return 0.1 + 0.9 * share / warmup_share
    return 1.0 - 0.97 * (share - warmup_share) / (1.0 - warmup_share)


def _set_learning_rate(optimizer: "torch.optim.Optimizer", factor: float) -> None:
    for group in optimizer.param_groups:
        group.setdefault("base", group["lr"])
        group["lr"] = group["base"] * factor


def _next_token_loss(model: Any, rows: "torch.Tensor") -> "torch.Tensor":
    """Cross-entropy in nats of every next token, [rows, T - 1]."""
    from torch.nn.functional import cross_entropy

    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    targets = rows[:, 1:].reshape(-1)
    losses = cross_entropy(logits.reshape(len(targets), -1), targets, reduction="none")
    return losses.view(len(rows), -1)


def held_out_perplexity(
    model: Any, held_out: EncodedDocuments, settings: TrainingSettings
) -> dict[str, Any]:
    """Perplexity on documents the model never saw, and along the documents of a prompt.

    Returns:
        `perplexity` over all tokens, and `perplexity_by_position`: first, second, ... document.
    """
    import torch

    sampler = PromptSampler(held_out, settings.group_share, settings.seed)
    length = settings.sequence_tokens[-1]
    rows, positions = sampler.rows(64, length)
    model.eval()
    with torch.no_grad():
        batches = torch.from_numpy(rows).to(settings.device).split(16)
        losses = torch.cat([_next_token_loss(model, batch) for batch in batches]).cpu().numpy()
    position_of_target = positions[:, 1:]
    by_position = [
        float(np.exp(losses[position_of_target == position].mean()))
        for position in range(min(4, int(position_of_target.max()) + 1))
    ]
    return {
        "perplexity": round(float(np.exp(losses.mean())), 3),
        "perplexity_by_position": [round(value, 3) for value in by_position],
    }


__all__ = ["TrainingSettings", "held_out_perplexity", "train_language_model"]
