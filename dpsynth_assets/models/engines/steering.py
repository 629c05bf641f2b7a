"""Steering vectors checked and scaled, whichever engine adds them to its residual stream."""

from collections.abc import Mapping

import numpy as np

from dpsynth_assets.models.engines.protocol import EngineError


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
