"""Audit of how records are read under replace-one: what one replacement does to counts.

A few invented records are judged by the rules that set records aside. One is replaced: by other
content under its own id, or by content that brings an id which is in use. The second is no
neighbour, and reading it is refused: otherwise two records would be set aside for one replacement.
"""

from collections import Counter
from collections.abc import Callable

import polars as pl

from dpsynth_assets.attacks.audits.audit import EVERY_RELEASE, Audit, AuditKind, Bug, Finding
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.histogram import l2_sensitivity
from dpsynth_assets.privacy.units import NeighboringRelation
from dpsynth_assets.records.columns import IS_TEXT, READABLE
from dpsynth_assets.records.record_filters import REASON, judge, refuse_repeated_ids

RECORDS = 10
SPEC = PrivateDatasetSpec.model_validate(
    {
        "name": "audit",
        "source": {"path": "audit.csv"},
        "columns": {"text": "text", "id": "id", "labels": ["label"]},
        "public_facts": {"labels": {"label": ["x", "y"]}},
        "neighboring_relation": "replace-one",
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "methods": [{"method": "mean_uniform"}],
    }
)

Row = tuple[str, str, str]
"""Id, text, label."""

Refusal = Callable[[pl.DataFrame, PrivateDatasetSpec], None]


def _counts(rows: list[Row], refuse: Refusal) -> Counter[str]:
    """Counts usable records by label."""
    columns = dict(zip(("id", "text", "label"), zip(*rows, strict=True), strict=True))
    flags = pl.lit(True).alias(READABLE), pl.lit(True).alias(IS_TEXT)
    judged = judge(pl.DataFrame(columns).with_columns(*flags), SPEC)
    refuse(judged, SPEC)
    return Counter(judged.filter(pl.col(REASON).is_null())["label"].to_list())


def _largest_move(refuse: Refusal) -> Finding:
    rows: list[Row] = [(f"{i}", f"letter {i}", "x") for i in range(RECORDS)]
    before = _counts(rows, refuse)
    worst = 0.0
    for replacement in (("0", "other", "y"), ("0", "", "x"), ("5", "other", "x")):
        try:
            after = _counts([replacement, *rows[1:]], refuse)
        except PrivacyError:
            continue
        squares = ((before[label] - after[label]) ** 2 for label in ("x", "y"))
        worst = max(worst, sum(squares) ** 0.5)
    return Finding(claimed=l2_sensitivity(NeighboringRelation.REPLACE_ONE), observed=worst)


AUDITS = (
    Audit(
        name="replaced-records",
        mechanism="reading of records with declared ids under replace-one",
        events=(EVERY_RELEASE,),
        claim="What is replaced moves the counts of labels by at most the sensitivity that is "
        "charged.",
        measure="L2 distance of counts",
        kind=AuditKind.EXACT,
        observe=lambda: _largest_move(refuse_repeated_ids),
        planted={Bug.TAKEN_IDS: lambda: _largest_move(lambda _judged, _spec: None)},
    ),
)
