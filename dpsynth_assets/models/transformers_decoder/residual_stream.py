"""The residual stream of a transformers decoder, read or added to where it leaves each layer."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class LastLayerReachedError(Exception):
    """Ends a forward pass of which no later layer is wanted; caught by whoever started it."""


def decoder_layers(model: Any) -> Any:
    """The list of decoder layers, whatever the architecture calls it.

    Raises:
        ValueError: The model has no list of as many modules as its configuration has layers.
    """
    from torch.nn import ModuleList

    count = model.config.get_text_config().num_hidden_layers
    for module in model.base_model.modules():
        if isinstance(module, ModuleList) and len(module) == count:
            return module
    raise ValueError(f"Expected a decoder with {count} layers in a row, found none in the model.")


@contextmanager
def adding_to_stream(model: Any, vectors: "Mapping[int, torch.Tensor]") -> Iterator[None]:
    """Adds vectors[layer] (d,) at every position of every pass to what leaves that layer."""

    def adds(vector: "torch.Tensor") -> Callable[..., Any]:
        return lambda _module, _inputs, output: _with_stream(output, _stream(output) + vector)

    layers = decoder_layers(model) if vectors else ()
    hooks = [layers[layer].register_forward_hook(adds(v)) for layer, v in vectors.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def reading_stream(
    model: Any, chosen: "tuple[int, ...]", receive: "Callable[[int, torch.Tensor], None]"
) -> Iterator[None]:
    """Hands over what leaves each chosen layer, and ends passes after the last of them."""

    def reads(layer: int) -> Callable[..., None]:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            receive(layer, _stream(output))
            if layer == max(chosen):
                raise LastLayerReachedError

        return hook

    layers = decoder_layers(model)
    hooks = [layers[layer].register_forward_hook(reads(layer)) for layer in chosen]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _stream(output: Any) -> "torch.Tensor":
    """Some decoder layers return the stream alone, others a tuple that begins with it."""
    return output[0] if isinstance(output, tuple) else output


def _with_stream(output: Any, stream: "torch.Tensor") -> Any:
    return (stream, *output[1:]) if isinstance(output, tuple) else stream
