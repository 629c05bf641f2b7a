"""Gradients of a charged mechanism: settings, losses of single examples, and where records lie.

Public examples show before any charge whether a model can be trained so, and its loss.

Records are in this process, or with several workers. There the driver holds weights, optimizer,
charge and noise, and no record. A worker holds the same public model, takes the trained weights of
the step, and returns the clipped sum of what it drew.

Shape letters: n examples, B of one batch, T tokens, V vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dpsynth_assets.models.language_model import causal_rows, mean_token_losses
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.per_example import (
    GRADIENT_SLACK,
    LossOfPart,
    PerExampleGradients,
    Products,
    refuse_undeclared_slack,
    trainable_parameters,
)
from dpsynth_assets.privacy.poisson_sampling import SampledSum

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class FineTuningSettings:
    """Settings of AdamW for the gradients of a run; everything here is public.

    Attributes:
        learning_rate: Peak rate of AdamW.
        warmup_steps: Steps of linear warm-up; the rest of the run decays linearly to zero.
        weight_decay: Decoupled decay, as a share of the rate.
        micro_batch: Most examples passed through the model at once, by all threads together;
            memory grows with it.
        products: Arithmetic of the clipped sums.
        checkpoint_seconds: Seconds between checkpoints.

    **Source** CTCL, section 4.1.3: clip 1, decay 0.1, 100 steps of warm-up of 2000, linear decay,
    float32 throughout.
    """

    learning_rate: float
    warmup_steps: int = 100
    weight_decay: float = 0.1
    micro_batch: int = 32
    products: Products = Products.NATIVE
    checkpoint_seconds: float = 300.0

    def rate(self, step: int, steps: int) -> float:
        """Computes the learning rate of step 0, 1, … of a run of `steps`.

        Warm-up takes at most a tenth of a short run.
        """
        warmup = min(self.warmup_steps, steps // 10)
        if step < warmup:
            return self.learning_rate * (step + 1) / (warmup + 1)
        return self.learning_rate * (steps - step) / max(1, steps - warmup)


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
        targets = [each.targets for each in examples]
        inputs, labels = causal_rows(prompts, targets, self.pad_token_id)
        moved = {name: each.to(device) for name, each in inputs.items()}
        return mean_token_losses(model(**moved, use_cache=False).logits, labels.to(device))

    def length(self, example: TokenExample) -> int:
        """Tokens of prompt and targets."""
        return len(example.inputs) + len(example.targets)


SplitExamples = Callable[[FineTuningSettings, SampledSum, Sequence[np.ndarray]], np.ndarray]
"""Private examples that no process reads together. Given settings, what is drawn and the weights of
a step: the total of what all workers return (`SampledSum.counted`). Private."""
Gradients = Iterator[tuple[Sequence["torch.Tensor"], Sequence["torch.Tensor"]]]
"""Parameters and their gradients, one pair a step."""


def private_gradients(
    model: Any,
    examples: Sequence[Any] | SplitExamples,
    loss: ExampleLoss,
    mechanism: DpSgdMechanism,
    settings: FineTuningSettings,
) -> Gradients:
    """Yields noisy mean clipped gradients of true Poisson batches; those without a record, noise.

    Args:
        model: As it is trained.
        examples: n examples, or those of all workers.
        loss: Losses of single examples.
        mechanism: Charged for all its steps; its sums are exact where workers draw.
        settings: Micro-batches and arithmetic, the same for every worker.

    Raises:
        ValueError: Passes of several records need a declared slack, or sums of workers are not
            exact.

    **Privacy** What a step yields is the mechanism's release; everything made of it is
    post-processing. Sorting a batch by length and cutting it into micro-batches changes no
    example's loss, which is a mean over its own tokens; what it changes in the last bits of a
    gradient is kept back by the mechanism, and where a batch is larger than that covers, every
    record passes alone. Weights that workers are given follow from earlier releases under the same
    charge; they may not be seen before the stage is committed, and travel by the sensitive
    store.
    """
    if callable(examples):
        yield from _of_workers(model, examples, mechanism, settings)
        return
    if mechanism.most_in_company and mechanism.gradient_slack is None:
        refuse_undeclared_slack(model)
    clipped = _clipping(model, settings)
    for batch in mechanism.batches(len(examples)):
        together = mechanism.may_share_passes(len(batch))
        size = part_size(len(batch), settings.micro_batch, clipped.threads) if together else 1
        parts = (_loss_of(part, loss) for part in micro_batches(examples, batch, loss, size))
        yield clipped.parameters, mechanism.private_gradient_of_losses(clipped, parts)


def _of_workers(
    model: Any, examples: SplitExamples, mechanism: DpSgdMechanism, settings: FineTuningSettings
) -> Gradients:
    parameters = tuple(trainable_parameters(model).values())

    def summed(sampled: SampledSum) -> np.ndarray:
        weights = [each.detach().cpu().numpy() for each in parameters]
        return examples(settings, sampled, weights)

    for _ in range(mechanism.released_steps, mechanism.steps):
        yield parameters, mechanism.private_gradient_of_workers(summed, parameters)


class PartGradients:
    """A worker's model, which stays open over the steps of one training."""

    def __init__(self, model: Any, loss: ExampleLoss, settings: FineTuningSettings) -> None:
        """Takes a model with the weights that the driver's began with, trained ones aside.

        Raises:
            TypeError: It has a trainable parameter that cannot be clipped by example.
        """
        self._loss, self._clipped = loss, _clipping(model.eval(), settings)

    def take(self, weights: Sequence[np.ndarray]) -> None:
        """Puts the weights of the step in the place of the trained ones.

        Raises:
            ValueError: They are those of another model.
        """
        import torch

        expected = [tuple(each.shape) for each in self._clipped.parameters]
        if [each.shape for each in weights] != expected:
            raise ValueError(
                "Expected trained weights of the shapes of this model, got others. Use one version "
                "of dpsynth-assets on every node."
            )
        with torch.no_grad():
            for parameter, own in zip(self._clipped.parameters, weights, strict=True):
                parameter.copy_(torch.from_numpy(np.array(own)))

    def counted(self, examples: Sequence[Any], sampled: SampledSum) -> np.ndarray:
        """The clipped sum of examples that were drawn; see `SampledSum.counted`. Private."""
        alone = micro_batches(examples, np.arange(len(examples)), self._loss, 1)
        return sampled.counted(self._clipped, [_loss_of(part, self._loss) for part in alone])


def _clipping(model: Any, settings: FineTuningSettings) -> PerExampleGradients:
    import torch

    return PerExampleGradients(model, settings.products, torch.get_num_threads())


def part_size(batch: int, micro_batch: int, threads: int) -> int:
    """Examples of a piece: pieces come in rounds of one a thread, all of about one size."""
    rounds = -(-batch // micro_batch)
    return max(1, -(-batch // max(1, rounds * threads)))


def micro_batches(
    examples: Sequence[Any], batch: np.ndarray, loss: ExampleLoss, size: int
) -> Iterator[list[Any]]:
    """Cuts a batch into pieces of examples of similar length, longest first."""
    order = sorted(batch.tolist(), key=lambda index: -loss.length(examples[index]))
    for start in range(0, len(order), size):
        yield [examples[index] for index in order[start : start + size]]


def _loss_of(part: Sequence[Any], loss: ExampleLoss, *, public: bool = False) -> LossOfPart:
    """Losses of examples that share a pass; those of public examples must be numbers."""

    def losses(model: Any) -> "torch.Tensor":
        found = loss(model, part)
        if public and not bool(found.isfinite().all()):
            raise ValueError(
                "Expected finite losses of public examples, got others. Check the model's weights."
            )
        return found

    return LossOfPart(len(part), losses, len(part) * max(map(loss.length, part)))


def refuse_untrainable(
    model: Any,
    public_examples: Sequence[Any],
    loss: ExampleLoss,
    l2_bound: float,
    *,
    shared_passes: bool = False,
    slack: float | None = None,
) -> None:
    """Clips the gradients of some public examples, as a step of the private run would.

    Args:
        model: As the private run will start; its weights are left as they were.
        public_examples: PUBLIC or made up: at least two, of different lengths, the longest as long
            as any that will come.
        loss: Losses of single examples.
        l2_bound: C of the private run.
        shared_passes: Whether records may share passes on the strength of float32's own slack.
        slack: What records that share a pass may move of one clipped gradient, as a share of C, as
            it is charged; None: float32's own where passes are shared, else each is alone.

    Raises:
        TypeError: If a parameter cannot be clipped by example, or a layer mixes examples.
        ValueError: If the examples do not fit the model, or their losses are not numbers, or passes
            of several records need a declared slack, or records that share a pass move one
            another's gradients by more than it.

    **Privacy** Reads nothing private, and nothing that it computes is kept.
    """
    if shared_passes:
        refuse_undeclared_slack(model)
        slack = GRADIENT_SLACK if slack is None else slack
    model.eval()
    together = [_loss_of(public_examples, loss, public=True)]
    gradients = PerExampleGradients(model)
    sums, _ = gradients.private_clipped_sums(together, l2_bound)
    if slack is not None:
        one_by_one = [_loss_of([each], loss, public=True) for each in public_examples]
        alone, _ = gradients.private_clipped_sums(one_by_one, l2_bound)
        squares = [float((a - b).square().sum()) for a, b in zip(sums, alone, strict=True)]
        moved, allowed = math.sqrt(math.fsum(squares)) / l2_bound, slack * len(public_examples)
        if not moved <= allowed:
            raise ValueError(
                "Expected records that share a pass to move the sum of their clipped gradients by "
                f"at most {allowed:.1e} of the bound, got {moved:.1e} on public text: a layer "
                "mixes examples, or rounds more than is charged. Set exact_sums: true, which "
                "processes each record alone, or use another model."
            )


def mean_loss(model: Any, public_examples: Sequence[Any], loss: ExampleLoss, size: int) -> float:
    """Computes the mean loss of public examples, infinite where it is not a number."""
    import torch

    model.eval()
    everyone = np.arange(len(public_examples))
    with torch.no_grad():
        parts = micro_batches(public_examples, everyone, loss, size)
        total = sum(float(loss(model, part).double().sum()) for part in parts)
    mean = total / len(public_examples)
    return mean if np.isfinite(mean) else float("inf")
