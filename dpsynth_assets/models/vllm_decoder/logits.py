"""The batch-level logits processor of the lock step; vLLM loads it by name."""

from typing import TYPE_CHECKING, Any

from vllm.v1.sample.logits_processor import LogitsProcessor  # noqa: TID253 (vLLM loads it)
from vllm.v1.sample.logits_processor.builtin import process_dict_updates  # noqa: TID253

from dpsynth_assets.models.vllm_decoder.lockstep import GROUP, MEMBER, LockstepError, Row, Step

if TYPE_CHECKING:
    import torch


class LockstepLogits(LogitsProcessor):
    """Hands a group's logits to its step, and leaves vLLM one constant token to sample.

    What vLLM samples is a column of zeros, so the token is 0 whatever the logits are. The scheduler
    does not take it (`LockstepScheduler.update_from_output`), and the drawn token stands in its
    place before the next step (`LockstepWorker.dpsynth_write`).
    """

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        del vllm_config, device, is_pin_memory
        self._rows: dict[int, Row] = {}
        self._step: Step | None = None

    def is_argmax_invariant(self) -> bool:
        """No: vLLM must call it for greedy requests too."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follows which request stands in which row."""
        process_dict_updates(self._rows, batch_update, _row_of)

    def expect(self, step: Step | None) -> None:
        """Says which step comes next; None: none may come."""
        self._step = step

    def apply(self, logits: "torch.Tensor") -> "torch.Tensor":
        """Shows logits (n, V) to the expected step; returns zeros (n, 1).

        Raises:
            LockstepError: No step is expected, or not this one.
        """
        import torch

        if self._step is None:
            raise LockstepError(
                "Expected no step of vLLM now, got one; nothing was sampled. This is a fault of "
                "the lock step: report it, and use decoder: transformers."
            )
        self._step.see(self._rows, logits)
        return torch.zeros_like(logits[:, :1])


def _row_of(parameters: Any, prompt: list[int] | None, written: list[int]) -> Row | None:
    del prompt
    arguments = parameters.extra_args or {}
    if GROUP not in arguments:
        return None
    return Row(arguments[GROUP], arguments[MEMBER], written)
