"""Contexts that vLLM decodes: prompts read in its cache, documents continued and begun anew."""

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpsynth_assets.models.decoding.protocol import Reading
from dpsynth_assets.models.token_counts import COUNTS

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.models.vllm_decoder.decoder import VllmDecoder


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
            ValueError: vLLM has no room for so many rows.
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
        COUNTS.written += len(self)
        return self._decoder.next_logits(self._group, tokens.tolist(), generated.tolist())

    def keep(self, contexts: "torch.Tensor") -> None:
        """Drops all contexts but these ((R',), int64, in this order); later steps are smaller."""
        self._count = len(contexts)
        self._decoder.keep_members(self._group, contexts.tolist())
