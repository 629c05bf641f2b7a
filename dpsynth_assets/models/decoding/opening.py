"""Opens a decoder by its kind: those of this package, and those of others by entry point."""

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from dpsynth_assets.models.decoding.protocol import Decoder

if TYPE_CHECKING:
    from dpsynth_assets.datasets.engine import EngineSpec

Opens = Callable[[Any, "EngineSpec | None"], Decoder]
"""(language model, what the dataset's engine declares or None) -> its decoder."""

DEFAULT = "transformers"
"""The kind that decodes any model."""
_OWN = {
    "exact": "dpsynth_assets.models.exact_decoder.opening:opened_decoder",
    DEFAULT: "dpsynth_assets.models.transformers_decoder.decoder:opened_decoder",
    "vllm": "dpsynth_assets.models.vllm_decoder.opening:opened_decoder",
}
_OWN_ENGINES = {
    "openai": "dpsynth_assets.models.engines.openai_endpoint:opened_engine",
    "vllm": "dpsynth_assets.models.vllm_decoder.engine:opened_engine",
}
_ENGINE = "dpsynth_assets.models.engines.decoder_engine:opened_engine"
"""What writes with a decoder that has no engine of its own."""


def engine_of(kind: str) -> str:
    """Name of what opens the engine of a kind: (language model or None, `EngineSpec`) -> engine."""
    return _OWN_ENGINES.get(kind, _ENGINE)


def open_decoder(kind: str, language_model: Any, spec: "EngineSpec | None" = None) -> Decoder:
    """Opens what computes a language model's logits: weights are read once a process.

    Args:
        kind: `exact`, `transformers`, `vllm`, or the name of another package's entry point.
        language_model: A `LanguageModel`, or one with prompts of its own.
        spec: What the dataset's engine declares, such as the memory that vLLM may use.

    Raises:
        ValueError: Nothing of this kind is installed, or it cannot decode this model; one line.
    """
    opened: Opens = resolve_name(_OWN[kind]) if kind in _OWN else _outside(kind)
    return opened(language_model, spec)


def kind_for_folder(kind: str, folder: Path) -> str:
    """The kind itself, or transformers where that one does not compute a folder's model."""
    from dpsynth_assets.models.exact_decoder.shapes import computes_folder

    return DEFAULT if kind == "exact" and not computes_folder(folder) else kind


@cache
def _outside(kind: str) -> Opens:
    from dpsynth_assets.datasets.engine import DECODERS_FROM_OUTSIDE, installed_kind

    (point, *_) = entry_points(group=DECODERS_FROM_OUTSIDE, name=installed_kind(kind))
    opened: Opens = point.load()
    return opened
