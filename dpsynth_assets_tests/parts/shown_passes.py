"""What stands in for draws in workers: it keeps the inputs of a pass. Imports no model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from dpsynth_assets.methods.private_prediction.split_batches import (
    Part,
    PrivateBatch,
    RunBatches,
    parts_of,
)


@dataclass(frozen=True)
class Shows:
    """Returns the inputs of a pass as its values."""

    batches: RunBatches

    def __call__(self, number: int, tables: Sequence[pl.DataFrame]) -> dict[str, Any]:
        size = self.batches.declared.config.batches_per_forward
        part = parts_of(self.batches.batches, size)[number]
        return shown(self.batches.filled_part(part, tables))


def shown(part: Part[PrivateBatch]) -> dict[str, Any]:
    """Contexts in their order, of which prompts are a function, and what names them."""
    batches = [
        [b.index, b.label, b.cluster, [list(c) for c in b.contexts], [k.hex() for k in b.keys]]
        for b in part.batches
    ]
    return {"batches": batches, "start": part.start}
