"""The protocol of decoders: read prompts, return next-token logits, expose hidden states.

Private prediction and engines decode through it alone; which model computes is a decoder's matter.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dpsynth_assets.models.engines.protocol import (
    Capability,
    EngineError,
    Provenance,
    ShareCallback,
)

if TYPE_CHECKING:
    import torch


COUNTS: Counter[str] = Counter()
"""Tokens of this process: `read` of prompts and texts; `written`, rows of all decoding steps."""


class Contexts(Protocol):
    """R prompts that were read, each with its own growing document: one token a row at a time."""

    def __len__(self) -> int:
        """Number of contexts R."""

    def next_logits(self, tokens: "torch.Tensor", generated: "torch.Tensor") -> "torch.Tensor":
        """Advances every row by one token.

        Args:
            tokens: (R,) int64, the document's last token; ignored where `generated` is 0.
            generated: (R,) int64 in [0, T], tokens the row's document has so far (`tokens`
                included). Rows at 0 start a document from their prompt.

        Returns:
            Logits (R, V) of each row's next token, float32, which may last until the next call.
        """

    def keep(self, contexts: "torch.Tensor") -> None:
        """Drops all contexts but these ((R',), int64, in this order); later passes are smaller."""


@dataclass(frozen=True)
class Reading:
    """How prompts are read.

    Attributes:
        prompt_columns: P, the most tokens of a prompt: a public constant.
        max_new_tokens: T, the longest document any row will hold.
        public_prefixes: Public token sequences that prompts may begin with; read once each.
        rows_per_prefill: Rows of one prefill pass, where rounding could follow their number.
        public: Whether prompts and their number are public: passes are then not filled up.
        added: {layer: (d,) float32}, added to the residual stream where it leaves a layer, at
            every position that a token is predicted from.
    """

    prompt_columns: int
    max_new_tokens: int
    public_prefixes: Sequence[Sequence[int]] = ()
    rows_per_prefill: int = 16
    public: bool = False
    added: Mapping[int, np.ndarray] = field(default_factory=dict)

    @property
    def columns(self) -> int:
        """Tokens of the longest row, P + T."""
        return self.prompt_columns + self.max_new_tokens


@dataclass(frozen=True)
class StateReading:
    """How the hidden states of texts are read.

    Attributes:
        layers: Layers in [0, L).
        begin: Tokens that precede every text and are not pooled.
        provenance: What the texts are made of; private ones never move each other's states.
        progress: Called with the share of texts done.
    """

    layers: tuple[int, ...]
    begin: Sequence[int] = ()
    provenance: Provenance = Provenance.PRIVATE
    progress: ShareCallback | None = None

    @property
    def shares_passes(self) -> bool:
        """Whether texts are known, so that they may share passes."""
        return self.provenance in (Provenance.PUBLIC, Provenance.RELEASED)

    def told(self, share: float) -> None:
        """Reports the share of texts done."""
        if self.progress is not None:
            self.progress(share)


class Decoder(ABC):
    """A language model that gives the logits of many contexts' next tokens.

    Another package adds one by an entry point of the group `dpsynth.decoders` (`open_decoder`).

    Attributes:
        is_exact: Whether a row's logits are a function of its own context, bit for bit, regardless
            of what shares its pass: nothing is charged for rounding then.
        shares_prefixes: Whether it reads what prompts share once by itself; its contexts cannot be
            kept twice.
        can_be_invariant: Whether it may be asked for kernels that round a row alike in every batch;
            that they do is tested before a charge.
        capabilities: What an engine over it offers. `PRIVATE_TEXT` says that no prompt leaves this
            machine: private records are given to no decoder that does not say so.
        engine_name: What computes, with its version; empty: the name of the class.
        device: Where logits lie.
        dtype: Number type of the weights.
        attention_limit: The most tokens of prompt and document together; None: there is no bound.
    """

    is_exact = shares_prefixes = can_be_invariant = False
    capabilities: frozenset[Capability] = frozenset()
    engine_name = ""
    device: "torch.device"
    dtype: "torch.dtype"
    attention_limit: int | None

    @abstractmethod
    def _read(self, prompts: Sequence[Sequence[int]], reading: Reading) -> Contexts:
        """Reads prompts that fit, and takes no notice of what it has no use for."""

    def open(self, prompts: Sequence[Sequence[int]], **asked: Any) -> Contexts:
        """Reads prompts into a cache of keys and values.

        Args:
            prompts: R token sequences of 1..P ids; R = 0 is allowed and costs nothing.
            asked: Fields of `Reading`.

        Raises:
            ValueError: A prompt is empty or longer than P, P + T exceeds the attention, weights on
                a processor are not float32, or this decoder is not steered.
        """
        reading = Reading(**asked)
        if reading.added and Capability.STEERING not in self.capabilities:
            raise ValueError("Expected no steering of this decoder, got some; use another kind.")
        most = reading.prompt_columns
        if any(not 1 <= len(prompt) <= most for prompt in prompts):
            raise ValueError(
                f"Expected prompts of 1..{most} tokens, got a shorter or longer one. Cut "
                "prompts to the public pad length first."
            )
        self.require_room(reading.columns)
        COUNTS["read"] += sum(map(len, prompts))
        prefixes = [list(prefix)[:most] for prefix in reading.public_prefixes]
        return self._read(prompts, replace(reading, public_prefixes=prefixes))

    def hidden_states(
        self, texts: Sequence[Sequence[int]], reading: StateReading
    ) -> dict[int, np.ndarray]:
        """Pools each text's residual stream at chosen layers; see `LocalEngine.hidden_states`.

        Args:
            texts: N sequences of the texts' own tokens; may be empty.
            reading: Layers, and how texts are read.

        Returns:
            {layer: (N, d) float32}; zeros for a text without tokens.

        Raises:
            EngineError: This decoder does not show its states.
        """
        del texts, reading
        raise EngineError(
            "Expected a decoder that shows hidden states, got one that does not; use another kind."
        )

    @property
    def facts(self) -> dict[str, str]:
        """Names of engine, device and number type, for records."""
        import torch

        on_gpu = self.device.type == "cuda"
        device = torch.cuda.get_device_name(self.device) if on_gpu else self.device.type
        dtype = str(self.dtype).removeprefix("torch.")
        if on_gpu and dtype == "float32" and torch.get_float32_matmul_precision() != "highest":
            dtype = "TF32"
        engine = self.engine_name or type(self).__name__
        return {"engine": engine, "device": device, "dtype": dtype}

    def rows_at_once(self, rows: int, tokens: int) -> int:
        """Cuts a number of rows of this many tokens to what fits into memory; at least one."""
        del tokens
        return rows

    def require_groups(self, groups: Sequence[tuple[int, int]]) -> None:
        """Refuses rows that there is no room for; most decoders take memory as they go.

        Args:
            groups: (rows, tokens of each at most) of contexts open at a time; public numbers.

        Raises:
            ValueError: In one line.
        """
        del groups

    def require_room(
        self,
        columns: int,
        *,
        what: str = "prompt and document",
        remedy: str = "Lower max_example_tokens, examples_per_context or max_document_tokens.",
    ) -> None:
        """Refuses weights that are not float32 on the CPU, and more tokens than are attended to.

        Args:
            columns: Tokens of the longest row.
            what: Names the row in the message.
            remedy: What its reader may change.

        Raises:
            ValueError: One of both.
        """
        import torch

        if not self.is_exact and self.device.type == "cpu" and self.dtype != torch.float32:
            raise ValueError(
                f"Expected float32 weights on the CPU, got {self.dtype}: lower precision lets one "
                "record move another's logits. Load the model with dtype=torch.float32."
            )
        limit = self.attention_limit
        if limit is not None and columns > limit:
            raise ValueError(
                f"Expected {what} within {limit} tokens of attention, got {columns}. {remedy}"
            )


def attention_limit(config: Any) -> int | None:
    """Reads the most tokens of prompt and document together off a transformers configuration.

    Its positions: a sliding window bounds layers, not rows. Less where attention is cut in a way
    that no mask of ours is, and where longer rows would turn the position code of all rows of a
    pass. None where a model has no bound.
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    limits = [getattr(text, bound, None) for bound in _BOUNDS]
    rope = getattr(text, "rope_parameters", None) or {}
    limits += [  # The longest row at hand decides for all beside it.
        each.get("original_max_position_embeddings")
        for each in (rope, *rope.values())
        if isinstance(each, dict) and each.get("rope_type") == "longrope"
    ]
    return min((limit for limit in limits if limit), default=None)


_BOUNDS = ("max_position_embeddings", "attention_chunk_size", "window_size")


PROBES = ("a", "The", "I was", "7", "\n", '"', "été", "{")
"""Public examples, which begin as differently as texts do."""


def public_prefix(prompt_of: Callable[[str], Sequence[int]]) -> list[int]:
    """Finds the tokens with which a template begins for every example.

    Args:
        prompt_of: Writes the prompt with an example, as token ids.

    Returns:
        The longest common prefix of the prompts of fixed public examples: a tokenizer may join a
        template's last letters with an example's first, and such tokens are left out.

    **Privacy** A function of public text alone. No private prompt is looked at.
    """
    return shared_start([prompt_of(probe) for probe in PROBES])


def shared_start(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The longest common prefix of prompts."""
    alike = takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False))
    return [column[0] for column in alike]


def prefix_groups(
    prompts: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]]
) -> dict[tuple[int, ...], list[int]]:
    """Assigns each prompt to the longest of the public prefixes that it begins with.

    Returns:
        Indices of its prompts for every prefix that has one; the empty prefix for others.

    **Privacy** Which prefix a prompt takes depends on that prompt and on public prefixes only.
    """
    ordered = sorted({tuple(prefix) for prefix in prefixes} | {()}, key=len, reverse=True)
    members: dict[tuple[int, ...], list[int]] = {prefix: [] for prefix in ordered}
    for index, prompt in enumerate(prompts):
        own = next(prefix for prefix in ordered if tuple(prompt[: len(prefix)]) == prefix)
        members[own].append(index)
    return {prefix: own for prefix, own in members.items() if own}
