"""Frozen linear layers in 8-bit integers, for training adapters beside them on a processor.

A frozen layer has no gradient of its own: it only carries activations forward and their gradients
back. Both products are taken of integers, which a processor multiplies several times as fast as
float32. Rounding is not differentiated: the gradient passes it as if it were not there.

Shape letters: T tokens, d features in, p features out.
"""

from functools import cache, partial
from typing import TYPE_CHECKING, Any

from dpsynth_assets.models.exact_decoder.integer_products import (
    KERNELS,
    LIMIT,
    IntegerProduct,
    fastest_kernel,
    quantized_rows,
    quantized_weight,
)
from dpsynth_assets.privacy.cpu_threads import run_alone

if TYPE_CHECKING:
    import torch


def multiply_in_integers(model: Any) -> None:
    """Has the frozen linear layers of a model on a processor multiply 8-bit integers; in place.

    Weights have one scale an output channel, activations and gradients one a token. The float32
    weights stay, for `restore_layers`. The gradient that leaves the output layer is multiplied in
    float32: nearly all of it lies on one token, beside which 8 bits see none of the others.

    Args:
        model: With adapters; layers with a trainable weight or a bias stay as they are, and so does
            a model on a device.

    **Privacy** A rounded activation jumps where a number moves by its last bit, so that records
    which share a pass would move one another by far more than float32's slack. Every record must
    pass alone (`exact_sums: true`): its gradient is then a function of the record and the weights.
    """
    if any(each.device.type != "cpu" for each in model.parameters()):
        return
    head = _output_layer(model)
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if _is_frozen_product(layer):
                setattr(parent, name, _integer_linear()(layer, back=layer is not head))


def restore_layers(model: Any) -> None:
    """Puts the float32 layers back, as they were before `multiply_in_integers`; in place."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, _integer_linear()):
                setattr(parent, name, layer.layer)


def _output_layer(model: Any) -> Any:
    find = getattr(model, "get_output_embeddings", None)
    return None if find is None else find()


def _is_frozen_product(layer: Any) -> bool:
    from torch import nn

    return type(layer) is nn.Linear and layer.bias is None and not layer.weight.requires_grad


def _product(weight: "torch.Tensor") -> IntegerProduct:
    integers, scale = quantized_weight(weight, 1 / LIMIT)
    outputs, inputs = integers.shape
    (kernel,) = run_alone([partial(fastest_kernel, [(outputs, inputs)])], 1)
    return KERNELS[kernel](integers, scale)


class _Products:
    """Both products of one weight: copies of a model, one a thread, share them."""

    def __init__(self, weight: "torch.Tensor", *, back: bool) -> None:
        """Quantizes a (p, d) float32 weight; without `back`, for the way forward alone."""
        weight = weight.detach()
        self.forward = _product(weight)
        self.back = _product(weight.t().contiguous()) if back else None

    def __deepcopy__(self, _memo: dict[int, Any]) -> "_Products":
        return self


@cache
def _integer_linear() -> Any:
    """The class of layers in integers; torch is loaded with it."""
    import torch
    from torch import nn

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(
            context: Any, inputs: torch.Tensor, weight: torch.Tensor, products: _Products
        ) -> torch.Tensor:
            context.products = products
            context.save_for_backward(weight)
            return _multiplied(products.forward, inputs)

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
            back = context.products.back
            if back is not None:
                return _multiplied(back, gradient), None, None
            (weight,) = context.saved_tensors
            return gradient @ weight, None, None

    class IntegerLinear(nn.Module):
        """A frozen linear layer without bias, in integers."""

        def __init__(self, layer: nn.Linear, *, back: bool) -> None:
            super().__init__()
            self.layer, self._products = layer, _Products(layer.weight, back=back)

        @property
        def weight(self) -> torch.Tensor:
            """The float32 weight (p, d)."""
            return self.layer.weight

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            """Maps float32 (…, d) to (…, p)."""
            found: torch.Tensor = Product.apply(inputs, self.layer.weight, self._products)
            return found

    return IntegerLinear


def _multiplied(product: IntegerProduct, rows: "torch.Tensor") -> "torch.Tensor":
    """Rounds each of (…, d) rows to 8 bits by its largest number, and multiplies: (…, p)."""
    rounded, largest = quantized_rows(rows.reshape(-1, rows.shape[-1]).contiguous())
    return product(rounded).mul_(largest).view(*rows.shape[:-1], -1)
