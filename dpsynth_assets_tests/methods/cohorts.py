"""Made-up cohorts of two labels: what they declare, and tables of their records."""

import polars as pl

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.privacy.guarantees import NeighboringRelation, PrivacyUnit


def made_terms(**changes):
    """Declared terms of a cohort of the labels x and y."""
    settings = {
        "cohort": "visits",
        "relation": NeighboringRelation.ADD_REMOVE,
        "unit": PrivacyUnit(),
        "epsilon": 8.0,
        "delta": 1e-5,
        "accountant": "zcdp",
        "labels": ("x", "y"),
        "label_texts": ("ex", "why"),
    }
    return CohortTerms(**(settings | changes))


class MemoryPasses:
    """Passes in memory, as JSON would keep them."""

    def __init__(self):
        self.kept = {}

    def load(self, number):
        return self.kept.get(number)

    def save(self, number, values):
        self.kept[number] = values


def records_of(texts, labels, first=0):
    """Records r0, r1, ... of these texts, to which the labels are dealt out in turn."""
    names = [f"r{first + row}" for row in range(len(texts))]
    dealt = [labels[row % len(labels)] for row in range(len(texts))]
    columns = {"record_id": names, "unit_id": names, "text": texts, "label": dealt}
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))
