"""What stands in for draws in workers: it keeps the inputs of a pass. Imports no model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from dpsynth_assets.methods.private_prediction.split_batches import PrivateBatch, RunBatches


@dataclass(frozen=True)
class Shows:
    """Returns the inputs of a pass as its values."""

    batches: RunBatches

    def __call__(self, number: int, tables: Sequence[pl.DataFrame]) -> dict[str, Any]:
        return {"batches": shown(self.batches.filled_pass(number, tables))}


def shown(batches: Sequence[PrivateBatch]) -> list[Any]:
    """Contexts in their order, of which prompts are a function, and what names them."""
    return [
        [b.index, b.label, b.cluster, [list(c) for c in b.contexts], [k.hex() for k in b.keys]]
        for b in batches
    ]
