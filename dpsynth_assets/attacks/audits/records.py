"""Audits of what is computed of each record: one record moves what is its own, and nothing else.

Rows: other records must not move it, not by one bit. These audits run on this machine's kernels.
The planted bug rounds a row by its place on every machine: even and odd places add up the same
products in opposite orders. (A plain matrix product, which is the mistake it stands for, shows on
some processors only.)

Replacements: a few invented records are judged by the rules that set records aside. One is
replaced: by other content under its own id, or by content that brings an id which is in use. The
second is no neighbour, and reading it is refused: otherwise two records would be set aside for one
replacement.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np
import polars as pl

from dpsynth_assets.attacks.audits.audit import Audit, Bug, Finding
from dpsynth_assets.attacks.row_invariance import Moved, RowFunction, moved, near_ties
from dpsynth_assets.clustering import nearest_center
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.models.topic_model.model import nearest_topics
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.histogram import l2_sensitivity
from dpsynth_assets.privacy.lattice import Lattice
from dpsynth_assets.privacy.nearest import PublicRows, nearest_rows_of_labels
from dpsynth_assets.privacy.units import NeighboringRelation
from dpsynth_assets.records.columns import IS_TEXT, READABLE
from dpsynth_assets.records.record_filters import REASON, judge, refuse_repeated_ids

DIMENSION = 96
TEXTS = (
    "refund",
    "The train was late again, and nobody said why.",
    "",
    "Please split the fee into three payments, since my parents pay from abroad.",
    "very " * 40 + "long",
    "The train was late again, and nobody said why.",
    "Soup, cold; bread, stale.",
)


def _finding(found: Moved) -> Finding:
    return Finding(claimed=0.0, observed=float(found.rows), note="records moved by other records")


def _everything_nearest() -> Finding:
    records, public = near_ties(DIMENSION)
    labels = np.arange(len(records)) % 2
    halves = {0: slice(None), 1: slice(0, len(public) // 2)}
    euclidean = PublicRows(public * np.float32(0.7), distance=True)
    groups = {label: euclidean.group(np.arange(len(public))[s]) for label, s in halves.items()}

    def votes(order: np.ndarray) -> np.ndarray:
        return nearest_rows_of_labels(records[order], labels[order], euclidean, groups)

    def topics(order: np.ndarray) -> np.ndarray:
        return np.stack(nearest_topics(records[order], public), axis=1)

    functions: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
        lambda order: nearest_center(records[order], public),
        lambda order: Lattice.for_bound(0.9).clip(records[order], 0.9),
        topics,
        votes,
    )
    found = [moved(_of_numbers(function), len(records)) for function in functions]
    return _finding(Moved(rows=sum(each.rows for each in found), by=0.0))


def _embeddings() -> Finding:
    embedder = TextEmbedder()
    return _finding(
        moved(lambda order: embedder.embed([TEXTS[i] for i in order]), len(TEXTS), alone=3)
    )


def _placed_nearest() -> Finding:
    """Planted: the nearest row by float32 sums whose order follows the row's place."""
    records, public = near_ties(DIMENSION)

    def nearest(order: np.ndarray) -> np.ndarray:
        products = records[order][:, None, :] * public
        scores = np.cumsum(products, axis=2)[:, :, -1]
        scores[1::2] = np.cumsum(products[1::2, :, ::-1], axis=2)[:, :, -1]
        return scores.argmax(axis=1)

    return _finding(moved(_of_numbers(nearest), len(records)))


def _padded_embeddings() -> Finding:
    """Planted: an embedding follows the longest text of its call, as padding would make it."""
    embedder = TextEmbedder()

    def embed(order: np.ndarray) -> np.ndarray:
        texts = [TEXTS[i] for i in order]
        return embedder.embed([f"{text} {len(max(texts, key=len))}" for text in texts])

    return _finding(moved(_of_numbers(embed), len(TEXTS), alone=3))


def _of_numbers(function: Callable[[np.ndarray], np.ndarray]) -> RowFunction:
    return lambda order: function(np.fromiter(order, dtype=np.int64))


LETTERS = 10
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


def _counts_moved(refuse: Refusal) -> Finding:
    rows: list[Row] = [(f"{i}", f"letter {i}", "x") for i in range(LETTERS)]
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
        name="nearest-rows",
        mechanism="nearest centres, topics and candidates; clipping to the lattice",
        claim="Other records move no record's cluster, topic, cosine, vote or clipped vector.",
        measure="records moved",
        observe=_everything_nearest,
        planted={Bug.ROUNDED_BY_PLACE: _placed_nearest},
    ),
    Audit(
        name="embedded-rows",
        mechanism="the default text embedder on this machine",
        claim="Other texts move no bit of a private text's embedding.",
        measure="records moved",
        observe=_embeddings,
        planted={Bug.MIXED_WITH_OTHER_TEXTS: _padded_embeddings},
    ),
    Audit(
        name="replaced-records",
        mechanism="reading of records with declared ids under replace-one",
        claim="What is replaced moves the counts of labels by at most the sensitivity that is "
        "charged.",
        measure="L2 distance of counts",
        observe=lambda: _counts_moved(refuse_repeated_ids),
        planted={Bug.TAKEN_IDS: lambda: _counts_moved(lambda _judged, _spec: None)},
    ),
)
