"""Opens and closes the vLLM instances of one process."""

import os
from threading import Lock
from typing import TYPE_CHECKING, Any

from dpsynth_assets.models.vllm_decoder.lockstep import VllmDecoderError

if TYPE_CHECKING:
    from dpsynth_assets.models.language_model import LanguageModel

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # our calls into the worker need no serialisation
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the runner that our extensions read
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "CRITICAL",  # a failing step would log how long prompts are
    "VLLM_FLOAT32_MATMUL_PRECISION": "highest",  # it is set for the whole process
    "DO_NOT_TRACK": "1",
}
_GIB = 2**30
_lock = Lock()
_running: set[int] = set()


def prepare_vllm() -> None:
    """Sets what vLLM reads when it is imported: one process, silent, nothing reported."""
    os.environ.update(ENVIRONMENT)


def opened_llm(language_model: "LanguageModel", *, cache_gib: float | None, **options: Any) -> Any:
    """Opens vLLM on a language model: one process, public seeds, nothing logged, eager passes.

    Args:
        language_model: Source of the weights, which vLLM loads itself.
        cache_gib: Memory of the cache of keys and values in GiB; None: what the share leaves.
        options: Further arguments of `vllm.LLM`.

    Raises:
        VllmDecoderError: vLLM 0.32 is not installed, or cannot load the model or its cache.
    """
    prepare_vllm()
    _require_version()
    from vllm import LLM

    try:
        llm = LLM(
            language_model.source,
            dtype=language_model.dtype,
            kv_cache_memory_bytes=None if cache_gib is None else int(cache_gib * _GIB),
            enforce_eager=True,  # a replayed graph calls no hooks and overwrites a step's logits
            async_scheduling=False,  # tokens are drawn between two steps
            enable_prefix_caching=True,
            generation_config="vllm",
            seed=0,
            trust_remote_code=False,
            disable_log_stats=True,
            **options,
        )
    except Exception as error:  # noqa: BLE001 (vLLM raises what its components raise)
        raise VllmDecoderError(_opening_message(language_model, error)) from None
    with _lock:
        _running.add(id(llm))
    return llm


def stop(llm: Any) -> None:
    """Stops a vLLM; its memory is free once the caller drops it.

    Those whose worker is this process share the groups in which devices talk, and shutting one down
    takes them from the others: only the last one does.
    """
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    client = llm.llm_engine.engine_core
    with _lock:
        _running.discard(id(llm))
        if _running and llm.llm_engine.vllm_config.parallel_config.world_size == 1:
            client._finalizer.detach()  # which would shut it down when it is collected
            return
        client.shutdown()
        if not _running:
            cleanup_dist_env_and_memory()


def _require_version() -> None:
    """Refuses another vLLM than the one whose hooks scheduler and workers take."""
    try:
        from vllm import __version__ as found
    except ImportError:
        found = "none"
    if not found.startswith("0.32."):
        raise VllmDecoderError(
            f"Expected vllm 0.32 in this environment, found {found}; install the extra vllm (CUDA) "
            "or see make test-vllm for the processor, or use transformers."
        )


def _opening_message(language_model: "LanguageModel", error: Exception) -> str:
    detail = " ".join(str(error).split())[:300]
    return (
        f"vLLM could not open {language_model.name} in {language_model.dtype}: {detail} Check "
        "dtype and engine: {kind: vllm, memory_fraction: ..., cache_gib: ..., "
        "tensor_parallel_size: ...}, or use transformers."
    )
