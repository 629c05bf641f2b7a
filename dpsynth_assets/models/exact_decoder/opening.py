"""Opens the exact decoder of a folder: quantized once, stored, then mapped into memory."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from dpsynth_assets.files.kept import Form, kept_file
from dpsynth_assets.models.exact_decoder.calibration import calibration_ids
from dpsynth_assets.models.exact_decoder.decoder import ExactDecoder, calibrated_table
from dpsynth_assets.models.exact_decoder.shapes import ExactDecoderError, LlamaShape
from dpsynth_assets.models.exact_decoder.weights import (
    EMBEDDINGS,
    expect_weights,
    integer_weights,
)
from dpsynth_assets.models.kept import kept
from dpsynth_assets.paths import home

if TYPE_CHECKING:
    pass

_VERSION = "1"
"""Raised when a checkpoint is quantized otherwise: stored weights are then made anew."""
_opening = Lock()


def opened_decoder(source: str, encode: Callable[[str], Sequence[int]]) -> ExactDecoder:
    """Opens a folder in the transformers format; the same decoder for all of a process.

    Args:
        source: The folder. Weights of public models that this installation unpacked or trained are
            stored quantized; those of other folders, such as a release's, are quantized each time.
        encode: Maps a public text to token ids of the model.

    Raises:
        ExactDecoderError: It is not a Llama-shaped model in one safetensors file.
    """
    with _opening:
        return _opened(source, _state(source), tuple(map(tuple, calibration_ids(encode))))


@kept(2)
def _opened(source: str, state: Any, calibration: Sequence[Sequence[int]]) -> ExactDecoder:
    del state
    folder, public = Path(source), home().public_models
    made_here = folder.resolve().is_relative_to(public.resolve())
    return read_decoder(folder, calibration, public / "exact_weights" if made_here else None)


def _state(source: str) -> tuple[int, int] | None:
    """Time of change and size of the weights: other weights in the same place are read anew."""
    file = Path(source) / "model.safetensors"
    if not file.is_file():
        return None
    state = file.stat()
    return state.st_mtime_ns, state.st_size


def read_decoder(
    folder: Path, calibration: Sequence[Sequence[int]], store: Path | None = None
) -> ExactDecoder:
    """Reads a folder, quantized as `ExactDecoder.of` does it.

    Args:
        folder: A model in the transformers format.
        calibration: Public texts as token ids.
        store: Folder of quantized weights, found by a digest of everything they are made of; None
            stores nothing.

    Raises:
        ExactDecoderError: It is not a Llama-shaped model in one safetensors file.
    """
    import torch
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file, save
    from transformers import AutoConfig

    file = folder / "model.safetensors"
    if not file.is_file():
        raise ExactDecoderError(
            f"Expected a folder with one model.safetensors, found none in {folder}; save the "
            "model with save_pretrained, or write decoder: transformers."
        )
    shape = LlamaShape.of(AutoConfig.from_pretrained(folder, local_files_only=True))
    try:
        with torch.inference_mode(), safe_open(file, "pt") as table:
            embeddings = table.get_tensor(EMBEDDINGS).float()

            def quantize() -> dict[str, torch.Tensor]:
                weights = load_file(file)
                expect_weights(shape, weights, file)
                return calibrated_table(shape, weights, calibration)

            if store is None:
                quantized = quantize()
            else:  # Mapped from the file: processes share them.
                place = store / f"{_digest(file, shape, calibration)}.st"
                quantized = kept_file(place, quantize, Form(load_file, save))
            return ExactDecoder(shape, integer_weights(shape, embeddings, quantized))
    except (SafetensorError, KeyError) as error:
        raise ExactDecoderError(
            f"Expected the weights of a Llama model in {file}, got: {error}. Restore the file."
        ) from None


def _digest(file: Path, shape: LlamaShape, calibration: Sequence[Sequence[int]]) -> str:
    """Hashes all that quantized weights are made of: they are found again by it alone."""
    made_of = json.dumps([_VERSION, repr(shape), [list(text) for text in calibration]])
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16))
    digest.update(made_of.encode())
    return digest.hexdigest()
