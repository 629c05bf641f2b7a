"""Opens engines from their declarations, once a process, and decoders by their kind.

Kinds are those of this package, and those of other packages by entry point. Models that a run uses
stay open in its process.
"""

import atexit
import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from dpsynth_assets.models.engines.protocol import Engine, EngineError

if TYPE_CHECKING:
    from dpsynth_assets.datasets.public_spec import EngineSpec
    from dpsynth_assets.models.decoding.protocol import Decoder
    from dpsynth_assets.models.language_model import LanguageModel


Opens = Callable[[Any, "EngineSpec | None"], "Decoder"]
"""(language model, what the dataset's engine declares or None) -> its decoder."""

DEFAULT = "transformers"
"""The kind that decodes any model."""
_MODELS = "dpsynth_assets.models"
_DECODERS = {
    "exact": f"{_MODELS}.exact_decoder.opening:opened_decoder",
    DEFAULT: f"{_MODELS}.transformers_decoder.opening:opened_decoder",
    "vllm": f"{_MODELS}.vllm_decoder.opening:opened_decoder",
}
_ENGINES = {
    "openai": f"{_MODELS}.engines.openai_endpoint:opened_engine",
    "vllm": f"{_MODELS}.vllm_decoder.engine:VllmEngine",
}
"""(language model or None, `EngineSpec`) -> engine, where a kind has one of its own."""
_ENGINE = f"{_MODELS}.engines.decoder_engine:opened_engine"
"""What writes with a decoder that has no engine of its own."""

_opened: dict[tuple[Any, ...], Engine] = {}
_lock = RLock()


def open_engine(spec: "EngineSpec", *, language_model: "LanguageModel | None" = None) -> Engine:
    """Opens an engine, or returns the one this process opened for the same declaration.

    Args:
        spec: What to open.
        language_model: The dataset's public language model, served where `spec.model` is None.

    Raises:
        EngineError: One line: no model named, a missing folder or unknown id, too little memory,
            vLLM not installed, a key's environment variable not set.
    """
    served = _language_model(spec, language_model)
    weights = () if served is None else (served.source, served.dtype, served.device)
    key = (spec.model_dump_json(), *weights)
    with _lock:
        if key not in _opened:
            _opened[key] = _open(spec, served)
        return _opened[key]


@contextmanager
def serving(spec: "EngineSpec", language_model: "LanguageModel") -> Iterator[Engine]:
    """Opens an engine on weights that only the caller needs, and closes it afterwards.

    Args:
        spec: What runs the weights; must name no model of its own.
        language_model: The weights, e.g. a released folder.

    Raises:
        EngineError: As `open_engine`, or the declaration cannot serve a folder.
    """
    if spec.is_endpoint or spec.model is not None:
        raise EngineError(
            f"Expected an engine that serves {language_model.name}, got one with a model of its "
            "own; use kind: transformers or vllm without model:."
        )
    with _lock:
        engine = _open(spec, language_model)
    try:
        yield engine
    finally:
        engine.close()


def close_engines() -> None:
    """Closes every engine this process opened; also runs when the process ends."""
    with _lock:
        while _opened:
            _opened.popitem()[1].close()


atexit.register(close_engines)


def _language_model(
    spec: "EngineSpec", language_model: "LanguageModel | None"
) -> "LanguageModel | None":
    from dpsynth_assets.models.language_model import LanguageModelError, load_language_model

    if spec.is_endpoint:
        return None
    if spec.model is None:
        if language_model is None:
            raise EngineError(
                "Expected a language model to serve, got none; write model: in the engine's "
                "settings or give the dataset's public language model."
            )
        return language_model
    try:
        return load_language_model(spec.model, dtype=spec.dtype, device=spec.device)
    except LanguageModelError as error:
        raise EngineError(str(error)) from None


def _open(spec: "EngineSpec", served: "LanguageModel | None") -> Engine:
    """Opens what was declared: a missing file or too little memory shows at once."""
    return resolve_name(_ENGINES.get(spec.kind, _ENGINE))(served, spec)


def open_decoder(kind: str, language_model: Any, spec: "EngineSpec | None" = None) -> "Decoder":
    """Opens what computes a language model's logits: weights are read once a process.

    Args:
        kind: `exact`, `transformers`, `vllm`, or the name of another package's entry point.
        language_model: A `LanguageModel`, or one with prompts of its own.
        spec: What the dataset's engine declares, such as the memory that vLLM may use.

    Raises:
        ValueError: Nothing of this kind is installed, or it cannot decode this model; one line.
    """
    opened: Opens = resolve_name(_DECODERS[kind]) if kind in _DECODERS else _outside(kind)
    return opened(language_model, spec)


def kind_for_folder(kind: str, folder: Path) -> str:
    """The kind itself, or transformers where that one does not compute a folder's model."""
    from dpsynth_assets.models.exact_decoder.weights import computes_folder

    return DEFAULT if kind == "exact" and not computes_folder(folder) else kind


@cache
def _outside(kind: str) -> Opens:
    from dpsynth_assets.datasets.public_spec import DECODERS_FROM_OUTSIDE, installed_kind

    (point, *_) = entry_points(group=DECODERS_FROM_OUTSIDE, name=installed_kind(kind))
    opened: Opens = point.load()
    return opened


Arguments = ParamSpec("Arguments")
Opened = TypeVar("Opened")

_forgets: list[Callable[[], None]] = []
_users = 0
_counting = Lock()


def kept(
    maxsize: int,
) -> Callable[[Callable[Arguments, Opened]], Callable[Arguments, Opened]]:
    """Keeps what a function opens, by its arguments, until `forget_models`.

    Args:
        maxsize: Results that stay open at once; the one used longest ago goes first.
    """

    def decorate(function: Callable[Arguments, Opened]) -> Callable[Arguments, Opened]:
        remembered = lru_cache(maxsize=maxsize)(function)
        _forgets.append(remembered.cache_clear)
        return remembered  # type: ignore[return-value]

    return decorate


_openers: dict[Callable[..., Any], Callable[..., Any]] = {}


def opened_once(
    opens: Callable[Arguments, Opened], *given: Arguments.args, **named: Arguments.kwargs
) -> Opened:
    """What a function opens, kept by its arguments; two of each kind stay open."""
    if opens not in _openers:
        _openers[opens] = kept(2)(opens)
    found: Opened = _openers[opens](*given, **named)
    return found


def forget_models() -> None:
    """Closes engines, drops every model that was kept, and gives memory back to the system."""
    close_engines()
    for forget in _forgets:
        forget()
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc keeps freed memory for itself.
        trim(0)


def begin_use() -> None:
    """Notes that a run of this process uses models."""
    global _users  # noqa: PLW0603 - one count a process
    with _counting:
        _users += 1


def end_use() -> None:
    """Notes that a run has ended; after the last one models are forgotten."""
    global _users  # noqa: PLW0603 - one count a process
    with _counting:
        _users -= 1
        if _users == 0:
            forget_models()
