"""Settings of fine-tuning that are no part of the privacy mechanism, and low-rank adapters.

Adapters (LoRA, through peft) have few trainable parameters, hence little noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpsynth_assets.models.fine_tuning.integer_base import restore_layers
from dpsynth_assets.privacy.per_example import Products


@dataclass(frozen=True, kw_only=True)
class FineTuningSettings:
    """Settings of AdamW for the gradients of a run; everything here is public.

    Attributes:
        learning_rate: Peak rate of AdamW, given or from `public_learning_rate`.
        warmup_steps: Steps of linear warm-up; the rest of the run decays linearly to zero.
        weight_decay: Decoupled decay, as a share of the rate.
        betas: Decay of the first and second moments.
        adam_epsilon: Added to the root of the second moment.
        micro_batch: Most examples passed through the model at once, by all threads together;
            memory grows with it.
        threads: CPU threads, each on a part of a micro-batch; None takes torch's. They move last
            bits.
        autocast: Whether passes run in bfloat16 (on a GPU); parameters stay float32.
        products: Arithmetic of the clipped sums.
        dropout: Whether the model's dropout is active; noise regularises enough.
        checkpoint_steps: Steps between checkpoints; None leaves it to the clock.
        checkpoint_seconds: Seconds between checkpoints.

    **Source** CTCL, section 4.1.3: clip 1, decay 0.1, 100 steps of warm-up of 2000, linear decay,
    float32 throughout.
    """

    learning_rate: float
    warmup_steps: int = 100
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    adam_epsilon: float = 1e-8
    micro_batch: int = 32
    threads: int | None = None
    autocast: bool = False
    products: Products = Products.NATIVE
    dropout: bool = False
    checkpoint_steps: int | None = None
    checkpoint_seconds: float = 300.0

    def __post_init__(self) -> None:
        """Refuses numbers outside their domains."""
        positive = {"learning_rate": self.learning_rate, "adam_epsilon": self.adam_epsilon}
        for name, value in positive.items():
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"Expected 0 < {name} < inf, got {value}.")
        for name, count in {"micro_batch": self.micro_batch, "threads": self.threads}.items():
            if count is not None and count < 1:
                raise ValueError(f"Expected {name} >= 1, got {count}.")
        if self.warmup_steps < 0 or self.weight_decay < 0:
            raise ValueError(
                "Expected warmup_steps >= 0 and weight_decay >= 0, got "
                f"{self.warmup_steps} and {self.weight_decay}."
            )
        if self.checkpoint_steps is not None and self.checkpoint_steps < 1:
            raise ValueError(f"Expected checkpoint_steps >= 1, got {self.checkpoint_steps}.")

    def rate(self, step: int, steps: int) -> float:
        """Computes the learning rate of step 0, 1, … of a run of `steps`.

        Warm-up takes at most a tenth of a short run.
        """
        warmup = min(self.warmup_steps, steps // 10)
        if step < warmup:
            return self.learning_rate * (step + 1) / (warmup + 1)
        return self.learning_rate * (steps - step) / max(1, steps - warmup)


def add_adapters(
    model: Any, rank: int, *, modules: Sequence[str] | None = None, scale: float = 2.0
) -> Any:
    """Freezes a model and adds trainable LoRA matrices beside its linear layers.

    Args:
        model: A transformers model; its weights stay as they are.
        rank: r >= 1 of the added matrices.
        modules: Names of the layers to adapt, e.g. `q_proj`, wherever they occur; None: all linear
            layers but the output layer.
        scale: α / r, what the added product is multiplied with.

    Returns:
        A peft model of which only the adapters, and a new classification head, are trainable.

    Raises:
        ValueError: If the rank is not positive, or the model has no linear layer of such a name.

    **Source** Hu et al. 2022 (arXiv:2106.09685), section 4.1; without adapter dropout, which
    DP-Adam does not need.
    """
    from peft import LoraConfig, TaskType, get_peft_model

    if rank < 1:
        raise ValueError(f"Expected rank >= 1, got {rank}.")
    if modules is not None:
        _refuse_unknown(model, modules)
    classifies = type(model).__name__.endswith("ForSequenceClassification")
    config = LoraConfig(
        r=rank,
        lora_alpha=max(1, round(scale * rank)),
        lora_dropout=0.0,
        target_modules="all-linear" if modules is None else list(modules),
        task_type=TaskType.SEQ_CLS if classifies else None,
    )
    return get_peft_model(model, config)


def _refuse_unknown(model: Any, modules: Sequence[str]) -> None:
    """Refuses names that no linear layer has: an adapter that is not there would train nothing."""
    from torch import nn

    known = {
        name.rpartition(".")[2]
        for name, layer in model.named_modules()
        if type(layer) is nn.Linear or type(layer).__name__ == "Conv1D"
    }
    unknown = [name for name in modules if name not in known]
    if unknown or not modules:
        raise ValueError(
            f"Expected lora_modules among {', '.join(sorted(known)) or 'linear layers'}, got "
            f"{', '.join(unknown) or 'none'}. Name layers of {type(model).__name__}, or leave "
            "lora_modules out."
        )


def merge_adapters(model: Any) -> Any:
    """Folds trained adapters into their float32 layers: an ordinary model for generation."""
    restore_layers(model)
    return model.merge_and_unload()
