"""Audits of computations on records: one record may change only its own results.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from dpsynth_assets.attacks.audits.audit import Audit, Bug, Finding
from dpsynth_assets.clustering import nearest_center
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.models.topic_model.model import nearest_topics
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.histogram import l2_sensitivity
from dpsynth_assets.privacy.lattice import Lattice
from dpsynth_assets.privacy.nearest import PublicRows, nearest_rows_of_labels
from dpsynth_assets.records.columns import IS_TEXT, READABLE
from dpsynth_assets.records.record_filters import REASON, judge, refuse_repeated_ids

# Row invariance, on which sensitivities rest: what is computed of a record depends on it alone.
#
# A function of rows obeys it if f(rows)[i] equals f(others)[j], bit for bit, whenever rows[i] and
# others[j] are the same record. Then a record that comes or goes moves its own bin, vote or vector,
# and no other. Near ties are built on purpose: on ordinary data a last bit decides nothing.

RowFunction = Callable[[Sequence[int]], np.ndarray]
"""Chosen record numbers -> one row of results for each, in their order."""

TIES = 24
RECORDS = 3 * TIES


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Measures how far other records move what is computed of each.

    Attributes:
        rows: Most records whose result is not the same, over all arrangements.
        by: Largest absolute difference of a number; infinity for a number that comes or goes.
    """

    rows: int
    by: float

    def __or__(self, other: "Moved") -> "Moved":
        """The larger of each."""
        return Moved(rows=max(self.rows, other.rows), by=max(self.by, other.by))


def moved(function: RowFunction, records: int, *, alone: int = 6) -> Moved:
    """Computes all records in one order, then in others, and compares each record's result.

    Args:
        function: Of record numbers in [0, records), which may repeat.
        records: How many there are; at least 2.
        alone: Records that are also computed without company.
    """
    base = np.asarray(function(range(records)))
    found = Moved(rows=0, by=0.0)
    for order in _arrangements(records, alone):
        found |= _difference(np.asarray(function(order)), base[order])
    return found


def _arrangements(records: int, alone: int) -> Iterator[list[int]]:
    """Records removed, added in front, permuted, repeated, and without company."""
    everyone = list(range(records))
    for removed in (1, 2, 5):
        yield everyone[removed:]
    for added in (1, 3, 7):
        yield everyone[-added:] + everyone
    yield everyone[::-1]
    yield np.random.default_rng(0).permutation(records).tolist()
    yield sorted(everyone * 2)
    for one in everyone[:: max(1, records // alone)]:
        yield [one]


def _difference(found: np.ndarray, expected: np.ndarray) -> Moved:
    found, expected = (part.reshape(len(part), -1) for part in (found, expected))
    same = (found == expected) | ((found != found) & (expected != expected))
    if same.all():
        return Moved(rows=0, by=0.0)
    with np.errstate(all="ignore"):
        apart = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    by = float(np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart)).max())
    return Moved(rows=int((~same).any(axis=1).sum()), by=by)


def near_ties(dimension: int, *, ties: int = TIES, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Builds records that lie within rounding of a tie between two public rows.

    Each record x has two rows of its own, a and its mirror image in a plane that holds x: in exact
    arithmetic x·a = x·b, and rounding to float32 leaves them some 10⁻⁸ apart.

    Args:
        dimension: d >= 8.
        ties: How many such records.
        seed: Of public randomness.

    Returns:
        float32 (3 ties, d) records, each followed by itself and by one near no tie; and float32
        (2 ties, d) public rows. All of unit length.
    """
    draw = np.random.default_rng(seed)
    x = _unit(draw.standard_normal((ties, dimension))).astype(np.float32)
    first = _unit(x + 0.8 * _unit(draw.standard_normal((ties, dimension))))
    normal = draw.standard_normal((ties, dimension))
    normal = _unit(normal - _along(normal, x) * x)
    second = first - 2.0 * _along(first, normal) * normal
    public = np.stack([first, second], axis=1).reshape(2 * ties, dimension).astype(np.float32)
    clear = _unit(public[::2] + 0.1 * _unit(draw.standard_normal((ties, dimension))))
    records = np.stack([x, x, clear], axis=1).reshape(3 * ties, dimension)
    return records.astype(np.float32), public


def _along(vectors: np.ndarray, directions: np.ndarray) -> np.ndarray:
    return np.asarray((vectors * directions).sum(axis=1, keepdims=True))


def _unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


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
    Audit.named("nearest-rows", _everything_nearest, {Bug.ROUNDED_BY_PLACE: _placed_nearest}),
    Audit.named("embedded-rows", _embeddings, {Bug.MIXED_WITH_OTHER_TEXTS: _padded_embeddings}),
    Audit.named(
        "replaced-records",
        lambda: _counts_moved(refuse_repeated_ids),
        {Bug.TAKEN_IDS: lambda: _counts_moved(lambda _judged, _spec: None)},
    ),
)
