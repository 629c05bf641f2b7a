"""Kinds of modules, by how the gradients of their parameters are computed, and refusals.

Layers of other kinds than ours are left to Opacus, whole, with all that is inside of them. A
parameter that is not booked would train on nothing, so a model is taken whole or not at all.

Tables of relative positions are looked up once for all examples: T5 and its kin compute a
(1, H, Q, K) bias from a table of one row a bucket and one column a head. It is repeated for every
example before anything reads it, so that each has a gradient of its own.

Shape letters: B examples, H heads, Q queries, K keys, m buckets.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class ModuleKind(StrEnum):
    """The way in which a module uses its parameters."""

    LINEAR = "linear"
    TRANSPOSED_LINEAR = "transposed linear"
    EMBEDDING = "embedding"
    RELATIVE_BIAS = "table of relative positions"
    LAYER_NORM = "layer norm"
    RMS_NORM = "root-mean-square norm"
    OPACUS = "layer that Opacus computes the gradients of"


def booked_modules(model: "torch.nn.Module") -> "list[tuple[torch.nn.Module, ModuleKind]]":
    """Lists the modules that hold trainable parameters, each once.

    Raises:
        TypeError: If no kind of layer allows for what a trainable layer does, or a layer mixes the
            examples of a batch.
    """
    found = []
    owners = owners_of_tables(model)
    inside: set[int] = set()
    for name, module in model.named_modules():
        _refuse_batch_statistics(name, module)
        own = [each for each, p in module.named_parameters(recurse=False) if p.requires_grad]
        if not own:
            continue
        _refuse_unusual_table(f"{name}.{own[0]}", module)
        if id(module) in inside:
            continue
        kind = kind_of(module)
        if kind is ModuleKind.EMBEDDING and id(module) in owners:
            kind = _relative_bias(name, owners[id(module)])
        if kind is ModuleKind.OPACUS:
            inside |= {id(each) for each in module.modules()}
        found.append((module, kind))
    if not found:
        raise TypeError("Expected a trainable parameter, got none. Unfreeze a layer.")
    return found


def _relative_bias(name: str, owner: "torch.nn.Module") -> ModuleKind:
    """Tells that a table of relative positions can be booked.

    Raises:
        TypeError: If its look-ups cannot be distinguished by example.
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


def opacus_layers(model: "torch.nn.Module") -> tuple[str, ...]:
    """Names the layers of a model whose gradients Opacus computes, each with its class.

    Raises:
        TypeError: As `booked_modules`.
    """
    names = {id(module): name for name, module in model.named_modules()}
    return tuple(
        f"{names[id(module)] or 'the model'} ({type(module).__name__})"
        for module, kind in booked_modules(model)
        if kind is ModuleKind.OPACUS
    )


def kind_of(module: "torch.nn.Module") -> ModuleKind:
    """Recognises a module by its class, and root-mean-square norms by what they compute."""
    from torch import nn

    if type(module) is nn.Linear:
        return ModuleKind.LINEAR
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        return ModuleKind.TRANSPOSED_LINEAR
    if isinstance(module, nn.Embedding):
        return ModuleKind.EMBEDDING
    if type(module) is nn.LayerNorm and len(module.normalized_shape) == 1:
        return ModuleKind.LAYER_NORM
    named_as_norm = type(module).__name__.endswith(("RMSNorm", "T5LayerNorm"))
    if named_as_norm and _behaves_like_rms_norm(module):
        return ModuleKind.RMS_NORM
    return ModuleKind.OPACUS


def _refuse_unusual_table(name: str, module: "torch.nn.Module") -> None:
    """Refuses look-ups that depend on other examples of the batch, and sparse parameters."""
    from torch import nn

    table: Any = module if isinstance(module, nn.Embedding | nn.EmbeddingBag) else None
    unusual = table is not None and (
        table.sparse or table.scale_grad_by_freq or table.max_norm is not None
    )
    if unusual or any(p.is_sparse for p in module.parameters(recurse=False)):
        raise TypeError(
            "Expected tables without max_norm, scale_grad_by_freq or sparse gradients, got "
            f"{name} of a {type(module).__name__}. Freeze it (requires_grad=False)."
        )


def _refuse_batch_statistics(name: str, module: "torch.nn.Module") -> None:
    from torch.nn.modules.batchnorm import _BatchNorm

    if isinstance(module, _BatchNorm):
        raise TypeError(
            f"Expected layers that keep examples apart, got batch normalisation at {name}. "
            "Use a layer or group norm."
        )


def rms_norm_epsilon(module: "torch.nn.Module") -> float | None:
    """Reads ε of a root-mean-square norm, under any name."""
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


def owners_of_tables(model: "torch.nn.Module") -> "dict[int, torch.nn.Module]":
    """Finds modules with a `relative_attention_bias`, by the table's `id`."""
    from torch import nn

    return {
        id(owner.relative_attention_bias): owner
        for owner in model.modules()
        if isinstance(getattr(owner, "relative_attention_bias", None), nn.Embedding)
    }


def repeats_a_look_up(owner: "torch.nn.Module") -> bool:
    """Says, by trying, whether a module's `compute_bias` does no more than look up and rearrange.

    A look-up of distinct numbers tells which bucket each pair of places reads.
    """
    import torch

    table: Any = owner.relative_attention_bias
    compute = getattr(owner, "compute_bias", None)
    if compute is None or table.padding_idx is not None:
        return False
    indices: list[torch.Tensor] = []
    handle = table.register_forward_pre_hook(lambda _, inputs: indices.append(inputs[0]))
    try:
        with torch.no_grad():
            bias = compute(3, 5)
    except (TypeError, ValueError, RuntimeError):
        return False
    finally:
        handle.remove()
    return len(indices) == 1 and is_look_up(bias, indices[0], table.weight)


def is_look_up(bias: "torch.Tensor", index: "torch.Tensor", weight: "torch.Tensor") -> bool:
    """Says whether a (1, H, Q, K) bias holds, place by place, the rows of the (m, H) table."""
    import torch

    shape = (1, weight.shape[1], *index.shape)
    return bias.shape == shape and torch.equal(bias[0], weight.detach()[index].permute(2, 0, 1))


def bucket_sums(
    index: "torch.Tensor", gradient: "torch.Tensor", buckets: int
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Sums what each example's bias received into the table's shape.

    Args:
        index: (Q, K) int64 in [0, m).
        gradient: (B, H, Q, K).
        buckets: m.

    Returns:
        (B, m · H) float64 gradients, and (B,) float64 sums of the norms of their terms.
    """
    import torch

    places = index.reshape(-1)
    found, coarse = [], []
    for own in gradient:  # one example at a time: Q K numbers in float64 for each head are many
        terms = own.flatten(1).double()
        table = terms.new_zeros(len(terms), buckets).index_add_(1, places, terms)
        found.append(table.T.flatten())
        coarse.append(terms.norm(dim=0).sum())
    return torch.stack(found), torch.stack(coarse)
