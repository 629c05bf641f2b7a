"""A language model inside vLLM that gives logits: groups of contexts, one step at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from threading import RLock
from typing import TYPE_CHECKING, Any, NoReturn

from dpsynth_assets.models.decoding.protocol import Decoder, Reading, attention_limit
from dpsynth_assets.models.engines.protocol import Capability
from dpsynth_assets.models.vllm_decoder.lockstep import (
    BALLAST,
    GROUP,
    MEMBER,
    Document,
    LockstepError,
    LockstepWorker,
    Step,
    VllmContexts,
    VllmDecoderError,
)
from dpsynth_assets.models.vllm_decoder.process import opened_llm, stop

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.models.language_model import LanguageModel

MOST_ROWS = 4096
"""Contexts in vLLM at most, of all passes together."""
MOST_TOKENS = 16_384
"""Tokens of a context at most, prompt and document: vLLM's tables have this many columns."""
_BLOCK = 32
"""Tokens of a block of keys and values; vLLM's attention on a processor asks for this multiple."""
_ROW_MULTIPLE = 16
"""Steps of private contexts have a multiple of this many rows: kernels round otherwise for few."""
_BALLAST_TOKENS = 33
"""Parts of private prompts are read beside this many tokens, less one."""
_FILLER = 0
"""Token that filler rows and ballast consist of; any public one does."""
_PACKAGE = "dpsynth_assets.models.vllm_decoder"


@dataclass
class _Group:
    """Contexts of one pass: their requests in order, and the memory that is theirs.

    Attributes:
        name: Of the pass.
        members: Numbers of its contexts.
        fillers: Numbers of rows that fill its steps up; they consist of one public token.
        blocks: Blocks of a context.
        public: Whether contexts and their number are public: nothing is filled up then.
    """

    name: str
    members: list[int]
    fillers: list[int]
    blocks: int
    public: bool

    @property
    def rows(self) -> int:
        """Requests: contexts, fillers, and ballast where there are any."""
        held = len(self.members) + len(self.fillers)
        return held + (held > 0 and not self.public)

    def request(self, member: int) -> str:
        return f"{self.name}-{member}"


class VllmDecoder(Decoder):
    """Gives next-token logits by vLLM 0.32, for `VllmContexts`.

    vLLM loads its own copy of the weights and runs in this process. It logs nothing, counts nothing
    and reports no usage. One step runs at a time, of one group.

    Args:
        language_model: Source of the weights.
        memory_fraction: Share of a GPU's memory for weights and cache.
        cache_gib: Memory of the cache of keys and values in GiB, instead of what the share leaves.
        most_rows: Contexts of all open groups together.
        step_tokens: Tokens of one step at most; longer prompts are read in chunks. None: 4,096, or
            `most_rows` where that is more.

    Attributes:
        config: The transformers configuration.
        most_tokens: Tokens of a context at most, prompt and document.

    Raises:
        VllmDecoderError: vLLM 0.32 is not installed, or cannot load the model or its cache.
    """

    can_be_invariant = shares_prefixes = True
    capabilities = frozenset({Capability.PRIVATE_TEXT})

    def __init__(
        self,
        language_model: "LanguageModel",
        *,
        memory_fraction: float = 0.9,
        cache_gib: float | None = None,
        most_rows: int = MOST_ROWS,
        step_tokens: int | None = None,
    ) -> None:
        import torch

        self.name, self.config = language_model.name, language_model.config
        self.dtype = getattr(torch, language_model.dtype)
        positions = getattr(self.config, "max_position_embeddings", None)
        self.most_tokens = min(MOST_TOKENS, positions or MOST_TOKENS)
        self.attention_limit = min(
            self.most_tokens, attention_limit(self.config) or self.most_tokens
        )
        self.vocabulary = int(self.config.vocab_size)
        self._most_rows, self._step_tokens = most_rows, step_tokens or max(4096, most_rows)
        self._lock, self._names = RLock(), count()
        self._groups: dict[str, _Group] = {}
        self._busy, self._abandoned = False, list[str]()
        self._stopped = False
        self._llm = self._opened(language_model, memory_fraction, cache_gib)
        self._client = self._llm.llm_engine.engine_core
        self._core = self._client.engine_core
        self._scheduler = self._core.scheduler
        self._processor, self._runner = self._llm.collective_rpc("dpsynth_lockstep")[0]
        self.device = self._runner.device
        import vllm  # once it was opened with its environment set

        self.engine_name = f"vllm {vllm.__version__}"
        self._refuse_recurrent()

    def _read(self, prompts: Sequence[Sequence[int]], reading: Reading) -> VllmContexts:
        """VLLM finds shared prefixes by itself."""
        return VllmContexts(self, prompts, reading)

    def require_groups(self, groups: Sequence[tuple[int, int]]) -> None:
        """Refuses groups that vLLM has no room for at the same time.

        Args:
            groups: (contexts, tokens of each at most) of each, public numbers.

        Raises:
            VllmDecoderError: One line, which states the numbers.
        """
        groups = [(_filled_up(contexts) + 1, tokens) for contexts, tokens in groups if contexts]
        rows = sum(contexts for contexts, _ in groups)
        needed = sum(contexts * self._blocks(tokens) for contexts, tokens in groups)
        if rows > self._most_rows or needed > self._all_blocks:
            raise VllmDecoderError(
                f"Expected room for {rows} contexts and {needed * _BLOCK} tokens of keys and "
                f"values in vLLM, got {self._most_rows} and {self._all_blocks * _BLOCK}. Lower "
                "batches_per_forward, expected_batch_size or lengths, or write engine: {kind: "
                "vllm, cache_gib: <more>}."
            )

    def rows_at_once(self, rows: int, tokens: int) -> int:
        """Cuts a number of contexts to what fits beside the open groups, at least one."""
        free = (self._all_blocks - self._taken_blocks) // self._blocks(tokens)
        room = min(self._most_rows - self._taken_rows, free) - 1
        return min(rows, max(1, room // _ROW_MULTIPLE * _ROW_MULTIPLE))

    def open_group(
        self, prompts: Sequence[Sequence[int]], tokens: int, *, public: bool = False
    ) -> str:
        """Adds requests that will step together, and reads nothing yet.

        Args:
            prompts: Token ids of each context.
            tokens: Tokens of a context at most, prompt and document; public.
            public: Whether prompts and their number are public.

        Returns:
            The group's name.

        Raises:
            VllmDecoderError: There is no room beside the groups that are open.
        """
        with self._alone():
            rows = len(prompts) if public else _filled_up(len(prompts))
            group = _Group(
                name=f"pass{next(self._names)}",
                members=list(range(len(prompts))),
                fillers=list(range(len(prompts), rows)),
                blocks=self._blocks(tokens),
                public=public,
            )
            self._require_room(group)
            self._groups[group.name] = group
            if prompts and not public:
                self._add(group, BALLAST, [_FILLER] * min(_BALLAST_TOKENS, self.most_tokens))
            for member, prompt in enumerate(prompts):
                self._add(group, member, prompt)
            for member in group.fillers:
                self._add(group, member, [_FILLER])
            return group.name

    def _add(self, group: _Group, member: int, prompt: Sequence[int]) -> None:
        """Adds a request. It never reads past its own room, so how much it asks for is nothing."""
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        parameters = SamplingParams(
            temperature=0,
            max_tokens=1,
            detokenize=False,
            ignore_eos=True,
            extra_args={GROUP: group.name, MEMBER: member},
        )
        request = EngineCoreRequest(
            request_id=group.request(member),
            prompt_token_ids=list(prompt),
            mm_features=None,
            sampling_params=parameters,
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=group.name,  # blocks are shared within the group alone
            data_parallel_rank=None,
        )
        self._client.add_request(request)

    def keep_members(self, name: str, kept: Sequence[int]) -> None:
        """Drops a group's contexts but those at these places, which take this order."""
        with self._alone():
            group = self._groups[name]
            members = [group.members[place] for place in kept]
            fillers = group.fillers
            if not group.public:
                self._fill(group, _filled_up(len(members)) - len(members))
            left = {*members, *group.fillers}
            gone = [each for each in (*group.members, *fillers) if each not in left]
            gone += [] if members else [BALLAST]
            self._abort([group.request(each) for each in gone])
            group.members = members

    def _fill(self, group: _Group, count: int) -> None:
        """Gives a group this many fillers: some of its own, or new ones."""
        first = 1 + max((*group.members, *group.fillers), default=BALLAST)
        new = list(range(first, first + max(0, count - len(group.fillers))))
        group.fillers = [*group.fillers[:count], *new]
        for member in new:
            self._add(group, member, [_FILLER])

    def close_group(self, name: str) -> None:
        """Drops a group; does nothing if it is gone.

        Contexts may be collected anywhere, in the middle of a step too: they are dropped after it.
        """
        with self._lock:
            if self._busy:
                self._abandoned.append(name)
                return
            group = self._groups.pop(name, None)
            if group is not None:
                requests = (*group.members, *group.fillers, BALLAST)
                self._abort([group.request(member) for member in requests])

    def next_logits(
        self, name: str, tokens: Sequence[int], written: Sequence[int]
    ) -> "torch.Tensor":
        """Takes one token of every context of a group, in one step without others.

        Args:
            name: The group.
            tokens: Last token of each document; ignored where it has none.
            written: Tokens of each document, `tokens` included.

        Returns:
            (R, V) float32 in the order of the members.

        Raises:
            LockstepError: vLLM ran some of the contexts only, or others; nothing was sampled.
            VllmDecoderError: A step failed otherwise.
        """
        with self._alone():
            if self._stopped:
                self._fail("an earlier failure")
            group = self._groups[name]
            try:
                return self._step(group, tokens, written)
            except LockstepError:
                self._stopped = True
                raise
            except Exception as error:  # noqa: BLE001 (any error: its text may hold a prompt)
                self._fail(type(error).__name__)
            finally:
                self._scheduler.release_group(None)
                self._processor.expect(None)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lets one caller at vLLM's lists, and closes afterwards what was abandoned meanwhile."""
        with self._lock:
            self._busy = True
            try:
                yield
            finally:
                self._busy = False
                while self._abandoned:
                    self.close_group(self._abandoned.pop())

    def close(self) -> None:
        """Stops vLLM and frees its memory."""
        with self._lock:
            if self._llm is None:
                return
            self._stopped = True
            self._groups.clear()
            stop(self._llm)
            self._llm = self._client = self._core = self._scheduler = None
            self._processor = self._runner = None

    @property
    def is_stopped(self) -> bool:
        """Whether it was closed, or failed."""
        return self._stopped

    def _step(self, group: _Group, tokens: Sequence[int], written: Sequence[int]) -> "torch.Tensor":
        known = dict(zip(group.members, map(Document, written, tokens), strict=True))
        known |= dict.fromkeys(group.fillers, Document(0, 0))
        documents = {group.request(member): each for member, each in known.items()}
        self._scheduler.write(documents)
        self._llm.collective_rpc("dpsynth_write", args=(documents,))
        step = Step(group.name, known, self._partial_rows)
        self._processor.expect(step)
        self._scheduler.release_group(group.name)
        while not step.done:
            _, executed = self._core.step()
            if not executed:
                self._fail("contexts that cannot step")
        return step.logits(len(group.members))

    def _partial_rows(self, rows: int) -> Any:
        return self._runner.discard_request_mask.np[:rows]

    def _abort(self, requests: list[str]) -> None:
        if requests and self._client is not None:
            self._client.abort_requests(requests)

    def _fail(self, what: str) -> NoReturn:
        self._stopped = True
        raise VllmDecoderError(
            f"{self.name} in vLLM stopped with {what}; give it more memory, or use decoder: "
            "transformers."
        ) from None

    @property
    def _all_blocks(self) -> int:
        """Blocks of the cache but for vLLM's empty one."""
        return int(self._scheduler.kv_cache_manager.block_pool.num_gpu_blocks) - 1

    @property
    def _taken_blocks(self) -> int:
        return sum(each.rows * each.blocks for each in self._groups.values())

    @property
    def _taken_rows(self) -> int:
        return sum(each.rows for each in self._groups.values())

    def _blocks(self, tokens: int) -> int:
        """Blocks that a context of this many tokens takes, of every kind of layer; or ballast."""
        tokens = max(tokens, _BALLAST_TOKENS)
        managers = self._scheduler.kv_cache_manager.coordinator.single_type_managers
        return sum(-(-tokens // manager.block_size) for manager in managers)

    def _require_room(self, group: _Group) -> None:
        """Refuses a group without room. How many contexts there are is not said: it is private."""
        blocks = self._taken_blocks + group.rows * group.blocks
        if self._taken_rows + group.rows > self._most_rows or blocks > self._all_blocks:
            raise VllmDecoderError(
                "Expected contexts that vLLM has room for, got more. Lower batches_per_forward, or "
                "write engine: {kind: vllm, cache_gib: <more>}."
            )

    def _refuse_recurrent(self) -> None:
        if self._scheduler.has_mamba_layers:
            self.close()
            raise VllmDecoderError(
                f"Expected a model with attention layers only, got {self.name} with recurrent "
                "layers, which cannot start a new document. Use decoder: transformers."
            )

    def _opened(
        self, language_model: "LanguageModel", memory_fraction: float, cache_gib: float | None
    ) -> Any:
        return opened_llm(
            language_model,
            max_model_len=self.most_tokens,
            max_num_seqs=self._most_rows,
            max_num_batched_tokens=self._step_tokens,
            gpu_memory_utilization=memory_fraction,
            cache_gib=cache_gib,
            block_size=_BLOCK,
            enable_chunked_prefill=True,
            skip_tokenizer_init=True,
            scheduler_cls=f"{_PACKAGE}.scheduler.LockstepScheduler",
            logits_processors=[f"{_PACKAGE}.scheduler:LockstepLogits"],
            worker_extension_cls=f"{_PACKAGE}.lockstep.{LockstepWorker.__name__}",
        )


def _filled_up(rows: int) -> int:
    """Rounds up to whole multiples."""
    return -(-rows // _ROW_MULTIPLE) * _ROW_MULTIPLE
