"""Audits of what is computed of each record: other records must not move it, not by one bit.

They run on this machine's kernels. The planted bug rounds a row by its place on every machine: even
and odd places add up the same products in opposite orders. (A plain matrix product, which is the
mistake it stands for, shows on some processors only.)
"""

from collections.abc import Callable

import numpy as np

from dpsynth_assets.attacks.audits.audit import EVERY_RELEASE, Audit, AuditKind, Bug, Finding
from dpsynth_assets.attacks.row_invariance import Moved, RowFunction, moved, near_ties
from dpsynth_assets.clustering import nearest_center
from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.models.topic_model.nearest import nearest_topics
from dpsynth_assets.privacy.lattice import Lattice
from dpsynth_assets.privacy.nearest import PublicRows, nearest_rows_of_labels

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


AUDITS = (
    Audit(
        name="nearest-rows",
        mechanism="nearest centres, topics and candidates; clipping to the lattice",
        events=(EVERY_RELEASE,),
        claim="Other records move no record's cluster, topic, cosine, vote or clipped vector.",
        measure="records moved",
        kind=AuditKind.EXACT,
        observe=_everything_nearest,
        planted={Bug.ROUNDED_BY_PLACE: _placed_nearest},
    ),
    Audit(
        name="embedded-rows",
        mechanism="the default text embedder on this machine",
        events=(EVERY_RELEASE,),
        claim="Other texts move no bit of a private text's embedding.",
        measure="records moved",
        kind=AuditKind.EXACT,
        observe=_embeddings,
        planted={Bug.MIXED_WITH_OTHER_TEXTS: _padded_embeddings},
    ),
)
