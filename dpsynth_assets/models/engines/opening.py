"""Opens an engine from its declaration, once per process."""

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from pkgutil import resolve_name
from threading import RLock
from typing import TYPE_CHECKING, Any

from dpsynth_assets.models.decoding.opening import engine_of
from dpsynth_assets.models.engines.protocol import Engine, EngineError

if TYPE_CHECKING:
    from dpsynth_assets.datasets.engine import EngineSpec
    from dpsynth_assets.models.language_model import LanguageModel

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
    return resolve_name(engine_of(spec.kind))(served, spec)
