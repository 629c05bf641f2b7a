"""Loss of one example: mean cross-entropy over its own tokens, never over a batch's.

Shape letters: B examples, T tokens, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

IGNORED = -100
"""Label of a token that is not learnt: padding, or a prompt."""


@dataclass(frozen=True)
class TokenExample:
    """One example as token ids.

    Attributes:
        inputs: Source of an encoder, prompt of a causal model, or text to classify.
        targets: Tokens to learn, end token included; or the one number of a class.
    """

    inputs: Sequence[int] = field(repr=False)
    targets: Sequence[int] = field(repr=False)


class ExampleLoss(Protocol):
    """Losses of single examples.

    **Privacy** The i-th loss must depend on example i alone: a sum over a batch, or a number of
    tokens of the whole batch, would let one record move the gradients of others.
    """

    def __call__(self, model: Any, examples: Sequence[Any]) -> "torch.Tensor":
        """Runs the model; returns (B,) losses in nats."""

    def length(self, example: Any) -> int:
        """Tokens of an example: those of similar length are passed through together."""


@dataclass(frozen=True, kw_only=True)
class SequenceToSequenceLoss:
    """Loss of an encoder-decoder model such as BART.

    Attributes:
        pad_token_id: Fills up shorter examples.
        start_token_id: First token the decoder reads.
    """

    pad_token_id: int
    start_token_id: int

    def __call__(self, model: Any, examples: Sequence[TokenExample]) -> "torch.Tensor":
        """Runs encoder and decoder; returns (B,) mean losses of the targets."""
        device = next(model.parameters()).device
        inputs, mask = padded([each.inputs for each in examples], self.pad_token_id, device)
        shifted = [[self.start_token_id, *each.targets[:-1]] for each in examples]
        decoder_inputs, _ = padded(shifted, self.pad_token_id, device)
        labels, _ = padded([each.targets for each in examples], IGNORED, device)
        logits = model(
            input_ids=inputs,
            attention_mask=mask,
            decoder_input_ids=decoder_inputs,
            use_cache=False,
        ).logits
        return mean_token_losses(logits, labels)

    def length(self, example: TokenExample) -> int:
        """Target tokens, whose logits dominate, and half of the source's."""
        return len(example.targets) + len(example.inputs) // 2


@dataclass(frozen=True, kw_only=True)
class CausalLoss:
    """Loss of a decoder-only model on its targets, given the prompt.

    Attributes:
        pad_token_id: Fills up shorter examples, on the right.
        start_token_id: Read before an example without a prompt.
    """

    pad_token_id: int
    start_token_id: int

    def __call__(self, model: Any, examples: Sequence[TokenExample]) -> "torch.Tensor":
        """Runs the model; returns (B,) mean losses of the targets."""
        device = next(model.parameters()).device
        prompts = [list(each.inputs) or [self.start_token_id] for each in examples]
        rows = [[*p, *each.targets[:-1]] for p, each in zip(prompts, examples, strict=True)]
        labelled = [
            [*[IGNORED] * (len(p) - 1), *each.targets]
            for p, each in zip(prompts, examples, strict=True)
        ]
        inputs, mask = padded(rows, self.pad_token_id, device)
        labels, _ = padded(labelled, IGNORED, device)
        logits = model(input_ids=inputs, attention_mask=mask, use_cache=False).logits
        return mean_token_losses(logits, labels)

    def length(self, example: TokenExample) -> int:
        """Tokens of prompt and targets."""
        return len(example.inputs) + len(example.targets)


@dataclass(frozen=True, kw_only=True)
class ClassificationLoss:
    """Loss of a sequence classifier whose class is the example's only target.

    Attributes:
        pad_token_id: Fills up shorter examples.
    """

    pad_token_id: int

    def __call__(self, model: Any, examples: Sequence[TokenExample]) -> "torch.Tensor":
        """Runs the model; returns (B,) losses of the class."""
        import torch
        from torch.nn.functional import cross_entropy

        device = next(model.parameters()).device
        inputs, mask = padded([each.inputs for each in examples], self.pad_token_id, device)
        logits = model(input_ids=inputs, attention_mask=mask).logits
        labels = torch.tensor([each.targets[0] for each in examples], device=device)
        return cross_entropy(logits.float(), labels, reduction="none")

    def length(self, example: TokenExample) -> int:
        """Tokens of the text."""
        return len(example.inputs)


def padded(
    rows: Sequence[Sequence[int]], filler: int, device: Any
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Pads B rows on the right to the longest: (B, T) int64 tokens, and 1 where they are real."""
    import torch

    longest = max(1, *(len(row) for row in rows)) if rows else 1
    tokens = torch.full((len(rows), longest), filler, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for row, (place, real) in zip(rows, zip(tokens, mask, strict=True), strict=True):
        place[: len(row)] = torch.as_tensor(row, dtype=torch.long)
        real[: len(row)] = 1
    return tokens.to(device), mask.to(device)


def mean_token_losses(logits: "torch.Tensor", labels: "torch.Tensor") -> "torch.Tensor":
    """Computes each example's mean cross-entropy over its own labelled tokens.

    Args:
        logits: (B, T, V).
        labels: (B, T) int64, `IGNORED` where nothing is learnt.

    Returns:
        (B,) nats; zero for an example without labels.
    """
    from torch.nn.functional import cross_entropy

    flat = logits.reshape(-1, logits.shape[-1])
    losses = cross_entropy(flat, labels.reshape(-1), ignore_index=IGNORED, reduction="none")
    tokens = (labels != IGNORED).sum(dim=1).clamp(min=1)
    return losses.view(labels.shape).sum(dim=1) / tokens
