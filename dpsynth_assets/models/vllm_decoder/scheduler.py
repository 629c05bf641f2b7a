"""Classes that vLLM loads by name: a scheduler of groups, and a logits processor.

Written against the hooks of vLLM 0.32's scheduler (`_reserve_prefill_lookahead` says how many
tokens of a request a step takes, `_handle_blocked_waiting_request` whether one may begin).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.scheduler import Scheduler  # noqa: TID253 (vLLM loads it)
from vllm.v1.sample.logits_processor import LogitsProcessor  # noqa: TID253 (vLLM loads it)
from vllm.v1.sample.logits_processor.builtin import process_dict_updates  # noqa: TID253

from dpsynth_assets.models.vllm_decoder.lockstep import (
    BALLAST,
    GROUP,
    MEMBER,
    Document,
    LockstepError,
    Row,
    Step,
)

if TYPE_CHECKING:
    import torch


class LockstepScheduler(Scheduler):
    """Runs one group at a time: prompts up to their last tokens, then one step of all members.

    * **Chunked prefill** A prompt may be read in chunks, beside others of its group. The chunk that
      would end it stops one token short, and the member waits there.
    * **Preemption** A preempted member has lost what was read of it. It is read again, document and
      all, while the others wait; no step takes some of the members.
    * **Prefix caching** Members find prompts of their own group in the cache. A hit never leaves
      only the last token, which a prompt that is to be read could not stop short of. Documents are
      not cached: another one is written over them when a member begins again.

    A group may have ballast: a public request that is read again with every part of prompts, so
    that no such step has few tokens, for which kernels round otherwise. It takes no part in the
    steps of the group.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._members: dict[str, dict[str, Any]] = {}
        self._released: str | None = None
        self._together = False
        _cache_prompts_only(self.kv_cache_manager.coordinator)

    def release_group(self, group: str | None) -> None:
        """Lets the members of one group run; None: of none."""
        self._released = group

    def write(self, documents: Mapping[str, Document]) -> None:
        """Cuts members' documents and appends to them; their last token is to be read then.

        Raises:
            LockstepError: A document would grow by more than one token.
        """
        for request, document in documents.items():
            self._write(self.requests[request], document.kept, document.token)

    def add_request(self, request: Any) -> None:
        """Takes a request of a group."""
        self._members.setdefault(_group_of(request), {})[request.request_id] = request
        super().add_request(request)

    def schedule(self, *arguments: Any, **options: Any) -> Any:
        """Schedules the released group: parts of prompts, or one token of every member."""
        requests = list(self._members.get(self._released or "", {}).values())
        members = [each for each in requests if not _is_ballast(each)]
        self._together = bool(members) and all(_unread(each) == 1 for each in members)
        for request in requests:
            if _is_ballast(request):
                request.num_computed_tokens = 0
        return super().schedule(*arguments, **options)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Takes the step as done, but not what vLLM sampled: `write` brings what was drawn."""
        if model_runner_output.sampled_token_ids:
            model_runner_output.sampled_token_ids = []
        return super().update_from_output(scheduler_output, model_runner_output)

    def _write(self, request: Any, kept: int, token: int | None) -> None:
        written = request.num_output_tokens
        if kept > written:
            raise LockstepError(
                "Expected documents that grow by one token per step, got one that was written "
                "elsewhere. Start it with 0 tokens."
            )
        if kept < written:
            del request._output_token_ids[kept:]
            del request._all_token_ids[request.num_prompt_tokens + kept :]
            del request.block_hashes[request.num_tokens // self.hash_block_size :]
        if token is not None:
            request.append_output_token_ids(token)
        request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens - 1)

    def _free_request(self, request: Any, *arguments: Any, **options: Any) -> Any:
        group = _group_of(request)
        members = self._members.get(group, {})
        members.pop(request.request_id, None)
        if not members:
            self._members.pop(group, None)
        return super()._free_request(request, *arguments, **options)

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        """Lets members of the released group begin: those of one token with the others only."""
        if _group_of(request) != self._released or self._waits(request):
            return False
        return bool(super()._handle_blocked_waiting_request(request))

    def _reserve_prefill_lookahead(
        self, request: Any, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        """Counts tokens that a step takes of a request: none of the last one, or it alone."""
        if _group_of(request) != self._released or self._waits(request):
            return 0
        count = int(
            super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        )
        if self._together:
            return count
        return max(0, min(count, request.num_tokens - 1 - num_computed_tokens))

    def _waits(self, request: Any) -> bool:
        """Whether a request of the released group takes no part in this step."""
        if self._together:
            return _is_ballast(request)
        return _unread(request) == 1

    def _get_local_prefix_cache_hit(self, request: Any) -> Any:
        blocks, hit, boundary, diverged = super()._get_local_prefix_cache_hit(request)
        if hit and hit == request.num_tokens - 1:
            hit -= self.block_size
            blocks = self.kv_cache_manager.truncate_computed_blocks(blocks, hit)
        return blocks, hit, boundary, diverged


def _unread(request: Any) -> int:
    """Tokens of a request that are known and not read."""
    return int(request.num_tokens - request.num_computed_tokens)


def _is_ballast(request: Any) -> bool:
    return bool(request.sampling_params.extra_args[MEMBER] == BALLAST)


def _group_of(request: Any) -> str:
    arguments = request.sampling_params.extra_args or {}
    if GROUP not in arguments:
        raise LockstepError(
            "Expected requests that belong to a group, got one that belongs to none."
        )
    return str(arguments[GROUP])


def _cache_prompts_only(coordinator: Any) -> None:
    """Keeps blocks with tokens of documents out of the cache of prompts."""
    cache = coordinator.cache_blocks

    def cache_prompt(request: Any, num_computed_tokens: int) -> None:
        cache(request, min(num_computed_tokens, request.num_prompt_tokens))

    coordinator.cache_blocks = cache_prompt


class LockstepLogits(LogitsProcessor):
    """Hands a group's logits to its step, and leaves vLLM one constant token to sample.

    What vLLM samples is a column of zeros, so the token is 0 for any logits. The scheduler
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
                "Expected no step of vLLM now, got one; nothing was sampled. This is a bug of "
                "dpsynth_assets: report it, and use decoder: transformers."
            )
        self._step.see(self._rows, logits)
        return torch.zeros_like(logits[:, :1])


def _row_of(parameters: Any, prompt: list[int] | None, written: list[int]) -> Row | None:
    del prompt
    arguments = parameters.extra_args or {}
    if GROUP not in arguments:
        return None
    return Row(arguments[GROUP], arguments[MEMBER], written)
