"""Counts what an endpoint was asked, what it wrote and what that cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from dpsynth_assets.models.engines.protocol import EngineError


@dataclass
class UsageCounter:
    """Tokens and cost of an endpoint since it was opened; safe to share between threads.

    Attributes:
        prompt_price: Price of a million prompt tokens.
        new_price: Price of a million new tokens.
        cost_limit: No request starts once this much was spent; None for no limit.
        requests: Answered requests.
        retries: Requests that were sent again.
        prompt_tokens: As the endpoint counts them.
        new_tokens: As the endpoint counts them.
    """

    prompt_price: float = 0.0
    new_price: float = 0.0
    cost_limit: float | None = None
    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def cost(self) -> float:
        """Spent so far, in the currency of the prices."""
        return (
            self.prompt_tokens * self.prompt_price + self.new_tokens * self.new_price
        ) / 1_000_000

    @property
    def facts(self) -> dict[str, float]:
        """The counts, as numbers for metadata."""
        with self._lock:
            return {
                "requests": self.requests,
                "retries": self.retries,
                "prompt_tokens": self.prompt_tokens,
                "new_tokens": self.new_tokens,
                "cost": self.cost,
            }

    def answered(self, prompt_tokens: int, new_tokens: int) -> None:
        """Counts one answered request."""
        with self._lock:
            self.requests += 1
            self.prompt_tokens += prompt_tokens
            self.new_tokens += new_tokens

    def retried(self) -> None:
        """Counts one request that will be sent again."""
        with self._lock:
            self.retries += 1

    def require_room(self) -> None:
        """Refuses to start another request once the limit is spent.

        Raises:
            EngineError: As said. Requests in flight may exceed the limit by their own cost.
        """
        if self.cost_limit is not None and self.cost >= self.cost_limit:
            raise EngineError(
                f"Expected less than cost_limit {self.cost_limit:g} spent, got {self.cost:.4g} "
                f"after {self.requests} requests; raise cost_limit to go on."
            )


def counted(engine: Any) -> dict[str, float]:
    """Usage of an engine since it was opened; nothing where it runs the model here."""
    usage = getattr(engine, "usage", None)
    return usage.facts if isinstance(usage, UsageCounter) else {}


def counted_since(engine: Any, before: Mapping[str, float]) -> dict[str, float]:
    """Usage of an engine since `before` was taken by `counted`."""
    return {name: round(now - before.get(name, 0), 6) for name, now in counted(engine).items()}
