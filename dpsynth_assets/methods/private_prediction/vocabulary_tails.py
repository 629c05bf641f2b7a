"""Tails of private prediction: the share of draws on tokens that no context proposes.

Letters: A tokens among which one is drawn, c clip bound, C bound of differences, τ temperature, f
share of the expected contexts that a batch holds, m mean score of the leading token.

A private draw leaves every token a chance, for that is what makes it private. Tokens that no
context holds likely are alike in score, and there are as many of them as the vocabulary is large:
one of them is rarely drawn, all of them together may be drawn more often than text.
"""

import json
import math
from pathlib import Path

from dpsynth_assets.datasets.public_spec import LanguageModelSpec
from dpsynth_assets.methods.private_prediction.config import (
    PRETRAINED_TOP_K,
    InvisibleInkConfig,
    PrivatePredictionConfig,
)
from dpsynth_assets.methods.private_prediction.declared_batches import DeclaredBatches
from dpsynth_assets.methods.stages import TYPICAL_AGREEMENT, Tail

PUBLIC_DEPTH = 12.0
"""How far below the likeliest token those lie that a prompt does not propose, in natural-log units.

Measured as in `methods.stages`: three quarters of the vocabulary lie deeper in every context.
"""


def clipped_tail(declared: DeclaredBatches, vocabulary: int | None) -> Tail:
    """Computes the tail of draws from means or medians of clipped logits.

    A token that no context proposes lies 2c or more below the maximum of each, so that its clipped
    logit is −c in all of them, and its mean or median −f c. The leading token has m = f c where all
    contexts agree, and typically 0.9 f c: the gap is 1.9 f c / τ. With a public top-k the rows are
    clipped on those k tokens alone: A = k. Behind a public-token test (mean_svt) it is the share of
    private draws; public ones come from the unclipped public prompt.

    Args:
        declared: Batches of a method that clips logits.
        vocabulary: V; None if unknown.

    **Source** Amin et al. 2024, Eq. (1) and Algorithm 1, line 15; Amin et al. 2025, Eq. (3).
    """
    config, filled = declared.config, filled_share(declared)
    tokens = _fewer(vocabulary, config.support)
    settings = f"clip_bound {config.clip_bound:g}, temperature {config.temperature:g}"
    if filled < 1:
        settings += f", batches {filled:.0%} full"
    gap = (1 + TYPICAL_AGREEMENT) * filled * config.clip_bound / config.temperature
    return _tail(tokens, gap, settings=settings, remedy=_clip_remedy(config, filled))


def difference_tail(config: InvisibleInkConfig, vocabulary: int | None) -> Tail:
    """Computes the tail of draws from public logits moved by clipped differences.

    Scores have no floor: a token that no context proposes keeps its public log-probability, less C
    at most. It is taken to lie PUBLIC_DEPTH below the leading one, as most of a vocabulary does.
    The gap is PUBLIC_DEPTH / τ where contexts say what the public prompt says (the typical case),
    and wider where all agree against it. With `top_k` only as many tokens are left.

    **Source** Vinod et al. 2025, Algorithm 1; the depth is measured.
    """
    return _tail(
        _fewer(vocabulary, config.top_k),
        PUBLIC_DEPTH / config.temperature,
        settings=f"temperature {config.temperature:g}",
        remedy=f"Set top_k: {PRETRAINED_TOP_K}, or lower temperature.",
    )


def filled_share(declared: DeclaredBatches) -> float:
    """Computes f, the expected share of s contexts that a batch holds, at most 1.

    Uniform batches share the declared records equally, and a label has one batch however few they
    are. With k >= 2 records a context, hashed contexts are dropped unless each of k slots received
    one record: with λ records a slot, Poisson(λ), each slot does with probability λ e^-λ; λ = 1
    where batches follow a released histogram. The denominator of the mean stays s in either case.
    """
    k, records = declared.config.examples_per_context, declared.terms.public_records
    if declared.in_slots:
        return 1.0
    load = 1.0
    if declared.per_label is not None and records is not None:
        places = len(declared.terms.labels) * declared.per_label * declared.records_per_batch
        load = records / places
    return float((load * math.exp(-load)) ** k) if k > 1 else min(1.0, load)


def _fewer(vocabulary: int | None, top_k: int | None) -> int | None:
    known = [count for count in (vocabulary, top_k) if count is not None]
    return min(known, default=None)


def _clip_remedy(config: PrivatePredictionConfig, filled: float) -> str:
    """Names the settings that would do: fuller batches, fewer tokens, or a wider gap."""
    if filled < 0.5:
        return "Set a smaller expected_batch_size, or one example a context, for full batches."
    fewer = f"public_top_k: {PRETRAINED_TOP_K} (it costs nothing), or "
    fewer *= "public_top_k" in type(config).model_fields
    return f"Set {fewer}a larger clip_bound or a lower temperature."


def _tail(tokens: int | None, gap: float, *, settings: str, remedy: str) -> Tail:
    """Makes the tail of tokens that lie this far below the leading one, in units of τ."""
    typical = None if tokens is None else share_at_floor(tokens, gap)
    return Tail(tokens=tokens, typical=typical, settings=settings, remedy=remedy)


def share_at_floor(tokens: int, gap: float) -> float:
    """Computes the share of softmax draws that fall on tokens at the floor of the scores.

    One token leads, the others lie `gap` below it: w = (A − 1)·e^(−gap), share w / (1 + w). Where
    several tokens lead, or some lie between, the floor's share is smaller.

    For the mean of logits that are clipped to [−c, c], a token outside of every context's reach
    has the score −c/τ and the leading one m/τ, m <= c: gap = (c + m)/τ. The median has the same
    bounds.

    Args:
        tokens: A >= 1, tokens among which one is drawn.
        gap: >= 0, distance of the leading score from the floor, in units of the temperature.

    Returns:
        A share in [0, 1).

    **Source** The softmax of Amin et al. 2024, Algorithm 1, line 15. They restrict draws to the
    1,024 publicly likeliest tokens at τ = 2.25 for this reason.
    """
    weight = (tokens - 1) * math.exp(-gap)
    return weight / (1.0 + weight)


SMOLLM2_VOCABULARY = 49_152
"""Tokens of SmolLM2-135M-Instruct, whose file's hash is pinned."""


def declared_vocabulary(declared: LanguageModelSpec | None) -> int | None:
    """Reads V, tokens of the vocabulary, from public declarations alone.

    Args:
        declared: The language model of a public base; None where none is declared.

    Returns:
        V: of smollm2 the number that its file has, of a folder of weights what its `config.json`
        says. None where nothing on this machine says it, as of an address on a hub.
    """
    if declared is None:
        return None
    if declared.kind == "smollm2":
        return SMOLLM2_VOCABULARY
    folder = Path(declared.model or "").expanduser()
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        own = config.get("text_config") or config
        return int(own.get("vocab_size") or config["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
