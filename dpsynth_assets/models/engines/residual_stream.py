"""The residual stream of a transformers decoder, read or added to where it leaves each layer.

Steering vectors are checked and scaled here, whichever engine adds them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.models.engines.protocol import EngineError

if TYPE_CHECKING:
    import torch


def scaled_vectors(
    vectors: Mapping[int, np.ndarray],
    strengths: float | Mapping[int, float],
    *,
    layers: int,
    width: int,
) -> dict[int, np.ndarray]:
    """Multiplies each layer's vector by its strength.

    Args:
        vectors: {layer in [0, layers): (width,)}.
        strengths: One for all layers, or exactly one for each layer of `vectors`.
        layers: L of the model.
        width: d of the model.

    Returns:
        {layer: (width,) float32}, layers ascending.

    Raises:
        EngineError: A layer, a shape or a strength does not fit, or a number is not finite.
    """
    check_layers(tuple(vectors), layers)
    if isinstance(strengths, Mapping) and set(strengths) != set(vectors):
        raise EngineError(
            f"Expected a strength for each of the layers {sorted(vectors)}, "
            f"got {sorted(strengths)}; give one number to use it for all."
        )
    scaled = {}
    for layer in sorted(vectors):
        strength = strengths[layer] if isinstance(strengths, Mapping) else strengths
        vector = np.asarray(vectors[layer], dtype=np.float32)
        if vector.shape != (width,) or not np.isfinite(vector).all() or not np.isfinite(strength):
            raise EngineError(
                f"Expected a finite vector of {width} numbers and a finite strength for layer "
                f"{layer}, got shape {vector.shape} and strength {strength}; the vectors may "
                "belong to another model."
            )
        scaled[layer] = np.float32(strength) * vector
    return scaled


def check_layers(chosen: tuple[int, ...], layers: int) -> None:
    """Refuses layers outside [0, layers), repeated ones and an empty choice.

    Raises:
        EngineError: As said.
    """
    inside = all(0 <= layer < layers for layer in chosen)
    if not chosen or not inside or len(set(chosen)) != len(chosen):
        raise EngineError(
            f"Expected one or more different layers in [0, {layers}), got {list(chosen)}; "
            "layers are numbered from 0."
        )


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

    layers = decoder_layers(model)
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
