"""A linear classifier of labels over sentence embeddings, small enough for DP training.

Letters: N texts, d dimensions, L labels.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

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

    def length(self, example: LabelledEmbedding) -> int:
        """All examples are alike."""
        del example
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
