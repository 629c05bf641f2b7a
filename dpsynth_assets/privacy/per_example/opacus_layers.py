"""Per-example gradients of layers that book-keeping does not know, computed by Opacus.

Opacus repeats a layer's forward and backward pass for each example (vectorised by `torch.func`),
from what the layer was given and the gradient of its output. Norms, clipping and sums stay ours.

Shape letters: B examples, n numbers of one parameter.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

_REMEDY = "Freeze it (requires_grad=False), or train adapters."


class Rows(NamedTuple):
    """(B, …) tensors that a layer was given, the i-th row of each of example i.

    Opacus takes it for one tensor: `torch.func.vmap` maps over all tensors of a tuple.
    """

    tensors: "tuple[torch.Tensor, ...]"

    def unsqueeze(self, axis: int) -> "Rows":
        """Puts an axis of length 1 into each tensor."""
        return Rows(tuple(each.unsqueeze(axis) for each in self.tensors))

    @property
    def dtype(self) -> "torch.dtype":
        """The type of the first tensor that is no index."""
        import torch

        found = (each.dtype for each in self.tensors if each.is_floating_point())
        return next(found, torch.get_default_dtype())

    @property
    def device(self) -> "torch.device":
        """The device of the first tensor."""
        return self.tensors[0].device

    def is_floating_point(self) -> bool:
        """False: `cast` has converted what is to be converted."""
        return False

    def cast(self, dtype: "torch.dtype") -> "Rows":
        """Converts all but indices and masks."""
        return Rows(
            tuple(each.to(dtype) if each.is_floating_point() else each for each in self.tensors)
        )


class _Row(NamedTuple):
    """Stands in an argument for a tensor of `Rows`."""

    place: int


class Call(NamedTuple):
    """The inputs of one call of a layer.

    Attributes:
        rows: What belongs to the examples.
        args: Positional arguments; `_Row` where they belong to the examples.
        kwargs: Arguments by name, likewise.
    """

    rows: Rows
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def call_of(
    module: "torch.nn.Module",
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    examples: int,
    from_batch: Callable[[Any], bool],
) -> Call:
    """Separates what belongs to the examples of a batch from what all of them share.

    Args:
        module: The layer.
        args: Its positional arguments.
        kwargs: Its arguments by name.
        examples: B.
        from_batch: Whether a tensor was computed from the batch (`Descent.includes`).

    Raises:
        TypeError: If nothing belongs to the examples, a tensor of the batch has another first axis,
            or an argument is no tensor, number or text.
    """
    import torch

    rows: list[torch.Tensor] = []

    def sort(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if not from_batch(value):
                return value.detach()
            if value.shape[:1] != (examples,):
                raise _refusal(module, "tensors of one row for each example", "another first axis")
            rows.append(value.detach())
            return _Row(len(rows) - 1)
        if isinstance(value, tuple | list):
            return [sort(each) for each in value]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise _refusal(module, "tensors, numbers and texts", f"a {type(value).__name__}")

    given = tuple(sort(each) for each in args), {name: sort(each) for name, each in kwargs.items()}
    if not rows:
        raise _refusal(module, "tensors computed from those that the model is given", "others")
    return Call(Rows(tuple(rows)), *given)


def refuse_unfit(module: "torch.nn.Module") -> None:
    """Refuses a layer that Opacus does: one with buffers, or that cannot be copied.

    Raises:
        TypeError: If it is.
    """
    from opacus.grad_sample.functorch import prepare_layer

    try:
        prepare_layer(module)
    except RuntimeError as error:  # NotImplementedError is one
        raise TypeError(
            "Expected trainable layers whose per-example gradients Opacus can compute, got a "
            f"{type(module).__name__}, which has buffers or cannot be copied. {_REMEDY}"
        ) from error
    del module.ft_compute_sample_grad


def example_gradients(
    module: "torch.nn.Module", call: Call, gradient: "torch.Tensor"
) -> "list[tuple[torch.nn.Parameter, torch.Tensor]]":
    """Computes (B, n) float64 gradients of a layer's trainable parameters.

    Args:
        module: The layer.
        call: What it was given.
        gradient: (B, …) gradient of the layer's output.

    Raises:
        TypeError: If the layer does something that cannot be vectorised over examples, or what was
            taken for shared has rows of several.
    """
    import torch
    from opacus.grad_sample.functorch import ft_compute_per_sample_gradient

    rows = call.rows.cast(gradient.dtype)  # as autocast did
    try:
        found = ft_compute_per_sample_gradient(
            _called()(module, call, gradient.shape[1:]), [rows], gradient
        )
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        raise TypeError(
            "Expected trainable layers whose per-example gradients Opacus can vectorise, got a "
            f"{type(module).__name__}, which it cannot. {_REMEDY}"
        ) from error
    return [
        (parameter, each.detach().flatten(1).double())
        for parameter, each in found.items()
        if parameter.requires_grad
    ]


@cache
def _called() -> Any:
    """Returns the class of a layer that is given `Rows` in place of its arguments."""
    from torch import nn

    class Called(nn.Module):
        def __init__(self, module: nn.Module, call: Call, shape: tuple[int, ...]) -> None:
            super().__init__()
            self._module, self._shape = module, (1, *shape)
            self._args, self._kwargs = call.args, call.kwargs

        def forward(self, rows: Rows) -> Any:
            kwargs = {name: _filled(each, rows) for name, each in self._kwargs.items()}
            output = self._module(*(_filled(each, rows) for each in self._args), **kwargs)
            if output.shape != self._shape:
                raise ValueError("Expected the output of one example, got that of several.")
            return output

    return Called


def _filled(value: Any, rows: Rows) -> Any:
    """Puts tensors of `Rows` back where they were."""
    if isinstance(value, _Row):
        return rows.tensors[value.place]
    return tuple(_filled(each, rows) for each in value) if isinstance(value, list) else value


def _refusal(module: "torch.nn.Module", expected: str, got: str) -> TypeError:
    return TypeError(
        f"Expected a trainable {type(module).__name__}, whose gradients Opacus computes, to be "
        f"given {expected}, got {got}. {_REMEDY}"
    )
