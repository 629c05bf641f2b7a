"""Extension of vLLM's worker: drawn tokens go into the runner's documents.

Written for vLLM 0.32's model runner V1 without asynchronous scheduling: there a request's tokens
stand in the runner's own state, and in a row of its batch while the request is in it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Written(NamedTuple):
    """What a request's document becomes.

    Attributes:
        request: Its name.
        kept: Tokens of the document that stay.
        token: The token that follows them; None where a document begins.
    """

    request: str
    kept: int
    token: int | None


class LockstepWorker:
    """Mixed into vLLM's worker class; called by name through `LLM.collective_rpc`."""

    model_runner: Any

    def dpsynth_lockstep(self) -> tuple[Any, Any]:
        """The logits processor of this worker, and its runner."""
        from dpsynth_assets.models.vllm_decoder.logits import LockstepLogits

        processors = self.model_runner.input_batch.logitsprocs.non_argmax_invariant
        (own,) = (each for each in processors if isinstance(each, LockstepLogits))
        return own, self.model_runner

    def dpsynth_write(self, documents: Sequence[Written]) -> None:
        """Cuts documents and appends to them; what vLLM sampled since is dropped.

        Raises:
            KeyError: A document of at least one token whose prompt was never read.
        """
        runner = self.model_runner
        for request, kept, token in documents:
            if request not in runner.requests and token is None:
                continue  # its prompt was not read yet
            state = runner.requests[request]
            del state.output_token_ids[kept:]
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
