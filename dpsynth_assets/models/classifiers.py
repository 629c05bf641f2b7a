"""Two classifiers: a linear one over sentence embeddings, and an encoder that is fine-tuned whole.

The first is small enough for DP training. The encoder's last hidden states are averaged over the
tokens of a text, and the head starts at zero: every label is equally likely. Order of rows, dropout
and the rows that training stops by follow from a public seed, so that equal rows give one
classifier on one machine.

Letters: N texts, d dimensions, T tokens of the longest of a batch, L labels.
"""

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.datasets import EncoderSpec
from dpsynth_assets.models.language_model import batches_by_length, in_parts, padded
from dpsynth_assets.models.text_embedder import DEFAULT_MODEL, packaged_model

if TYPE_CHECKING:
    import torch

WEIGHTS_FILE = "classifier.safetensors"
LABELS_FILE = "labels.json"


@dataclass(frozen=True)
class LabelledEmbedding:
    """One example: float32 (d,) and the index of its label."""

    embedding: np.ndarray = field(repr=False)
    label: int = field(repr=False)


class LabelLoss:
    """Cross-entropy of each example's label; an `ExampleLoss`."""

    def __call__(self, model: Any, examples: Sequence[LabelledEmbedding]) -> "torch.Tensor":
        """Runs the classifier; returns (B,) losses in nats."""
        import torch
        from torch.nn.functional import cross_entropy

        device = next(model.parameters()).device
        rows = torch.from_numpy(np.stack([each.embedding for each in examples])).to(device)
        labels = torch.tensor([each.label for each in examples], device=device)
        return cross_entropy(model(rows[:, None, :])[:, 0], labels, reduction="none")

    def length(self, _example: LabelledEmbedding) -> int:
        """All examples are alike."""
        return 1


def new_label_classifier(dimension: int, labels: int) -> Any:
    """Builds a linear layer d -> L that starts at zero: every label equally likely."""
    import torch

    layer = torch.nn.Linear(dimension, labels)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    return layer


def save_label_classifier(model: Any, labels: Sequence[str], folder: Path) -> None:
    """Writes weights (safetensors) and labels (JSON) to a folder."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()
    }
    save_file(tensors, folder / WEIGHTS_FILE)
    (folder / LABELS_FILE).write_text(json.dumps(list(labels)) + "\n", encoding="utf-8")


def classify(folder: Path, embeddings: np.ndarray) -> list[str]:
    """Predicts the label of each of N embeddings (N, d) with a saved classifier."""
    from safetensors.numpy import load_file

    tensors = load_file(folder / WEIGHTS_FILE)
    labels = json.loads((folder / LABELS_FILE).read_text(encoding="utf-8"))
    scores = embeddings @ tensors["weight"].T + tensors["bias"]
    return [labels[index] for index in scores.argmax(axis=1)]


STOPPED_BY = 0.1
"""Share of the rows trained on that are set aside; training stops by them."""

_HEAD, _WARMUP = 10.0, 0.1
"""Learning rate of the head beside that of the encoder; share of the first pass to warm up in."""

_ROWS_TOGETHER = 64


@dataclass(frozen=True)
class EncoderClassifier:
    """A fine-tuned encoder.

    Attributes:
        network: Maps token ids and mask to logits of the labels.
        tokenizer: That of the encoder.
        labels: L labels.
        settings: What it was trained with.
    """

    network: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    labels: tuple[str, ...]
    settings: EncoderSpec

    def classify(self, texts: Sequence[str]) -> np.ndarray:
        """Names the label of each of N texts: str (N,)."""
        ids = _encoded(self.tokenizer, texts, self.settings)
        return np.asarray(self.labels)[self._logits(ids).argmax(axis=1)]

    def _logits(self, ids: Sequence[Sequence[int]]) -> np.ndarray:
        """Logits of the labels, (N, L), texts of about one length together."""
        import torch

        found = np.zeros((len(ids), len(self.labels)))
        order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
        self.network.eval()
        with torch.inference_mode():
            for rows in in_parts(order, _ROWS_TOGETHER):
                logits = self.network(*_batch([ids[row] for row in rows], self.settings))
                found[rows] = logits.double().cpu().numpy()
        return found


def fine_tuned(
    texts: Sequence[str], labels: Sequence[str], settings: EncoderSpec, seed: int
) -> EncoderClassifier:
    """Trains an encoder on labelled texts.

    A tenth of the rows is set aside, of labels with at least two rows alone: a label with one row
    is learned. After each pass the accuracy on these rows says whether to go on, and which weights
    and which learning rate are kept; equal accuracies are distinguished by the loss.

    Args:
        texts: N texts, one more than there are labels at least.
        labels: N labels.
        settings: Model, rates, passes.
        seed: Public seed of order, dropout and the rows set aside.

    Raises:
        ValueError: There are too few rows, or the lengths differ.
        FileNotFoundError: There is no encoder, or it has no tokenizer.

    **Source** Amin et al. 2025, appendix E.1 (BERT): a tenth of the synthetic rows, stopping after
    four epochs without a better accuracy on them, the best checkpoint by them.
    """
    import torch
    from transformers import AutoModel, AutoTokenizer

    known = tuple(sorted(set(labels)))
    if len(texts) != len(labels) or len(texts) <= len(known):
        raise ValueError(
            f"Expected a label for each text and more rows than labels, got {len(texts)} texts and "
            f"{len(labels)} rows of {len(known)} labels. Score more rows."
        )
    tokenizer = _loaded(AutoTokenizer, settings)
    encoder = _loaded(AutoModel, settings, dtype=torch.float32)
    ids = _encoded(tokenizer, texts, settings)
    targets = np.searchsorted(known, np.asarray(labels))
    aside = _set_aside(targets, seed)

    def tried(rate: float) -> tuple[tuple[float, float], EncoderClassifier]:
        network = _network(copy.deepcopy(encoder), len(known)).to(settings.device)
        classifier = EncoderClassifier(network, tokenizer, known, settings)
        return _train(classifier, ids, targets, aside, rate, seed), classifier

    return max(map(tried, settings.learning_rates), key=lambda found: found[0])[1]


def multiplications(settings: EncoderSpec, tokens: float) -> float:
    """Multiply-adds of the layers for one pass over this many tokens, forwards."""
    from transformers import AutoConfig

    config = _loaded(AutoConfig, settings)
    wide = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    layer = 4 * config.hidden_size**2 + 2 * config.hidden_size * wide
    return float(tokens * layer * config.num_hidden_layers)


def _loaded(auto_class: Any, settings: EncoderSpec, **options: Any) -> Any:
    place = settings.model or str(packaged_model())
    try:
        loaded = auto_class.from_pretrained(place, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError):
        loaded = None
    # Where files of a tokenizer are missing, transformers may make one of special tokens alone.
    special = getattr(loaded, "all_special_ids", None)
    if loaded is None or (special is not None and loaded.vocab_size <= len(special)):
        raise FileNotFoundError(
            f"evaluation.encoder: expected an encoder with its tokenizer in a folder or the local "
            f"hub cache, got none that opens at {settings.model or DEFAULT_MODEL!r}. Download it "
            "first, or leave `model` out."
        )
    return loaded


def _network(encoder: Any, labels: int) -> Any:
    """The encoder, the mean over a text's tokens, dropout and a head that starts at zero."""
    import torch

    class MeanPooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.dropout = encoder, torch.nn.Dropout(0.1)
            self.head = new_label_classifier(encoder.config.hidden_size, labels)

        def forward(self, ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
            hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
            weights = mask[:, :, None].to(hidden.dtype)
            return self.head(self.dropout((hidden * weights).sum(1) / weights.sum(1)))

    return MeanPooled()


def _encoded(tokenizer: Any, texts: Sequence[str], settings: EncoderSpec) -> list[list[int]]:
    read = tokenizer(list(texts), truncation=True, max_length=settings.max_tokens)
    found: list[list[int]] = read["input_ids"]
    return found


def _batch(ids: Sequence[Sequence[int]], settings: EncoderSpec) -> list["torch.Tensor"]:
    """Token ids and mask, (B, T) each; what fills a row is masked, so it may be any token."""
    tokens, mask = padded(ids, 0), padded([[1] * len(own) for own in ids], 0)
    return [tokens.to(settings.device), mask.to(settings.device)]


def _set_aside(targets: np.ndarray, seed: int) -> np.ndarray:
    """Draws a tenth of the rows, at least one, each of a label that keeps a row: bool (N,)."""
    order = np.random.default_rng(seed).permutation(len(targets))
    free = np.delete(order, np.unique(targets[order], return_index=True)[1])
    aside = np.zeros(len(targets), dtype=bool)
    aside[free[: max(1, round(STOPPED_BY * len(targets)))]] = True
    return aside


def _train(
    classifier: EncoderClassifier,
    ids: Sequence[Sequence[int]],
    targets: np.ndarray,
    aside: np.ndarray,
    rate: float,
    seed: int,
) -> tuple[float, float]:
    """Trains at one learning rate, and leaves the best weights: their accuracy, and less loss."""
    import torch

    settings, network = classifier.settings, classifier.network
    read, stopping = list(compress(ids, ~aside)), list(compress(ids, aside))
    lengths, aims = [len(own) for own in read], torch.from_numpy(targets[~aside])
    groups = [
        {"params": network.encoder.parameters(), "lr": rate},
        {"params": network.head.parameters(), "lr": _HEAD * rate},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=settings.weight_decay)
    warmup = max(1, round(_WARMUP * len(read) / settings.batch))
    rises = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / warmup))
    draw, best, since = np.random.default_rng(seed), (-1.0, 0.0), 0
    weights: dict[str, Any] = {}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for _ in range(settings.epochs):
            network.train()
            for rows in batches_by_length(lengths, settings.batch, draw):
                logits = network(*_batch([read[row] for row in rows], settings))
                torch.nn.functional.cross_entropy(logits, aims[rows].to(logits.device)).backward()
                torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                rises.step()
                optimizer.zero_grad(set_to_none=True)
            reached = _standing(classifier._logits(stopping), targets[aside])
            since = 0 if reached > best else since + 1
            if since == 0:
                best, weights = reached, copy.deepcopy(network.state_dict())
            if since >= settings.patience:
                break
    network.load_state_dict(weights)
    return best


def _standing(logits: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    """Accuracy, and the loss in nats with its sign turned: more is better in both."""
    from scipy.special import log_softmax

    log_shares = log_softmax(logits, axis=1)
    right = float((logits.argmax(axis=1) == targets).mean())
    return right, float(log_shares[np.arange(len(targets)), targets].mean())
