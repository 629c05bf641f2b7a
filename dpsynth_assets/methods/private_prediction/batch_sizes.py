"""Sizes of batches that advice weighs: each buys so many rows and no more."""

from collections.abc import Mapping, Sequence
from typing import Any

from dpsynth_assets.methods.candidates import BATCHES, NUMBER, Candidate, DeclaredFacts

SIZES = (64, 128, 256)
"""Of the papers, in records."""


def batch_candidates(
    method: str,
    facts: DeclaredFacts,
    *,
    asks: str = NUMBER,
    declared: Mapping[str, Any] | None = None,
    sizes: Sequence[int] = SIZES,
) -> tuple[Candidate, ...]:
    """A method's candidates, the smallest batch first: it reads the fewest contexts for a token.

    Args:
        method: Its name, which is its line on the leaderboard too.
        facts: What is public about the dataset.
        asks: What a steward has to declare.
        declared: Further fields of the dataset file that it needs.
        sizes: Records of a batch.
    """
    lengths = (
        {}
        if facts.words is None
        else {"max_document_tokens": facts.text_tokens, "max_example_tokens": facts.text_tokens}
    )
    return tuple(
        Candidate(
            line=method,
            settings={"expected_batch_size": size, "max_batches": BATCHES, **lengths},
            declared=declared or {},
            asks=asks,
            batch=size,
        )
        for size in sizes
    )
