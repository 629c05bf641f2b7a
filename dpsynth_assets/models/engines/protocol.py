"""The protocol of engines: methods, refusals, and the values they take and return."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

Prompt = str | Sequence[int]
"""Text, or token ids that are used as they are (no begin token is added to ids)."""

Pooling = Literal["mean", "last"]
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
            raise ValueError("Expected max_new_tokens >= 1, got less; drop such prompts first.")
        if self.json_schema is not None and self.stop:
            raise ValueError("Expected no stop texts with a schema, whose text ends by itself.")

    def begun_by(self, row: int) -> tuple[int, ...]:
        """Tokens of a text that its prompt ends with."""
        return self.begun[row] if self.begun else ()

    def limits(self, prompts: int) -> list[int]:
        """One bound for each of `prompts` prompts.

        Raises:
            ValueError: Bounds were given one each, and not as many as prompts.
        """
        given = self.max_new_tokens
        limits = [given] * prompts if isinstance(given, int) else list(given)
        if len(limits) != prompts:
            raise ValueError(
                f"Expected one max_new_tokens for each of {prompts} prompts, got {len(limits)}."
            )
        return limits


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
