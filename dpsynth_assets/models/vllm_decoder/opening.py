"""Opens a model in vLLM on first use; one process holds one model at a time."""

import atexit
from threading import RLock
from typing import TYPE_CHECKING, Any

from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.models.language_model import weights_state
from dpsynth_assets.models.vllm_decoder.decoder import VllmDecoder

if TYPE_CHECKING:
    from dpsynth_assets.models.language_model import LanguageModel

_opened: dict[tuple[Any, ...], VllmDecoder] = {}
_lock = RLock()


def opened_decoder(language_model: "LanguageModel", spec: EngineSpec | None = None) -> VllmDecoder:
    """Opens a language model in vLLM, or returns the one that is open.

    Another model, or other weights in the same place, closes what was open before: a GPU has memory
    for one.

    Args:
        language_model: Source of the weights.
        spec: `memory_fraction` and `cache_gib` of it are read; None for their defaults.

    Raises:
        VllmDecoderError: One line: vLLM is not installed, or cannot load the model or its cache.
    """
    source, spec = language_model.source, spec or EngineSpec(kind="vllm")
    memory: dict[str, Any] = {"memory_fraction": spec.memory_fraction, "cache_gib": spec.cache_gib}
    key = (source, language_model.dtype, weights_state(source), *memory.values())
    with _lock:
        found = _opened.get(key)
        if found is None or found.is_stopped:
            close_decoders()
            found = _opened[key] = VllmDecoder(language_model, **memory)
        return found


def close_decoders() -> None:
    """Closes what is open; also runs when the process ends."""
    with _lock:
        while _opened:
            _opened.popitem()[1].close()


atexit.register(close_decoders)
