"""What several vLLMs of one process share: their environment, and the end of the last of them."""

import os
from threading import Lock
from typing import Any

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # our calls into the worker need no serialisation
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the runner that our extensions read
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "CRITICAL",  # a failing step would log how long prompts are
    "VLLM_FLOAT32_MATMUL_PRECISION": "highest",  # it is set for the whole process
    "DO_NOT_TRACK": "1",
}
_lock = Lock()
_running: set[int] = set()


def prepare_vllm() -> None:
    """Sets what vLLM reads when it is imported: one process, silent, nothing reported."""
    os.environ.update(ENVIRONMENT)


def started(llm: Any) -> Any:
    """Counts a vLLM that was opened, and returns it."""
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
