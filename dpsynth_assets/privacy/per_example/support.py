"""Which modules' gradients can be booked, and a refusal of every other trainable parameter.

A parameter that nobody books would train on nothing, so a model is taken whole or not at all.
"""

from enum import StrEnum
from typing import TYPE_CHECKING

from dpsynth_assets.privacy.per_example.relative_bias import owners_of_tables, repeats_a_look_up

if TYPE_CHECKING:
    import torch


class ModuleKind(StrEnum):
    """How a module uses its parameters."""

    LINEAR = "linear"
    TRANSPOSED_LINEAR = "transposed linear"
    EMBEDDING = "embedding"
    RELATIVE_BIAS = "table of relative positions"
    LAYER_NORM = "layer norm"
    RMS_NORM = "root-mean-square norm"


def booked_modules(model: "torch.nn.Module") -> "list[tuple[torch.nn.Module, ModuleKind]]":
    """Lists the modules that hold trainable parameters, each once.

    Raises:
        TypeError: If a trainable parameter belongs to a module of another kind, or a layer mixes
            the examples of a batch.
    """
    found = []
    owners = owners_of_tables(model)
    for name, module in model.named_modules():
        _refuse_batch_statistics(name, module)
        own = [each for each, p in module.named_parameters(recurse=False) if p.requires_grad]
        if not own:
            continue
        kind = kind_of(module)
        if kind is ModuleKind.EMBEDDING and id(module) in owners:
            kind = _relative_bias(name, owners[id(module)])
        if kind is None or any(p.is_sparse for p in module.parameters(recurse=False)):
            raise TypeError(
                "Expected trainable parameters of linear, embedding and norm layers, got "
                f"{name}.{own[0]} of a {type(module).__name__}. Freeze it (requires_grad=False)."
            )
        found.append((module, kind))
    if not found:
        raise TypeError("Expected a trainable parameter, got none. Unfreeze a layer.")
    return found


def _relative_bias(name: str, owner: "torch.nn.Module") -> ModuleKind:
    """Tells that a table of relative positions can be booked.

    Raises:
        TypeError: If its look-ups cannot be told apart by example.
    """
    if not repeats_a_look_up(owner):
        raise TypeError(
            f"Expected relative positions that are looked up as T5 does, got {name} of a "
            f"{type(owner).__name__}. Freeze it (requires_grad=False), or train adapters."
        )
    return ModuleKind.RELATIVE_BIAS


def trainable_parameters(model: "torch.nn.Module") -> "dict[str, torch.nn.Parameter]":
    """Names each trainable parameter once, tied ones under their first name."""
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def kind_of(module: "torch.nn.Module") -> ModuleKind | None:
    """Recognises a module by its class, and root-mean-square norms by what they compute."""
    from torch import nn

    if type(module) is nn.Linear:
        return ModuleKind.LINEAR
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        return ModuleKind.TRANSPOSED_LINEAR
    if isinstance(module, nn.Embedding):
        return ModuleKind.EMBEDDING if _is_plain_embedding(module) else None
    if type(module) is nn.LayerNorm:
        return ModuleKind.LAYER_NORM if len(module.normalized_shape) == 1 else None
    if type(module).__name__.endswith(("RMSNorm", "T5LayerNorm")):
        return ModuleKind.RMS_NORM if _behaves_like_rms_norm(module) else None
    return None


def _is_plain_embedding(module: "torch.nn.Embedding") -> bool:
    """Looks up rows and does nothing that depends on other examples of the batch."""
    return not (module.sparse or module.scale_grad_by_freq or module.max_norm is not None)


def _refuse_batch_statistics(name: str, module: "torch.nn.Module") -> None:
    from torch.nn.modules.batchnorm import _BatchNorm

    if isinstance(module, _BatchNorm):
        raise TypeError(
            f"Expected layers that keep examples apart, got batch normalisation at {name}. "
            "Use a layer or group norm."
        )


def rms_norm_epsilon(module: "torch.nn.Module") -> float | None:
    """Reads ε of a root-mean-square norm, whatever it is called."""
    for name in ("variance_epsilon", "eps"):
        if hasattr(module, name):
            value = getattr(module, name)
            return None if value is None else float(value)
    return None


def normalized(inputs: "torch.Tensor", kind: ModuleKind, epsilon: float | None) -> "torch.Tensor":
    """Computes what a norm layer multiplies with its weight: the weight's derivative."""
    from torch.nn import functional

    wide = inputs.float() if inputs.element_size() < 4 else inputs
    if kind is ModuleKind.LAYER_NORM:
        return functional.layer_norm(wide, wide.shape[-1:], eps=epsilon or 0.0)
    return functional.rms_norm(wide, wide.shape[-1:], eps=epsilon)


def _behaves_like_rms_norm(module: "torch.nn.Module") -> bool:
    """Compares the derivative by the weight with autograd's on made-up numbers."""
    import torch

    weights = list(module.parameters(recurse=False))
    if len(weights) != 1 or weights[0].dim() != 1:
        return False
    weight = weights[0]
    numbers = torch.linspace(-2.0, 3.0, 5 * weight.numel(), device=weight.device)
    inputs = numbers.sin().view(5, -1).to(weight.dtype)
    with torch.enable_grad():
        outputs = module(inputs)
        (expected,) = torch.autograd.grad((outputs * inputs).sum(), weight)
    booked = (inputs * normalized(inputs, ModuleKind.RMS_NORM, rms_norm_epsilon(module))).sum(0)
    tolerance = 1e-3 if weight.element_size() >= 4 else 5e-2
    return bool(torch.allclose(booked.float(), expected.float(), rtol=tolerance, atol=tolerance))
