"""Low-rank adapters (LoRA) through peft: few trainable parameters, hence little noise."""

from typing import Any


def add_adapters(model: Any, rank: int, *, scale: float = 2.0) -> Any:
    """Freezes a model and adds trainable LoRA matrices to all its linear layers.

    Args:
        model: A transformers model; its weights stay as they are.
        rank: r >= 1 of the added matrices.
        scale: α / r, what the added product is multiplied with.

    Returns:
        A peft model of which only the adapters, and a new classification head, are trainable.

    Raises:
        ValueError: If the rank is not positive.

    **Source** Hu et al. 2022 (arXiv:2106.09685), section 4.1; without adapter dropout, which
    DP-Adam does not need.
    """
    from peft import LoraConfig, TaskType, get_peft_model

    if rank < 1:
        raise ValueError(f"Expected rank >= 1, got {rank}.")
    classifies = type(model).__name__.endswith("ForSequenceClassification")
    config = LoraConfig(
        r=rank,
        lora_alpha=max(1, round(scale * rank)),
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type=TaskType.SEQ_CLS if classifies else None,
    )
    return get_peft_model(model, config)


def merge_adapters(model: Any) -> Any:
    """Folds trained adapters into their layers: an ordinary model for generation."""
    return model.merge_and_unload()
