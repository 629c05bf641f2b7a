"""Per-example gradients of layers that book-keeping does not know, computed by Opacus.

Opacus repeats a layer's forward and backward pass for each example (vectorised by `torch.func`),
from the layer's input and the gradient of its output. Norms, clipping and sums stay ours.

Shape letters: B examples, n numbers of one parameter.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Sampler = Callable[..., Any]
"""Given parameters, (B, …) inputs and (B, …) output gradients: (B, *shape) gradients of each."""

_REMEDY = "Freeze it (requires_grad=False), or train adapters."


def sampler_of(module: "torch.nn.Module") -> Sampler:
    """Prepares Opacus's per-example gradients of a layer and of all that is inside of it.

    Raises:
        TypeError: If Opacus refuses the layer: it has buffers, or cannot be copied.
    """
    from opacus.grad_sample.functorch import prepare_layer

    try:
        prepare_layer(module)
    except RuntimeError as error:  # NotImplementedError is one
        raise TypeError(
            "Expected trainable layers whose per-example gradients Opacus can compute, got a "
            f"{type(module).__name__}, which has buffers or cannot be copied. {_REMEDY}"
        ) from error
    sampler: Sampler = module.__dict__.pop("ft_compute_sample_grad")
    return sampler


def only_input(module: "torch.nn.Module", args: Any, kwargs: Mapping[str, Any]) -> "torch.Tensor":
    """Returns the one tensor that a layer was called with.

    Raises:
        TypeError: If it was called with anything else that is not the default: Opacus would leave
            it out.
    """
    import torch

    signature = inspect.signature(module.forward)
    given = list(signature.bind(*args, **kwargs).arguments.items())
    first = given[0][1] if given else None
    others = [
        name for name, value in given[1:] if not _is_default(signature.parameters[name], value)
    ]
    if others or not isinstance(first, torch.Tensor):
        got = ", ".join(others) if others else "no tensor first"
        raise TypeError(
            f"Expected a trainable {type(module).__name__} to be called with one tensor alone, "
            f"since Opacus computes its gradients, got {got}. {_REMEDY}"
        )
    return first


def _is_default(parameter: inspect.Parameter, value: Any) -> bool:
    """Whether leaving an argument out changes nothing."""
    default = parameter.default
    return value is default or (isinstance(value, bool | int | float | str) and value == default)


def example_gradients(
    sampler: Sampler,
    module: "torch.nn.Module",
    inputs: "torch.Tensor",
    gradient: "torch.Tensor",
) -> "list[tuple[torch.nn.Parameter, torch.Tensor]]":
    """Computes (B, n) float64 gradients of a layer's trainable parameters.

    Args:
        sampler: Of the layer, from `sampler_of`.
        module: The layer.
        inputs: (B, …), the i-th of example i.
        gradient: (B, …) gradient of the layer's output.

    Raises:
        TypeError: If the layer does something that cannot be vectorised over examples.
    """
    import torch

    if inputs.is_floating_point():
        inputs = inputs.to(gradient.dtype)  # as autocast did
    parameters = list(module.parameters())
    try:
        found = sampler(parameters, inputs, gradient)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        raise TypeError(
            "Expected trainable layers whose per-example gradients Opacus can vectorise, got a "
            f"{type(module).__name__}, which it cannot. {_REMEDY}"
        ) from error
    return [
        (parameter, each.detach().flatten(1).double())
        for parameter, each in zip(parameters, found, strict=True)
        if parameter.requires_grad
    ]
