"""An OpenAI-compatible endpoint as an engine, for text that is public or released already.

The endpoint's operator sees every prompt, so a prompt made of private text never goes there: no
privacy accounting covers what another party reads. Callers say what prompts are made of, and text
of unstated provenance is private.
"""

import json
import os
import re
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.models.engines.protocol import (
    Engine,
    EngineError,
    Generation,
    Prompt,
    Sampling,
    ShareCallback,
)

if TYPE_CHECKING:
    import httpx

    from dpsynth_assets.datasets.public_spec import EngineSpec


@dataclass
class UsageCounter:
    """Tokens and cost of an endpoint since it was opened; safe to share between threads.

    Attributes:
        prompt_price: Price of a million prompt tokens.
        new_price: Price of a million new tokens.
        cost_limit: No request starts once this much was spent; None for no limit.
        counts: Answered requests, those that were sent again (retries), and tokens as the endpoint
            counts them.
    """

    prompt_price: float = 0.0
    new_price: float = 0.0
    cost_limit: float | None = None
    counts: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def cost(self) -> float:
        """Spent so far, in the currency of the prices."""
        read, written = self.counts["prompt_tokens"], self.counts["new_tokens"]
        return (read * self.prompt_price + written * self.new_price) / 1_000_000

    @property
    def facts(self) -> dict[str, float]:
        """The counts, as numbers for metadata."""
        names = ("requests", "retries", "prompt_tokens", "new_tokens")
        with self._lock:
            return {name: self.counts[name] for name in names} | {"cost": self.cost}

    def add(self, **counts: int) -> None:
        """Adds to counts, by their names."""
        with self._lock:
            self.counts.update(counts)

    def require_room(self) -> None:
        """Refuses to start another request once the limit is spent.

        Raises:
            EngineError: As said. Requests in flight may exceed the limit by their own cost.
        """
        if self.cost_limit is not None and self.cost >= self.cost_limit:
            raise EngineError(
                f"Expected less than cost_limit {self.cost_limit:g} spent, got {self.cost:.4g} "
                f"after {self.counts['requests']} requests; raise cost_limit to continue."
            )


_ROUTES = {"completions": "completions", "chat": "chat/completions"}
_UNKNOWN_SETTING = frozenset({400, 415, 422, 501})
"""Status codes with which endpoints refuse a setting that they do not know."""
_WORTH_RETRYING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 60.0
_PUBLIC_CODE = re.compile(r"[a-z][a-z0-9_]{0,47}")


class OpenAiEndpoint(Engine):
    """Writes from public or released prompts; tells no hidden states, steers nothing.

    Args:
        spec: Its address, and how patient to be.

    Attributes:
        usage: What has been asked, written and spent.

    Raises:
        EngineError: The environment variable is not set.
    """

    def __init__(self, spec: "EngineSpec") -> None:
        import httpx

        self.usage = UsageCounter(
            spec.price_per_million_prompt_tokens, spec.price_per_million_new_tokens, spec.cost_limit
        )
        self.name, self._api, self._concurrency = spec.model or "", spec.api, spec.concurrency
        self._http = httpx.Client(
            base_url=(spec.base_url or "").rstrip("/") + "/",
            headers=_authorisation(spec.api_key_variable),
            timeout=spec.timeout_seconds,
            follow_redirects=False,  # the key goes nowhere but to base_url
        )
        self._attempts, self._sleep = spec.attempts, time.sleep
        self._takes_schemas = True

    @property
    def spent(self) -> dict[str, float]:  # type: ignore[override]
        """Requests, tokens and cost."""
        return self.usage.facts

    def _generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, progress: ShareCallback | None
    ) -> list[Generation]:
        """Seeds are passed on; whether they are kept is the endpoint's word.

        Raises:
            EngineError: The prompts are token ids, the endpoint refuses or keeps failing, or the
                cost limit is spent.
        """
        if not all(isinstance(prompt, str) for prompt in prompts):
            raise EngineError(
                "Expected prompts as text for an endpoint, got token ids; the endpoint has a "
                "tokenizer of its own."
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

    def close(self) -> None:
        """Closes connections."""
        self._http.close()

    def _write(self, prompt: Any, sampling: Sampling, row: int, limit: int) -> Generation:
        self.usage.require_room()
        answer = self._ask(self._body(prompt, sampling, row, limit))
        try:
            content = answer.json()
            usage = content.get("usage") or {}
            self.usage.add(
                requests=1,
                prompt_tokens=int(usage.get("prompt_tokens") or 0),
                new_tokens=int(usage.get("completion_tokens") or 0),
            )
            choice = content["choices"][0]
            text = choice["message"]["content"] if self._api == "chat" else choice["text"]
            return Generation(str(text or ""), (), choice.get("finish_reason") == "stop")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            raise EngineError(
                f"Expected choices of the {self._api} route from the endpoint, got something else; "
                "check base_url, which usually ends in /v1, or try the other value of api."
            ) from None

    def _ask(self, body: dict[str, Any]) -> "httpx.Response":
        """The answer; a schema is left out where the endpoint knows no such setting.

        Raises:
            EngineError: The endpoint refuses.
        """
        answer = self._post(body)
        if answer.status_code in _UNKNOWN_SETTING and body.pop("response_format", None):
            answer = self._post(body)
            self._takes_schemas = not answer.is_success
        if not answer.is_success:
            raise EngineError(
                f"Expected the endpoint to accept the request, got {_failure(answer)}; check "
                "base_url, model, api and the key in the environment variable that "
                "api_key_variable names."
            )
        return answer

    def _post(self, body: dict[str, Any]) -> "httpx.Response":
        """Asks until an answer comes that another try would not change: it may be a refusal.

        Waits between tries grow from half a second by doubling, each drawn between half of it and
        the whole so that many clients do not return at once; `Retry-After` overrides them.

        Raises:
            EngineError: Still failing after the last try. Neither the request nor the
                answer's text stands in the message: an endpoint may echo the prompt.
        """
        import httpx

        failure = ""
        for attempt in range(self._attempts):
            wait = _back_off(attempt)
            try:
                answer = self._http.post(_ROUTES[self._api], json=body)
            except httpx.TransportError as error:
                failure = type(error).__name__
            else:
                if answer.status_code not in _WORTH_RETRYING:
                    return answer
                failure = _failure(answer)
                wait = _retry_after(answer.headers.get("retry-after"), wait)
            if attempt + 1 < self._attempts:
                self.usage.add(retries=1)
                self._sleep(wait)
        raise EngineError(
            f"Expected an answer of the endpoint within {self._attempts} tries, last got "
            f"{failure}; check that the endpoint runs, or raise attempts or timeout_seconds."
        )

    def _body(self, prompt: str, sampling: Sampling, row: int, limit: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.name,
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


def _back_off(attempt: int) -> float:
    longest = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2**attempt)
    return longest * np.random.default_rng().uniform(0.5, 1)


def _retry_after(header: str | None, otherwise: float) -> float:
    """Seconds to wait: the number in a header, never more than a minute."""
    try:
        return min(_LONGEST_WAIT_SECONDS, max(0.0, float(header or "")))
    except ValueError:  # A date, which clocks may read differently, is none.
        return otherwise


def _failure(answer: "httpx.Response") -> str:
    """The status, with the error's code or type if it is a plain word; never its message."""
    try:
        error = answer.json()["error"]
        code = error.get("code") or error.get("type")
    except (ValueError, KeyError, TypeError, AttributeError):
        code = None
    is_code = isinstance(code, str) and _PUBLIC_CODE.fullmatch(code)
    return f"status {answer.status_code}{f' ({code})' if is_code else ''}"


def opened_engine(_language_model: None, spec: "EngineSpec") -> OpenAiEndpoint:
    """Opens the declared endpoint, whose model is its own."""
    return OpenAiEndpoint(spec)
