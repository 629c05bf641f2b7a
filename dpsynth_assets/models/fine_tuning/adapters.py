"""What is trained beside frozen weights: low-rank adapters.

They have few trainable numbers, hence little noise. They are LoRA's, through peft. Folded in, they
leave an ordinary model, so that any code that runs such a model runs the tuned one.

On a processor frozen linear layers may multiply 8-bit integers. A frozen layer has no gradient of
its own: it only carries activations forward and their gradients back. Both products are taken of
integers, several times as fast as float32. Rounding is not differentiated: the gradient passes it
as if it were not there.

Shape letters: T tokens, d features in, p features out.
"""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from dpsynth_assets.models.exact_decoder.integer_products import (
    KERNELS,
    LIMIT,
    IntegerProduct,
    fastest_kernel,
    quantized_rows,
    quantized_weight,
)

if TYPE_CHECKING:
    import torch


def add_adapters(model: Any, rank: int, *, modules: Sequence[str] | None = None) -> Any:
    """Freezes a model and adds trainable LoRA matrices beside its linear layers.

    Args:
        model: A transformers model; its weights stay as they are.
        rank: r >= 1 of the added matrices.
        modules: Names of the layers to adapt, e.g. `q_proj`, wherever they occur; None: all linear
            layers but the output layer.

    Returns:
        A peft model of which only the adapters are trainable.

    Raises:
        ValueError: The model has no layers of such names.

    **Source** Hu et al. 2022 (arXiv:2106.09685), section 4.1; without adapter dropout, which
    DP-Adam does not need.
    """
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,  # The added product is doubled.
        lora_dropout=0.0,
        target_modules="all-linear" if modules is None else list(modules),
    )
    return get_peft_model(model, config)


def merge_adapters(model: Any) -> Any:
    """Folds trained adapters into their float32 layers: an ordinary model for generation."""
    restore_layers(model)
    return model.merge_and_unload()


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
    head = getattr(model, "get_output_embeddings", lambda: None)()
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


def _is_frozen_product(layer: Any) -> bool:
    from torch import nn

    return type(layer) is nn.Linear and layer.bias is None and not layer.weight.requires_grad


def _product(weight: "torch.Tensor") -> IntegerProduct:
    integers, scale = quantized_weight(weight, 1 / LIMIT)
    outputs, inputs = integers.shape
    return KERNELS[fastest_kernel([(outputs, inputs)])](integers, scale)


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
            return Product.apply(inputs, self.layer.weight, self._products)

    return IntegerLinear


def _multiplied(product: IntegerProduct, rows: "torch.Tensor") -> "torch.Tensor":
    """Rounds each of (…, d) rows to 8 bits by its largest number, and multiplies: (…, p)."""
    rounded, largest = quantized_rows(rows.reshape(-1, rows.shape[-1]).contiguous())
    return product(rounded).mul_(largest).view(*rows.shape[:-1], -1)
