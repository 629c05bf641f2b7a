"""Extension of vLLM's worker: steering, drawing tokens, pooled hidden states.

vLLM runs many requests as one flat row of tokens, split differently at every step (chunked
prefill, preemption). Before each forward pass we ask the model runner which request and which
position every token has; all services follow from that. The stream leaves a vLLM decoder
layer as two summands, (hidden, residual).

Written for vLLM 0.32's model runner V1 without CUDA graphs, which is what `VllmEngine` starts.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dpsynth_assets.models.decoding.constraint import ConstrainedText, JsonConstraint, constrain
from dpsynth_assets.models.decoding.token_draws import draw_tokens, uniforms
from dpsynth_assets.models.engines.protocol import Sampling

if TYPE_CHECKING:
    import torch

DOCUMENT = "dpsynth_document"
"""Key of a request's `extra_args`: index of the text or prompt it carries."""


class ResidualStreamWorker:
    """Mixed into vLLM's worker class; called by name through `LLM.collective_rpc`."""

    model_runner: Any

    def dpsynth_steer(self, vectors: Mapping[int, np.ndarray]) -> None:
        """Adds vectors (d,) float32 to the stream until `dpsynth_release`."""
        steering = _Steering(self.model_runner, vectors)
        self._dpsynth_hooks = steering.hooks()

    def dpsynth_read_states(self, layers: tuple[int, ...], skip: int) -> None:
        """Pools states of every text that passes, until they are taken.

        Args:
            layers: Layers that are read.
            skip: Tokens at the start of each request that are not pooled.
        """
        self._dpsynth_reader = _StateReader(self.model_runner, layers, skip)
        self._dpsynth_hooks = self._dpsynth_reader.hooks()

    def dpsynth_take_states(self) -> dict[int, np.ndarray]:
        """{index of text: (layers, d) float32}, of all texts read."""
        return self._dpsynth_reader.states

    def dpsynth_draw(self, sampling: Sampling, source: str, end_token_id: int) -> None:
        """Draws tokens as the transformers engine does: same seeds, same tokens, same schema.

        All but the drawn token of each row get no probability, so that vLLM's argmax takes it.
        vLLM's own seeded requests cannot have their prompts read in chunks on a processor (0.32),
        and draw row by row.
        """
        schema, constraint = sampling.json_schema, None
        if schema is not None:
            from dpsynth_assets.models.language_model import load_language_model

            model = load_language_model(source, device="cpu")
            start = sampling.text_start
            constraint = JsonConstraint(model, schema, start, end_token_id=end_token_id)
        draws = _Draws(self.model_runner, sampling, constraint)
        compute = self.model_runner.model.compute_logits

        def compute_and_draw(*arguments: Any, **options: Any) -> Any:
            logits = compute(*arguments, **options)
            return None if logits is None else draws.forced(logits)  # one worker of several has any

        self.model_runner.model.compute_logits = compute_and_draw

    def dpsynth_release(self) -> None:
        """Removes hooks and forgets what was read."""
        for hook in self.__dict__.pop("_dpsynth_hooks", []):
            hook.remove()
        self.model_runner.model.__dict__.pop("compute_logits", None)  # uncovers the class's own
        self.__dict__.pop("_dpsynth_reader", None)


class _Draws:
    """Each request's tokens from a stream of its own, regardless of the others in its step."""

    def __init__(self, runner: Any, sampling: Sampling, constraint: JsonConstraint | None) -> None:
        self._runner, self._sampling, self._constraint = runner, sampling, constraint
        self._texts: dict[int, tuple[ConstrainedText, int]] = {}
        self._streams: dict[int, np.ndarray] = {}

    def forced(self, logits: "torch.Tensor") -> "torch.Tensor":
        """Logits (R, V) that leave one token to choose."""
        import torch

        requests = _requests(self._runner)
        scores = logits.float()
        if self._constraint is not None:
            scores = scores.clone() if scores is logits else scores
            constrain(scores, [self._text(each) for each in requests])
        uniform = torch.from_numpy(self._uniform(requests)).to(logits.device)
        tokens = draw_tokens(scores, uniform, self._sampling)
        return torch.full_like(logits, -torch.inf).scatter_(1, tokens[:, None], 0.0)

    def _text(self, request: Any) -> ConstrainedText:
        """The text of a request, with all tokens that it has by now."""
        index = request.sampling_params.extra_args[DOCUMENT]
        constraint = cast("JsonConstraint", self._constraint)
        text, known = self._texts.get(index) or (
            constraint.open(self._sampling.begun_by(index)),
            0,
        )
        for token in request.output_token_ids[known:]:
            text.take(token)
        self._texts[index] = text, len(request.output_token_ids)
        return text

    def _uniform(self, requests: list[Any]) -> np.ndarray:
        """The number of each row's stream that belongs to its next token, (R,) float32."""
        numbers = []
        for request in requests:
            index = request.sampling_params.extra_args[DOCUMENT]
            if index not in self._streams:
                count = request.sampling_params.max_tokens
                self._streams[index] = uniforms(self._sampling.seed, [index], count)[0]
            numbers.append(self._streams[index][len(request.output_token_ids)])
        return np.array(numbers, dtype=np.float32)


class _Steering:
    """Adds vectors at positions a token is predicted from: the prompt's last and all new ones."""

    def __init__(self, runner: Any, vectors: Mapping[int, np.ndarray]) -> None:
        import torch

        self._runner = runner
        self._vectors = {
            layer: torch.from_numpy(vector).to(runner.device, runner.dtype)
            for layer, vector in vectors.items()
        }
        self._where: Any = None

    def hooks(self) -> list[Any]:
        layers = _decoder_layers(self._runner.model)
        first = layers[0].register_forward_pre_hook(self._locate)
        adds = [layers[n].register_forward_hook(self._adds(v)) for n, v in self._vectors.items()]
        return [first, *adds]

    def _locate(self, *_: Any) -> None:
        """Marks steered tokens, (T, 1)."""
        import torch

        request, position = _tokens(self._runner)
        last = self._runner.input_batch.num_prompt_tokens[request] - 1
        where = torch.from_numpy(position >= last)[:, None]
        self._where = where.to(self._runner.device, self._runner.dtype)

    def _adds(self, vector: "torch.Tensor") -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> Any:
            hidden = (output[0] if isinstance(output, tuple) else output).clone()
            hidden[: len(self._where)] += self._where * vector  # the rest is padding
            return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

        return hook


class _StateReader:
    """Sums states of each request's own tokens, however many passes it is read in.

    Attributes:
        states: {index of text: (layers, d) float32}.
    """

    def __init__(self, runner: Any, layers: tuple[int, ...], skip: int) -> None:
        self._runner, self._layers, self._skip = runner, layers, skip
        self.states: dict[int, np.ndarray] = {}
        self._weights: torch.Tensor | None = None
        self._rows: list[int | None] = []

    def hooks(self) -> list[Any]:
        layers = _decoder_layers(self._runner.model)
        first = layers[0].register_forward_pre_hook(self._locate)
        reads = [
            layers[layer].register_forward_hook(self._reads(place))
            for place, layer in enumerate(self._layers)
        ]
        return [first, *reads]

    def _locate(self, *_: Any) -> None:
        """Weight of each token in its request's pooled state, (requests, T)."""
        import torch

        request, position = _tokens(self._runner)
        length = self._runner.input_batch.num_prompt_tokens[request]
        weight = ((position >= self._skip) & (position < length)) / (length - self._skip)
        arguments = (each.sampling_params.extra_args for each in _requests(self._runner))
        self._rows = [(own or {}).get(DOCUMENT) for own in arguments]
        weights = torch.zeros((len(self._rows), len(request)))
        weights[request, torch.arange(len(request))] = torch.from_numpy(weight).float()
        self._weights = weights.to(self._runner.device)

    def _reads(self, place: int) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            weights = self._weights
            if weights is None:
                return
            stream = _stream(output)[: weights.shape[1]].float()
            pooled = (weights @ stream).cpu().numpy()
            for row, index in enumerate(self._rows):
                if index is not None:
                    shape = (len(self._layers), pooled.shape[1])
                    state = self.states.setdefault(index, np.zeros(shape, dtype=np.float32))
                    state[place] += pooled[row]

        return hook


def _decoder_layers(model: Any) -> Any:
    """The longest list of modules: vLLM's models name it differently."""
    from torch.nn import ModuleList

    return max((m for m in model.modules() if isinstance(m, ModuleList)), key=len)


def _stream(output: Any) -> "torch.Tensor":
    if not isinstance(output, tuple):
        return output
    hidden, residual = output[:2]
    return hidden if residual is None else hidden + residual


def _requests(runner: Any) -> list[Any]:
    """Finds the request that each row of the step belongs to."""
    batch = runner.input_batch
    return [runner.requests[name] for name in batch.req_ids[: batch.num_reqs]]


def _tokens(runner: Any) -> tuple[np.ndarray, np.ndarray]:
    """Request row and position of every token of the coming pass, two (T,) int64."""
    batch = runner.input_batch
    starts = runner.query_start_loc.np[: batch.num_reqs + 1].astype(np.int64)
    request = np.repeat(np.arange(batch.num_reqs), np.diff(starts))
    computed = batch.num_computed_tokens_cpu[: batch.num_reqs].astype(np.int64)
    position = np.arange(starts[-1]) - starts[:-1][request] + computed[request]
    return request, position
