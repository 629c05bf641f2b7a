"""The protocol of engines: methods, refusals, the values they take and return; and how one opens.

An engine is opened from its declaration once a process, a decoder by its kind. Kinds are those of
this package, and those of other packages by entry point. Models that a run uses stay open.
"""

import atexit
import ctypes
import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name
from threading import Lock, RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from dpsynth_assets.datasets.public_spec import EngineSpec
    from dpsynth_assets.models.decoding.protocol import Decoder
    from dpsynth_assets.models.language_model import LanguageModel


Prompt = str | Sequence[int]
"""Text, or token ids that are used as they are (no begin token is added to ids)."""

ShareCallback = Callable[[float], None]


class EngineError(RuntimeError):
    """An engine cannot be opened or cannot do this: one line, expected, got, remedy."""


class Provenance(StrEnum):
    """The origin of prompts; decides whether they may leave this machine."""

    PUBLIC = "public"
    """Public text only: instructions, public documents, labels."""
    RELEASED = "released"
    """Also text that a differentially private release has already paid for."""
    PRIVATE = "private"
    """Anything else. The default everywhere: text is private until somebody says otherwise."""


class Capability(StrEnum):
    """Capabilities of an engine beyond writing from text."""

    HIDDEN_STATES = "hidden_states"
    STEERING = "steering"
    PRIVATE_TEXT = "private_text"
    """The model runs here: private prompts never leave the machine."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Settings of token sampling. Its randomness is public: it never stands in for privacy noise.

    Attributes:
        temperature: Divides the logits; 0 takes the most probable token.
        top_p: Draws from the smallest set of tokens with at least this mass; in (0, 1].
        top_k: Draws from this many most probable tokens; None for all.
        max_new_tokens: Bound on new tokens, one for all prompts or one each; >= 1.
        seed: Row i of a call draws from the stream (seed, i), regardless of the other rows.
        stop: Texts that end a generation; they and what follows are cut off.
        json_schema: JSON schema, as JSON, that every text follows; None for free text. An endpoint
            is asked for it and may not know how; an engine that runs the model here keeps to it.
        text_start: Beginning of every text of the schema that stands in its prompt.
        begun: Tokens of each text of the schema that stand in its prompt after `text_start`; empty
            where none do.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    max_new_tokens: int | tuple[int, ...] = 128
    seed: int = 0
    stop: tuple[str, ...] = ()
    json_schema: str | None = None
    text_start: str = ""
    begun: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        """Refuses limits without room, and stop texts beside a schema."""
        given = self.max_new_tokens
        if any(limit < 1 for limit in ((given,) if isinstance(given, int) else given)):
            raise ValueError("Expected max_new_tokens >= 1, got less; drop these prompts first.")
        if self.json_schema is not None and self.stop:
            raise ValueError("Expected no stop texts with a schema, whose text ends by itself.")

    def begun_by(self, row: int) -> tuple[int, ...]:
        """Tokens of a text that its prompt ends with."""
        return self.begun[row] if self.begun else ()

    def limits(self, prompts: int) -> list[int]:
        """One bound for each of `prompts` prompts."""
        given = self.max_new_tokens
        return [given] * prompts if isinstance(given, int) else list(given)


@dataclass(frozen=True)
class Generation:
    """Result of one prompt.

    Attributes:
        text: Without special tokens and without the stop text; white space is kept.
        token_ids: New tokens without the end token; empty where an engine does not tell.
        finished: The model ended the text itself (end token or stop text) within its bound.
    """

    text: str = field(repr=False)
    token_ids: tuple[int, ...] = field(repr=False)
    finished: bool


class Engine(ABC):
    """A language model that writes; one that runs here may be read inside (`LocalEngine`).

    Attributes:
        name: Short public name of the model.
        capabilities: What it can do beyond writing from public text.
        spent: What was asked and paid since it was opened; nothing where it runs the model here.
    """

    name: str
    capabilities: frozenset[Capability] = frozenset()
    spent: Mapping[str, float] = MappingProxyType({})

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        provenance: Provenance = Provenance.PRIVATE,
        progress: ShareCallback | None = None,
    ) -> list[Generation]:
        """Writes one text a prompt, in the order of the prompts.

        Args:
            prompts: N prompts.
            sampling: How tokens are drawn.
            provenance: What the prompts are made of.
            progress: Called with the share of prompts done, in [0, 1].

        Raises:
            EngineError: A prompt and its new tokens exceed the model's positions, memory ran out,
                or the engine may not see text of this provenance.
        """
        self._require_allowed(provenance)
        return self._generate(prompts, sampling, progress)

    @abstractmethod
    def _generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, progress: ShareCallback | None
    ) -> list[Generation]:
        """Writes from prompts that it may see."""

    def require_schema(self, schema: str, text_start: str = "") -> None:  # noqa: B027
        """Refuses a JSON schema that no text of this model could follow, before one is written.

        Raises:
            ValueError: See `JsonConstraint`; never where the model runs elsewhere.
        """

    def spent_since(self, before: Mapping[str, float]) -> dict[str, float]:
        """What was spent since `spent` was `before`."""
        return {name: round(now - before.get(name, 0), 6) for name, now in self.spent.items()}

    @abstractmethod
    def close(self) -> None:
        """Frees the model; the engine is not used again."""

    def _require_allowed(self, provenance: Provenance) -> None:
        """Refuses private text where it would leave this machine; all engines ask here."""
        public = provenance in (Provenance.PUBLIC, Provenance.RELEASED)
        if not public and Capability.PRIVATE_TEXT not in self.capabilities:
            raise EngineError(
                f"Expected public or released prompts for {self.name}, got private ones: its "
                "operator would read them, and no privacy accounting covers that; use kind: "
                "transformers or vllm."
            )


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

_openers: dict[Callable[..., Any], Any] = {}
_users = 0
_counting = Lock()


def opened_once(
    opens: Callable[Arguments, Opened], *given: Arguments.args, **named: Arguments.kwargs
) -> Opened:
    """What a function opens, kept by its arguments until `forget_models`.

    Two of each kind stay open; the one used longest ago goes first.
    """
    if opens not in _openers:
        _openers[opens] = lru_cache(maxsize=2)(opens)
    found: Opened = _openers[opens](*given, **named)
    return found


def forget_models() -> None:
    """Closes engines, drops every model that was kept, and gives memory back to the system."""
    close_engines()
    kept = [opener for opener in _openers.values() if opener.cache_info().currsize]
    if not kept:  # Collecting would take a third of a second.
        return
    for opener in kept:
        opener.cache_clear()
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
