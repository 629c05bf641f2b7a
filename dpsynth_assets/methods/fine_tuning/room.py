"""Disk that a training takes, from the shapes of public weights."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from dpsynth_assets.files.disk_room import Room

_BYTES = 4
"""Of a weight: training is in float32."""
_TENSORS = 3
"""Kept of each trained weight: itself and the two moments of Adam."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


def training_room(
    shapes: Sequence[tuple[int, ...]], lora_rank: int | None, prompt_tokens: int | None = None
) -> Room:
    """Bounds the released weights, adapters folded in, and the state that a checkpoint keeps.

    Args:
        shapes: Shape of every weight.
        lora_rank: Rank of the adapters, here counted for every matrix; None trains all weights.
        prompt_tokens: Virtual tokens that are trained instead; None: none are.
    """
    weights = sum(math.prod(shape) for shape in shapes)
    trained = weights
    if prompt_tokens is not None:
        table = max((shape for shape in shapes if len(shape) == 2), key=math.prod)
        released = _BYTES * (weights + math.prod(table))  # The output layer has a table of its own.
        return Room(release=released, kept=_TENSORS * _BYTES * prompt_tokens * table[1])
    if lora_rank is not None:
        trained = sum(lora_rank * sum(shape) for shape in shapes if len(shape) == 2)
    return Room(release=_BYTES * weights, kept=_TENSORS * _BYTES * trained)


def stored_shapes(folder: Path) -> list[tuple[int, ...]]:
    """Reads the shapes of all weights in a folder from the heads of its safetensors files."""
    shapes = []
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            head = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        shapes += [tuple(entry["shape"]) for name, entry in head.items() if name != "__metadata__"]
    return shapes


def bytes_beside_weights(folder: Path) -> int:
    """Counts what else a model's folder holds, such as its vocabulary: it is released, too."""
    others = (file for file in folder.glob("*") if file.suffix not in _WEIGHTS)
    return sum(file.stat().st_size for file in others if file.is_file())
