"""Engines that run the model on this machine: prompts, checks, texts; over any decoder."""

import copy
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.models.decoding.constraint import ConstrainedText, JsonConstraint
from dpsynth_assets.models.decoding.protocol import StateReading
from dpsynth_assets.models.decoding.writing import WritingRules, written_tokens
from dpsynth_assets.models.engines.protocol import (
    DEFAULT,
    Capability,
    Engine,
    EngineError,
    Generation,
    Prompt,
    Provenance,
    Sampling,
    ShareCallback,
    open_decoder,
)

if TYPE_CHECKING:
    from dpsynth_assets.datasets.public_spec import EngineSpec
    from dpsynth_assets.models.language_model import LanguageModel

Vectors = Mapping[int, np.ndarray]
"""{layer: (d,) float32}, strengths multiplied in; empty without steering."""


class LocalEngine(Engine):
    """An engine over the weights of a `LanguageModel`; prompts never leave the machine.

    Layers are numbered from 0; layer l's hidden state is the residual stream as it leaves decoder
    layer l, before any final normalisation: transformers' `hidden_states[l + 1]` but for the last.

    Attributes:
        layers: Number of decoder layers L.
        width: Width d of the residual stream.
        positions: Tokens the model has room for, prompt and new ones together.
    """

    capabilities: frozenset[Capability] = frozenset(Capability)
    _vectors: Vectors = MappingProxyType({})

    def __init__(self, language_model: "LanguageModel") -> None:
        self.language_model, self.name = language_model, language_model.name
        config = language_model.config
        self.layers, self.width = int(config.num_hidden_layers), int(config.hidden_size)
        self.positions = int(getattr(config, "max_position_embeddings", None) or 2**31)
        self._constraints: dict[tuple[str, str], JsonConstraint] = {}

    def hidden_states(
        self,
        texts: Sequence[Prompt],
        layers: Sequence[int],
        *,
        behind: Sequence[int] = (),
        provenance: Provenance = Provenance.PRIVATE,
        progress: ShareCallback | None = None,
    ) -> dict[int, np.ndarray]:
        """Mean hidden states of chosen layers; every text passes through the model once.

        The model's begin token and a prompt precede every text and are not pooled. A text without
        tokens gives zeros: refusing it would tell that a private record is empty.

        **Privacy** A private text is the only one in its pass, so that its states depend on no
        other text, bit for bit. An engine that cannot read it so must refuse it. Texts that are
        public or released may share passes.

        Args:
            texts: N texts, or token ids of texts without a begin token; cut to what the model has
                room for.
            layers: Layers in [0, L).
            behind: Token ids of a prompt that every text stands behind. It may not be private: an
                engine may read it once for all texts.
            provenance: What the texts are made of; private ones never share a pass.
            progress: Called with the share of texts done, in [0, 1].

        Returns:
            {layer: (N, d) float32}.

        Raises:
            EngineError: The engine does not tell hidden states, or may not see such text.

        **Source**: Banayeeanzade et al. 2026 (EPSVec), equation 1.
        """
        self._require_allowed(provenance)
        check_layers(tuple(layers), self.layers)
        token = self.language_model.begin_token_id
        begin = [*behind] if token is None else [token, *behind]
        room = self.positions - len(begin) - 1  # vLLM keeps one position for a new token
        encode = self.language_model.encode
        ids = [(encode(text) if isinstance(text, str) else list(text))[:room] for text in texts]
        self._require_known([*ids, begin])
        place = {text: row for row, text in enumerate(dict.fromkeys(map(tuple, ids)))}
        different = [list(text) for text in place]
        reading = StateReading(tuple(layers), begin, provenance, progress)
        found = self._hidden_states(different, reading)
        rows = [place[tuple(text)] for text in ids]
        return {layer: states[rows] for layer, states in found.items()}

    def steered(self, vectors: Mapping[int, np.ndarray]) -> "LocalEngine":
        """A view of this engine that adds vectors to the residual stream as it leaves each layer.

        The sum is made at every position a token is predicted from: the last of the prompt and all
        new ones. The rest of the prompt is read as without steering.

        Args:
            vectors: {layer: (d,)}, strengths multiplied in.

        Raises:
            EngineError: The vectors are not finite, or those of another model.

        **Privacy** Post-processing of the vectors: writing any number of rows costs nothing.

        **Source**: Banayeeanzade et al. 2026 (EPSVec), equation 3 and section 4.2.
        """
        check_layers(tuple(vectors), self.layers)
        view, added = copy.copy(self), np.array(list(vectors.values()), dtype=np.float32)
        if added.shape != (len(vectors), self.width) or not np.isfinite(added).all():
            raise EngineError(
                f"Expected finite vectors of {self.width} numbers, got others; they may belong to "
                "another model."
            )
        view._vectors = dict(zip(vectors, added, strict=True))
        return view

    @abstractmethod
    def _write(
        self, prompts: list[list[int]], sampling: Sampling, progress: ShareCallback | None
    ) -> list[list[int]]:
        """New tokens of each prompt, up to its limit; what follows an end token is cut off here."""

    @abstractmethod
    def _hidden_states(
        self, texts: list[list[int]], reading: StateReading
    ) -> dict[int, np.ndarray]:
        """{layer: (N, d) float32} of different texts, cut already."""

    @property
    def _end_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text: the document's end, and the tokenizer's own where it differs."""
        eos = self.language_model.tokenizer.eos_token_id
        ids = {self.language_model.end_token_id} | ({int(eos)} if eos is not None else set())
        return tuple(sorted(ids))

    def constraint(self, schema: str, text_start: str = "") -> JsonConstraint:
        """What texts of a schema have to follow, in this model's tokens; kept once it is read.

        Raises:
            ValueError: See `JsonConstraint`.
        """
        key = schema, text_start
        if key not in self._constraints:
            self._constraints[key] = JsonConstraint(self.language_model, *key)
        return self._constraints[key]

    def require_schema(self, schema: str, text_start: str = "") -> None:
        """See `Engine.require_schema`."""
        self.constraint(schema, text_start)

    def _text_of(self, sampling: Sampling) -> Callable[[int], ConstrainedText] | None:
        """What the text of a prompt has to follow, by its place; None where texts are free."""
        if sampling.json_schema is None:
            return None
        constraint = self.constraint(sampling.json_schema, sampling.text_start)
        return lambda row: constraint.open(sampling.begun_by(row))

    def _generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, progress: ShareCallback | None
    ) -> list[Generation]:
        ids = self._prompt_ids(prompts, sampling.limits(len(prompts)))
        written = self._write(ids, sampling, progress) if ids else []
        return [self._generation(tokens, sampling.stop) for tokens in written]

    def _prompt_ids(self, prompts: Sequence[Prompt], limits: Sequence[int]) -> list[list[int]]:
        begin = self.language_model.begin_token_id
        start = [] if begin is None else [begin]
        encode = self.language_model.encode
        ids = [start + encode(p) if isinstance(p, str) else list(p) for p in prompts]
        if not all(ids):
            raise EngineError("Expected prompts of at least one token, got an empty one.")
        self._require_known(ids)
        if any(len(row) + limit > self.positions for row, limit in zip(ids, limits, strict=True)):
            raise EngineError(
                f"Expected prompt and new tokens within {self.positions} positions of "
                f"{self.name}, got a longer prompt; lower max_new_tokens or use fewer examples."
            )
        return ids

    def _require_known(self, ids: Sequence[Sequence[int]]) -> None:
        known = self.language_model.vocabulary_size
        if any(min(row) < 0 or max(row) >= known for row in ids if row):
            raise EngineError(
                f"Expected token ids in [0, {known}) of {self.name}, got others; encode with this "
                "model's own tokenizer."
            )

    def _generation(self, tokens: Sequence[int], stop: Sequence[str]) -> Generation:
        """Cuts at the first end token, then at the first stop text."""
        kept, finished = WritingRules(self._end_token_ids).until_end(list(tokens))
        decode = self.language_model.decode
        text = decode(kept)
        if any(item in text for item in stop):
            count = bisect_left(
                range(len(kept)),
                True,
                key=lambda n: any(item in decode(kept[:n]) for item in stop),
            )
            kept, finished = kept[:count], True
            text = decode(kept)
            text = text[: min(text.find(item) for item in stop if item in text)]
        return Generation(text, tuple(kept), finished)


class DecoderEngine(LocalEngine):
    """Batches prompts of similar length, reads equal prompts once, drops finished rows.

    What it gives of a prompt or text is a function of it alone, bit for bit, where that is so of
    the decoder (`Decoder.is_exact`).

    Args:
        language_model: Weights, tokenizer and document format.
        kind: What decodes (`open_decoder`).
        batch_rows: Rows of one decoding pass at most.

    Attributes:
        decoder: What decodes.

    Raises:
        EngineError: The decoder cannot be opened; in one line.
    """

    def __init__(
        self, language_model: "LanguageModel", kind: str = DEFAULT, *, batch_rows: int = 64
    ) -> None:
        super().__init__(language_model)
        self._batch_rows = batch_rows
        with self._one_line_errors():
            self.decoder = open_decoder(kind, language_model)
        self.capabilities = self.decoder.capabilities

    def close(self) -> None:
        """Lets go of the weights; the engine is not used again."""
        del self.decoder
        self.language_model.__dict__.pop("model", None)

    def _write(
        self, prompts: list[list[int]], sampling: Sampling, progress: ShareCallback | None
    ) -> list[list[int]]:
        rules = WritingRules(self._end_token_ids, sampling.stop, self.language_model.decode)
        with self._one_line_errors():
            return written_tokens(
                self.decoder,
                prompts,
                sampling.limits(len(prompts)),
                sampling,
                rules,
                batch_rows=self._batch_rows,
                added=self._vectors,
                text_of=self._text_of(sampling),
                progress=progress,
            )

    def _hidden_states(
        self, texts: list[list[int]], reading: StateReading
    ) -> dict[int, np.ndarray]:
        with self._one_line_errors():
            return self.decoder.hidden_states(texts, reading)

    @contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        """Turns what torch and the decoder say into one line without any text."""
        from dpsynth_assets.models.language_model import LanguageModelError

        try:
            yield
        except EngineError:
            raise
        except (ValueError, LanguageModelError) as error:
            raise EngineError(str(error).splitlines()[0]) from None
        except (MemoryError, RuntimeError) as error:  # Torch's is of the latter kind.
            if isinstance(error, MemoryError) or "memory" in str(error):
                raise EngineError(self._memory_message()) from None
            raise

    def _memory_message(self) -> str:
        return (
            f"{self.name} ran out of memory on {self.language_model.device} with batches of "
            f"{self._batch_rows} rows; lower batch_rows or max_new_tokens, or use another device."
        )


def check_layers(chosen: tuple[int, ...], layers: int) -> None:
    """Refuses layers outside [0, layers), repeated ones and an empty choice.

    Raises:
        EngineError: As said.
    """
    inside = all(0 <= layer < layers for layer in chosen)
    if not chosen or not inside or len(set(chosen)) != len(chosen):
        raise EngineError(
            f"Expected one or more different layers in [0, {layers}), got {list(chosen)}; "
            "layers are numbered from 0."
        )


def opened_engine(language_model: "LanguageModel", spec: "EngineSpec") -> DecoderEngine:
    """Opens the engine over a decoder of the declared kind."""
    return DecoderEngine(language_model, spec.kind, batch_rows=spec.batch_rows)
