"""Perplexity of public documents under their conditions."""

import math
from collections.abc import Sequence

import numpy as np

from dpsynth_assets.models.conditional_generator.generator import (
    ConditionalGenerator,
    token_losses,
)
from dpsynth_assets.models.conditional_generator.pairs import ConditionSource


def public_perplexity(
    generator: ConditionalGenerator,
    pairs: Sequence[tuple[str, str]],
    batch_rows: int = 32,
) -> float:
    """Perplexity of public documents under their conditions: exp of the mean loss of a token.

    Args:
        generator: Any generator.
        pairs: (condition, document), at least one; public, since the value carries no noise.
        batch_rows: Pairs of one forward pass.
    """
    import torch

    ordered = sorted(pairs, key=lambda pair: len(pair[1]))
    total, tokens = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(ordered), batch_rows):
            conditions, texts = zip(*ordered[start : start + batch_rows], strict=True)
            batch = generator.encode_pairs(conditions, texts).to(generator.device)
            total += float(token_losses(generator.model, batch).double().sum())
            tokens += int((batch.labels >= 0).sum())
    return math.exp(total / tokens)


def held_out_perplexities(
    generator: ConditionalGenerator,
    texts: Sequence[str],
    source: ConditionSource,
    held_out: np.ndarray,
) -> dict[str, float]:
    """Perplexities of held-out documents under three kinds of condition; see the facts above."""
    rows = [int(row) for row in held_out]
    others = rows[1:] + rows[:1]
    kinds = {
        "perplexity": [source.like_fine_tuning(row) for row in rows],
        "perplexity_own_keywords": [source.all_own_keywords(row) for row in rows],
        "perplexity_other_condition": [source.like_fine_tuning(row) for row in others],
    }
    written = [texts[row] for row in rows]
    return {
        name: round(public_perplexity(generator, list(zip(conditions, written, strict=True))), 3)
        for name, conditions in kinds.items()
    }
