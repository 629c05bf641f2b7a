"""Opens the exact decoder of a folder: quantized once, stored, then mapped into memory."""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch

from dpsynth_assets.files.kept import Form, kept_file, version_of
from dpsynth_assets.files.whole import digest_of
from dpsynth_assets.models.engines.protocol import opened_once
from dpsynth_assets.models.exact_decoder.decoder import ExactDecoder, calibrated_table
from dpsynth_assets.models.exact_decoder.integer_products import ExactDecoderError
from dpsynth_assets.models.exact_decoder.weights import (
    EMBEDDINGS,
    LlamaShape,
    expect_weights,
    integer_weights,
)
from dpsynth_assets.models.language_model import weights_state
from dpsynth_assets.paths import home

if TYPE_CHECKING:
    from dpsynth_assets.datasets.public_spec import EngineSpec

_VERSION = "1"
"""Raised when a checkpoint is quantized otherwise: stored weights are then made again."""
_opening = Lock()


def opened_decoder(language_model: Any, _spec: "EngineSpec | None" = None) -> ExactDecoder:
    """Opens a folder in the transformers format; the same decoder for all of a process.

    Args:
        language_model: Its folder, tokenizer and device: a GPU that was named computes, and one
            that `auto` found is left to steps that ask for it. Weights of public models that
            this installation unpacked or trained are stored quantized; those of other folders,
            such as a release's, are quantized each time.
        spec: Nothing of it is read.

    Raises:
        ExactDecoderError: It is not a Llama-shaped model in one safetensors file.
    """
    folder, public = Path(language_model.source), home().public_models
    made_here = folder.resolve().is_relative_to(public.resolve())
    store = public / "exact_weights" if made_here else None
    device = language_model.device if getattr(language_model, "names_gpu", False) else "cpu"
    with _opening:
        texts, state = calibration_ids(language_model.encode), weights_state(str(folder))
        return opened_once(read_decoder, folder, texts, store, device, state)


def read_decoder(
    folder: Path,
    calibration: Sequence[Sequence[int]],
    store: Path | None = None,
    device: str = "cpu",
    _state: object = None,
) -> ExactDecoder:
    """Reads a folder, quantized as `calibrated_table` does it.

    Args:
        folder: A model in the transformers format.
        calibration: Public texts as token ids.
        store: Folder of quantized weights, found by a digest of everything they are made of; None
            stores nothing.
        device: cpu, cuda or cuda:N; weights are the same on each.
        _state: Of the files: other weights in the same place are another decoder.

    Raises:
        ExactDecoderError: It is not a Llama-shaped model in one safetensors file, or the device
            computes no exact sums.
    """
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file, save
    from transformers import AutoConfig

    file = folder / "model.safetensors"
    if not file.is_file():
        raise ExactDecoderError(
            f"Expected a folder with one model.safetensors, found none in {folder}; save the "
            "model with save_pretrained, or write decoder: transformers."
        )
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    shape = LlamaShape.of(config)
    try:
        with torch.inference_mode(), safe_open(file, "pt") as table:
            embeddings = table.get_tensor(EMBEDDINGS).float()

            def quantize() -> dict[str, torch.Tensor]:
                weights = load_file(file)
                expect_weights(config, weights, file)
                return calibrated_table(shape, weights, calibration)

            if store is None:
                quantized = quantize()
            else:  # Mapped from the file: processes share them.
                made_of = version_of(_VERSION, repr(shape), calibration, digest_of(file))
                place = store / f"{made_of}.st"
                quantized = kept_file(place, quantize, Form(load_file, save))
            if device != "cpu":
                from dpsynth_assets.models.exact_decoder.gpu_decoder import DeviceDecoder

                return DeviceDecoder(shape, embeddings, quantized, device)
            return ExactDecoder(shape, integer_weights(shape, embeddings, quantized))
    except (SafetensorError, KeyError) as error:
        raise ExactDecoderError(
            f"Expected the weights of a Llama model in {file}, got: {error}. Restore the file."
        ) from None


TEXTS = (
    "We came on a Friday night and waited twenty minutes for a table, which the host had warned us "
    "about. The noodles were worth it: hot, salty, with just enough ginger. Our waiter forgot the "
    "second round of drinks but took them off the bill without being asked. Four stars, and we "
    "will be back for the dumplings. If you can, sit by the window; the room gets loud after 8.",
    "The harbour was founded in 1847 and grew quickly once the railway reached the coast. By the "
    "end of the century it handled a third of the region's timber, most of it bound for shipyards "
    "in the south. Two fires, in 1902 and 1911, destroyed the old warehouses. Today the quarter is "
    "known for its theatre, a small maritime museum and the university's school of engineering.",
    "Dear support team, my order 58213 arrived on Tuesday with a cracked screen. I have already "
    "tried the steps on your website, and the device does not turn on. Could you please send a "
    "replacement to the same address, or refund the $349.99? I attach two photos. Thank you in "
    "advance, and kind regards, Maria.",
    "Shares of the company fell 6 percent in early trading after it cut its forecast for the year. "
    "The chief executive said that demand in Europe had been weaker than expected, while costs for "
    "energy and transport kept rising. Analysts at two banks lowered their ratings.\n\n"
    '{"title": "The Long Road", "year": 1994, "genres": ["drama", "war"], "rating": 7.8}\n\n'
    "def mean(values):\n    return sum(values) / len(values)\n",
    '"You never told me," she said, and put the letter back on the table. He looked at the floor. '
    "Outside the rain had stopped; somebody was laughing in the street below. \"I didn't know how "
    'to begin," he answered at last. "Every time I tried, it was already too late for the truth." '
    "She laughed, not kindly, and went to find her coat.",
)
_TOKENS = 160


def calibration_ids(encode: Callable[[str], Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Token ids of the texts; `encode` maps a text to ids."""
    return tuple(tuple(encode(text)[:_TOKENS]) for text in TEXTS)
