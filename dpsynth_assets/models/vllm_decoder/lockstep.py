"""Checks in vLLM that all contexts of a group step together, and keeps their documents.

The worker's part is written for vLLM 0.32's model runner V1 without asynchronous scheduling: there
a request's tokens stand in the runner's own state, and in a row of its batch while the request is
in it.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dpsynth_assets.models.decoding.protocol import COUNTS, Reading

if TYPE_CHECKING:
    import numpy as np
    import torch

    from dpsynth_assets.models.vllm_decoder.decoder import VllmDecoder

GROUP = "dpsynth_group"
"""Key of a request's `extra_args`: name of the pass it belongs to."""
MEMBER = "dpsynth_member"
"""Key of a request's `extra_args`: its number in the pass."""
BALLAST = -1
"""Number of the request that is read with every part of prompts, and in no step of the group."""


class VllmDecoderError(ValueError):
    """vLLM cannot decode this: one line, expected, got, remedy."""


class LockstepError(RuntimeError):
    """Contexts of a pass did not step together; nothing was sampled. Says nothing of them."""


class Row(NamedTuple):
    """One row of vLLM's batch.

    Attributes:
        group: Name of its pass.
        member: Its number there.
        written: Tokens of its document, as vLLM's runner has them; grows in place.
    """

    group: str
    member: int
    written: Sequence[int]


class Document(NamedTuple):
    """What is known of a member's document.

    Attributes:
        length: Tokens it has.
        last: The last of them; anything where it has none.
    """

    length: int
    last: int

    @property
    def kept(self) -> int:
        """Tokens that it had before its last."""
        return max(self.length - 1, 0)

    @property
    def token(self) -> int | None:
        """The last token; None where a document begins."""
        return self.last if self.length else None

    def is_in(self, written: Sequence[int]) -> bool:
        """Says whether the runner has a document of this length with this end."""
        return len(written) == self.length and (not written or written[-1] == self.last)


class Step:
    """A step that a group is to take together."""

    def __init__(
        self,
        group: str,
        documents: Mapping[int, Document],
        partial_rows: "Callable[[int], np.ndarray]",
    ) -> None:
        """Names who must be there.

        Args:
            group: Name of the pass.
            documents: {member: its document}, in the order of the logits.
            partial_rows: Says of vLLM's first n rows which read a part of their tokens only.
        """
        self._group, self._documents, self._partial_rows = group, dict(documents), partial_rows
        self._seen: torch.Tensor | None = None
        self._places: list[int] = []

    @property
    def done(self) -> bool:
        """Whether the group's logits were seen."""
        return self._seen is not None

    def logits(self, count: int) -> "torch.Tensor":
        """Logits (count, V) float32 of the first members expected; a copy that may be changed.

        Called outside vLLM's inference mode, whose own tensors may not be written to elsewhere.
        """
        if self._seen is None:
            raise LockstepError(_broken("none of them"))
        places = self._places[:count]
        if places == list(range(count)):
            return self._seen[:count].clone()
        return self._seen[places]

    def see(self, rows: Mapping[int, Row], logits: "torch.Tensor") -> None:
        """Takes the group's logits off a step of vLLM, or nothing while prompts are being read.

        Args:
            rows: Rows of the batch, by place.
            logits: (n, V) float32, n >= len(rows); those of partial rows mean nothing.

        Raises:
            LockstepError: The step holds another group's row, or some members only, or one whose
                document is another than was said, or the group a second time.
        """
        if len(rows) != len(logits):
            raise LockstepError(_broken("a row without a group"))
        if any(row.group != self._group for row in rows.values()):
            raise LockstepError(_broken("a context of another pass"))
        partial = self._partial_rows(len(logits))
        place_of = {row.member: place for place, row in rows.items() if not partial[place]}
        if not place_of:
            return
        if self.done:
            raise LockstepError(_broken("the same contexts twice"))
        if len(place_of) != len(rows) or place_of.keys() != self._documents.keys():
            raise LockstepError(_broken("some of them"))
        for member, document in self._documents.items():
            if not document.is_in(rows[place_of[member]].written):
                raise LockstepError(_broken("one with another document"))
        self._seen, self._places = logits, [place_of[member] for member in self._documents]


def _broken(got: str) -> str:
    return (
        f"Expected all contexts of one pass in one step of vLLM, got {got}; nothing was sampled. "
        "This is a bug of dpsynth_assets: report it, and use decoder: transformers."
    )


class LockstepWorker:
    """Mixed into vLLM's worker class; called by name through `LLM.collective_rpc`."""

    model_runner: Any

    def dpsynth_lockstep(self) -> tuple[Any, Any]:
        """The logits processor of this worker, and its runner."""
        from dpsynth_assets.models.vllm_decoder.scheduler import LockstepLogits

        processors = self.model_runner.input_batch.logitsprocs.non_argmax_invariant
        (own,) = (each for each in processors if isinstance(each, LockstepLogits))
        return own, self.model_runner

    def dpsynth_write(self, documents: Mapping[str, Document]) -> None:
        """Cuts documents and appends to them; what vLLM sampled since is dropped.

        Raises:
            KeyError: A document of at least one token whose prompt was never read.
        """
        runner = self.model_runner
        for request, document in documents.items():
            token = document.token
            if request not in runner.requests and token is None:
                continue  # its prompt was not read yet
            state = runner.requests[request]
            del state.output_token_ids[document.kept :]
            place = runner.input_batch.req_id_to_index.get(request)
            if token is not None:
                state.output_token_ids.append(token)
            if place is not None:
                self._dpsynth_write_row(place, state.num_tokens, token)

    def _dpsynth_write_row(self, place: int, tokens: int, token: int | None) -> None:
        """Writes the last of a request's tokens into its row of the batch."""
        batch = self.model_runner.input_batch
        if token is not None:
            batch.token_ids_cpu[place, tokens - 1] = token
            batch.is_token_ids[place, tokens - 1] = True
        batch.num_tokens_no_spec[place] = tokens


class VllmContexts:
    """R prompts, each with its own growing document, decoded one token a row at a time.

    One call of `next_logits` is one step of vLLM that holds these rows and no others. Prompts are
    read by the first call. A prefix that prompts share is read once, in whole blocks of 32 tokens,
    whether it was declared or not.

    **Privacy** No other contexts' rows share a step with these, nor any of their keys and values.
    Among these, rounding may follow what else is in a step, how prompts were cut into parts, and
    which row was the first to read a shared prefix: one row more or less may move all rows of these
    contexts, and no others, in the last bits. Callers charge a stated `logit_slack` for as many
    rows as they ever put here. Kernels round otherwise for a single row (5.5e-5 was seen): steps of
    private rows have a multiple of 16, and their prompts are read beside 32 tokens of public filler
    at least. Weights on a processor must be float32.
    """

    def __init__(
        self,
        decoder: "VllmDecoder",
        prompts: Sequence[Sequence[int]],
        reading: Reading,
    ) -> None:
        """Asks vLLM for room.

        Args:
            decoder: The model in vLLM.
            prompts: R token sequences of 1..P ids.
            reading: How they are read: steps of public prompts are not filled up.

        Raises:
            ValueError: vLLM has no room for this many rows.
        """
        self._decoder, self._count = decoder, len(prompts)
        self._group = decoder.open_group(prompts, reading.columns, public=reading.public)
        weakref.finalize(self, decoder.close_group, self._group).atexit = False

    def __len__(self) -> int:
        """Number of contexts R."""
        return self._count

    def next_logits(self, tokens: "torch.Tensor", generated: "torch.Tensor") -> "torch.Tensor":
        """Advances every row by one token.

        Args:
            tokens: (R,) int64, the document's last token; ignored where `generated` is 0.
            generated: (R,) int64 in [0, T), tokens of the document so far: at most one more than
                at the last call.

        Returns:
            Logits (R, V) of each row's next token, float32.

        Raises:
            LockstepError: vLLM did not run exactly these rows; nothing was sampled.
            VllmDecoderError: The step failed otherwise.
        """
        import torch

        if not len(self):
            return torch.zeros((0, self._decoder.vocabulary), device=self._decoder.device)
        COUNTS["written"] += len(self)
        return self._decoder.next_logits(self._group, tokens.tolist(), generated.tolist())

    def keep(self, contexts: "torch.Tensor") -> None:
        """Drops all contexts but these ((R',), int64, in this order); later steps are smaller."""
        self._count = len(contexts)
        self._decoder.keep_members(self._group, contexts.tolist())
