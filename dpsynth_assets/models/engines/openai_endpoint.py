"""An OpenAI-compatible endpoint as an engine, for text that is public or released already.

Whoever runs the endpoint sees every prompt, so a prompt made of private text never goes there: no
privacy accounting covers what another party reads. Callers say what prompts are made of, and text
of unstated provenance is private.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from dpsynth_assets.models.engines.endpoint_client import EndpointClient, RefusedError
from dpsynth_assets.models.engines.protocol import (
    Capability,
    EngineError,
    Generation,
    Pooling,
    Prompt,
    Provenance,
    Sampling,
    ShareCallback,
    SteeredEngine,
)
from dpsynth_assets.models.engines.usage import UsageCounter

_ROUTES = {"completions": "completions", "chat": "chat/completions"}
_UNKNOWN_SETTING = frozenset({400, 415, 422, 501})
"""Status codes with which endpoints refuse a setting that they do not know."""


class OpenAiEndpoint:
    """Writes from public or released prompts; tells no logits or hidden states, steers nothing.

    Args:
        base_url: Such as https://host/v1.
        model: Name the endpoint knows.
        api: `completions`, or `chat` with the prompt as the user's only message.
        api_key_variable: Environment variable that holds the key; None for no key.
        concurrency: Requests in flight at most.
        timeout_seconds: Of one request.
        attempts: Tries of one request, the first included.
        usage: Counts tokens and cost.

    Attributes:
        usage: What has been asked, written and spent.

    Raises:
        EngineError: The environment variable is not set.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api: str = "completions",
        api_key_variable: str | None = None,
        concurrency: int = 8,
        timeout_seconds: float = 60.0,
        attempts: int = 6,
        usage: UsageCounter | None = None,
    ) -> None:
        import httpx

        self.usage = usage or UsageCounter()
        self._model, self._api, self._concurrency = model, api, concurrency
        http = httpx.Client(
            base_url=base_url.rstrip("/") + "/",
            headers=_authorisation(api_key_variable),
            timeout=timeout_seconds,
            follow_redirects=False,  # the key goes nowhere but to base_url
        )
        self._client = EndpointClient(http, attempts, self.usage.retried)
        self._takes_schemas = True

    @property
    def name(self) -> str:
        """Name of the model at the endpoint."""
        return self._model

    @property
    def capabilities(self) -> frozenset[Capability]:
        """None but writing from text."""
        return frozenset()

    @property
    def layers(self) -> int:
        """Unknown: 0."""
        return 0

    @property
    def width(self) -> int:
        """Unknown: 0."""
        return 0

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        provenance: Provenance = Provenance.PRIVATE,
        progress: ShareCallback | None = None,
    ) -> list[Generation]:
        """See `Engine.generate`. Seeds are passed on; whether they are kept is the endpoint's word.

        Raises:
            EngineError: The prompts are private or token ids, the endpoint refuses or keeps
                failing, or the cost limit is spent.
        """
        _require_public(provenance)
        if not all(isinstance(prompt, str) for prompt in prompts):
            raise EngineError(
                "Expected prompts as text for an endpoint, got token ids; its tokenizer is its own."
            )
        limits = sampling.limits(len(prompts))
        written: dict[int, Generation] = {}
        pool = ThreadPoolExecutor(max_workers=self._concurrency)
        try:
            rows = {
                pool.submit(self._write, prompt, sampling, row, limit): row
                for row, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
            }
            for finished in as_completed(rows):
                written[rows[finished]] = finished.result()
                if progress is not None:
                    progress(len(written) / len(prompts))
        finally:
            pool.shutdown(cancel_futures=True)
        return [written[row] for row in range(len(prompts))]

    def hidden_states(
        self,
        texts: Sequence[Prompt],
        layers: Sequence[int],
        pooling: Pooling = "mean",
        *,
        max_tokens: int | None = None,
        behind: Sequence[int] = (),
        provenance: Provenance = Provenance.PRIVATE,
        progress: ShareCallback | None = None,
    ) -> dict[int, np.ndarray]:
        """Refuses: an endpoint tells no hidden states.

        Raises:
            EngineError: Always.
        """
        del texts, layers, pooling, max_tokens, behind, provenance, progress
        _refuse("hidden states")

    def next_token_logits(self, prompts: Sequence[Prompt]) -> np.ndarray:
        """Refuses: an endpoint tells a few log-probabilities at most.

        Raises:
            EngineError: Always.
        """
        del prompts
        _refuse("the logits of every token")

    @contextmanager
    def steered(
        self, vectors: Mapping[int, np.ndarray], strengths: float | Mapping[int, float]
    ) -> Iterator[SteeredEngine]:
        """Refuses: an endpoint cannot be steered.

        Raises:
            EngineError: Always.
        """
        del vectors, strengths
        _refuse("steering")
        yield self  # makes this a generator; never reached

    def require_schema(self, schema: str, text_start: str = "") -> None:
        """Refuses nothing: what the endpoint can write, it knows."""

    def close(self) -> None:
        """Closes connections."""
        self._client.http.close()

    def _write(self, prompt: Any, sampling: Sampling, row: int, limit: int) -> Generation:
        self.usage.require_room()
        answer = self._ask(self._body(prompt, sampling, row, limit))
        usage = answer.get("usage") or {}
        self.usage.answered(
            int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
        )
        try:
            choice = answer["choices"][0]
            text = choice["message"]["content"] if self._api == "chat" else choice["text"]
            return Generation(str(text or ""), (), choice.get("finish_reason") == "stop")
        except (KeyError, IndexError, TypeError):
            raise EngineError(
                f"Expected choices of the {self._api} route from the endpoint, got none; "
                "try the other value of api."
            ) from None

    def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """Posts; an endpoint that refuses a schema is asked for free text from then on."""
        route = _ROUTES[self._api]
        if "response_format" not in body:
            return self._client.post(route, body)
        try:
            return self._client.post(route, body)
        except RefusedError as refused:
            if refused.status not in _UNKNOWN_SETTING:
                raise
        answer = self._client.post(route, {k: v for k, v in body.items() if k != "response_format"})
        self._takes_schemas = False
        return answer

    def _body(self, prompt: str, sampling: Sampling, row: int, limit: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": limit,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": (sampling.seed + row) % 2**31,
        }
        if self._api == "chat":
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if sampling.top_k is not None:
            body["top_k"] = sampling.top_k  # vLLM's and others' extension
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.json_schema is not None and self._takes_schemas:
            schema = json.loads(sampling.json_schema)
            form = {"name": "text", "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        return body


def _authorisation(variable: str | None) -> dict[str, str]:
    if variable is None:
        return {}
    key = os.environ.get(variable, "").strip()
    if not key:
        raise EngineError(
            f"Expected the endpoint's key in the environment variable {variable}, found none; "
            "export it, or drop api_key_variable for an endpoint without keys."
        )
    return {"Authorization": f"Bearer {key}"}


def _require_public(provenance: Provenance) -> None:
    if provenance not in (Provenance.PUBLIC, Provenance.RELEASED):
        raise EngineError(
            "Expected public or released prompts for an endpoint, got private ones: whoever runs "
            "it would read them and no privacy accounting covers that; use kind: transformers or "
            "vllm."
        )


def _refuse(what: str) -> NoReturn:
    raise EngineError(
        f"Expected an engine that gives {what}, got an OpenAI-compatible endpoint, which does not; "
        "use kind: transformers or vllm."
    )
