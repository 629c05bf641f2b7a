"""Audit of the slack of logits: how far the other rows of a pass move a row, and what is declared.

Without a cohort it runs on a small model with random weights, on this machine's kernels. `dpsynth
audit run COHORT` measures the cohort's own model, in what decodes it, in passes of its methods.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dpsynth_assets.attacks.audits.audit import Audit, Bug, Finding
from dpsynth_assets.attacks.logit_moves import NAME

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.attacks.logit_moves import LogitMoves, OpenRows

FLOAT32_SLACK = 3e-5
"""What private prediction charges by default."""
PLANTED = 1e-3
"""Move of a planted logit for each row of its pass."""

Measure = Callable[..., "LogitMoves"]
"""`measured_moves` of one decoder, which takes `disturbed` as well."""


def slack_audit(measure: Measure, declared: float, *, name: str = NAME) -> Audit:
    """Makes the audit of one decoder.

    Args:
        measure: Measures it.
        declared: The slack that plans charge (natural-log units).
        name: Of the result.
    """

    def finding(found: "LogitMoves") -> Finding:
        return Finding(claimed=declared, observed=found.by, note=found.over)

    return Audit(
        name=name,
        mechanism="logits of rows that share a forward pass",
        events=("bounded_range",),
        claim="Other rows of a pass move no logit of a row by more than the declared logit_slack.",
        measure="largest move of a logit",
        observe=lambda: finding(measure()),
        planted={Bug.FOLLOWS_COMPANY: lambda: finding(measure(disturbed=_following))},
    )


@dataclass(frozen=True)
class _Following:
    """Planted: contexts whose first logit grows with the rows of the pass."""

    contexts: Any

    def next_logits(self, tokens: "torch.Tensor", generated: "torch.Tensor") -> "torch.Tensor":
        logits = self.contexts.next_logits(tokens, generated).clone()
        logits[:, 0] += PLANTED * len(logits)
        return logits


def _following(opened: "OpenRows") -> "OpenRows":
    return lambda prompts: _Following(opened(prompts))  # type: ignore[return-value]


def _small_model(**arguments: Any) -> "LogitMoves":
    from dpsynth_assets.attacks.logit_moves import PassShape, measured_moves
    from dpsynth_assets.models.transformers_decoder.decoder import TransformersDecoder

    language_model = SimpleNamespace(encode=lambda text: list(text.encode()))
    small = PassShape(rows=24, columns=48)
    return measured_moves(TransformersDecoder(random_llama()), language_model, small, **arguments)


@cache
def random_llama() -> Any:
    """A model of two layers with random weights."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=176, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        initializer_range=0.1,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).eval()


AUDITS = (slack_audit(_small_model, FLOAT32_SLACK),)
