"""Audits of token sampling by the softmax of mean clipped logits, or of clipped differences.

The range of the log-likelihood ratio is computed exactly from the scores, over batches and
records made to be hard; the draw itself is tested from samples. Wrong aggregations are written
out here, since the real mechanisms cannot be configured into them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.attacks.audits.audit import (
    ADD_REMOVE,
    REPLACE_ONE,
    Audit,
    Bug,
    Finding,
    audit_event_counts,
    event_curve,
)
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.clipping import clip_logits
from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.softmax_draws import tokens_from_words
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism, NextLogits, PrivateTokenMeter

if TYPE_CHECKING:
    import torch

VOCABULARY = 32
EXTREME = 50.0
BATCH_SIZES = (0, 1, 7, 64, 130)
DRAWS = 20_000
RARE_SUMS, RARE_DIVISOR = (99.0, -99.0, 0.0, 95.0), Fraction(4)
"""Sums of 11 rows with c = 9, and s τ = 8 · 0.5: the rarest token has probability 2e-22."""

UNIFORM_BITS = 128

Draw = Callable[["torch.Tensor", Fraction, Callable[[int], np.ndarray]], np.ndarray]
"""Undivided scores (1, V), their divisor and a source of uint64 words to (1,) tokens."""

Scores = Callable[[np.ndarray], np.ndarray]
"""(n, V) logits of one batch to (V,) scores whose softmax is drawn from."""


def extreme_row(positions: Any, vocabulary: int = VOCABULARY) -> np.ndarray:
    """(V,) logits that clip to +c at `positions` and to −c elsewhere."""
    row = np.full(vocabulary, -EXTREME)
    row[positions] = EXTREME
    return row


def hard_neighbours(relation: NeighboringRelation) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches (n, V) and (n', V) that differ in one record of the relation.

    Public inputs, hence a seed: ordinary and adversarial batches of several sizes, with a record
    that pushes one token up, one down, or a random half.
    """
    generator = np.random.default_rng(7)
    for size in BATCH_SIZES:
        topic = generator.normal(0, 5, VOCABULARY)
        ordinary = topic + generator.normal(0, 3, (size, VOCABULARY))
        for rows in (ordinary, np.tile(extreme_row([1]), (size, 1))):
            half = generator.random(VOCABULARY) < 0.5
            pushed = (np.array([3]), np.arange(1, VOCABULARY), half)
            for positions in pushed:
                added = np.vstack([rows, extreme_row(positions)])
                if relation is REPLACE_ONE:
                    yield added, np.vstack([rows, extreme_row([8])])
                else:
                    yield added, rows


def largest_range(scores: Scores, relation: NeighboringRelation) -> float:
    """Computes the largest max − min of log P(x) − log P'(x) over `hard_neighbours`."""
    ranges = [np.ptp(scores(rows) - scores(other)) for rows, other in hard_neighbours(relation)]
    return float(max(ranges))


MEAN = MeanTokenMechanism(
    batch=BatchTerms(expected_batch_size=64, relation=ADD_REMOVE), clip_bound=9.0, temperature=1.5
)
"""The setting of Table 10 of Amin et al. 2025: η = 0.1875."""


def mean_scores(mechanism: MeanTokenMechanism, rows: np.ndarray) -> np.ndarray:
    """Runs the tensor code of the kernel on one batch (n, V), in float32 as logits are: (V,)."""
    import torch

    logits = torch.as_tensor(rows, dtype=torch.float32)
    batch_of_row = torch.zeros(len(logits), dtype=torch.int64)
    return mechanism.private_scores(logits, batch_of_row, np.array([0]))[0].numpy()


def _over_private_rows(rows: np.ndarray) -> np.ndarray:
    """Planted: Eq. (1) of Amin et al. 2025 as printed, with the private |Z| below the sum."""
    return clip_logits(rows, 9.0).sum(axis=0) / (max(1, len(rows)) * 1.5)


def _unclipped(rows: np.ndarray) -> np.ndarray:
    """Planted: the mean of logits as the model gave them."""
    return rows.sum(axis=0) / (64 * 1.5)


def _draws(*, temperature: float = 1.0, greedy: bool = False) -> Finding:
    """Tests drawn tokens against one draw's event: does token 1 tell whether the record is there?

    Each of many batches holds the record, or none does; c = s = τ = 1, hence η = 2, and this
    pair attains the bound. A greedy choice is planted here, as it is no setting of the mechanism.
    """
    import torch

    batch = BatchTerms(expected_batch_size=1, relation=ADD_REMOVE)
    claimed = MeanTokenMechanism(batch=batch, clip_bound=1.0, temperature=1.0)
    drawing = replace(claimed, temperature=temperature)
    record, batches = torch.tensor(extreme_row([1], 4)), np.arange(DRAWS)

    def count(rows: int) -> int:
        private_logits, batch_of_row = record.repeat(rows, 1), torch.arange(rows)
        if greedy:
            scores = drawing.private_scores(private_logits, batch_of_row, batches)
            return int((scores.argmax(dim=1) == 1).sum())
        meter = PrivateTokenMeter(1, DRAWS)
        logits = NextLogits(private_logits, batch_of_row, batches)
        return int((drawing.select(logits, meter) == 1).sum())

    curve = event_curve([claimed.event(1)])
    return audit_event_counts(count(DRAWS), count(0), DRAWS, curve)


def _token_of(draw: Draw, uniform: int) -> int:
    """Draws from `RARE_SUMS` with the bits of a uniform for entropy, and zeros after them."""
    import torch

    parts = iter([uniform >> place & (1 << 64) - 1 for place in range(UNIFORM_BITS - 64, -1, -64)])

    def words(count: int) -> np.ndarray:
        return np.array([next(parts, 0)] * count, dtype=np.uint64)

    scores = torch.tensor([RARE_SUMS], dtype=torch.float64)
    return int(draw(scores, RARE_DIVISOR, words)[0])


def _first_uniform(draw: Draw, token: int) -> int:
    """Finds by bisection the least uniform that draws this token or a later one."""
    low, high = 0, 1 << UNIFORM_BITS
    while low < high:
        middle = (low + high) // 2
        if _token_of(draw, middle) >= token:
            high = middle
        else:
            low = middle + 1
    return low


def _probabilities(draw: Draw) -> Finding:
    """Compares each token's share of all uniforms with its probability in the softmax."""
    edges = [_first_uniform(draw, token) for token in range(1, len(RARE_SUMS))]
    edges = [0, *edges, 1 << UNIFORM_BITS]
    shares = np.array(
        [float(Fraction(width, edges[-1])) for width in np.diff(np.array(edges, dtype=object))]
    )
    weights = np.exp((np.array(RARE_SUMS) - max(RARE_SUMS)) / float(RARE_DIVISOR))
    observed = np.abs(shares / (weights / weights.sum()) - 1.0)
    return Finding(claimed=0.0, observed=float(observed.max()))


def _by_one_uniform(
    scores: "torch.Tensor", divisor: Fraction, words: Callable[[int], np.ndarray]
) -> np.ndarray:
    """Planted: inverse CDF in float64, as it is usually written."""
    private_scores = scores.numpy()
    uniforms = ((words(len(private_scores)) >> np.uint64(11)) + 0.5) * 2.0**-53
    weights = np.exp((private_scores - private_scores.max()) / float(divisor))
    reached = np.cumsum(weights, axis=1)
    pairs = zip(reached, uniforms * reached[:, -1], strict=True)
    return np.array([np.searchsorted(row, target, side="right") for row, target in pairs])


CLIP_BOUND, TEMPERATURE, BATCH_SIZE = 1.0, 1.0, 8
PUBLIC_LOGITS = np.random.default_rng(3).normal(0.0, 2.0, VOCABULARY)
"""A public prompt's logits: an invented input, hence a seed."""

DIFFERENCE = DifferenceTokenMechanism(
    batch=BatchTerms(expected_batch_size=BATCH_SIZE, relation=ADD_REMOVE),
    clip_bound=CLIP_BOUND,
    temperature=TEMPERATURE,
)


def _difference_scores(rows: np.ndarray) -> np.ndarray:
    """Runs the tensor code of the kernel on one batch, in the logits' usual float32."""
    import torch

    logits = torch.as_tensor(rows, dtype=torch.float32).reshape(-1, VOCABULARY)
    public = torch.as_tensor(PUBLIC_LOGITS, dtype=torch.float32)
    support = torch.arange(VOCABULARY)
    return DIFFERENCE.private_scores(logits, public, torch.arange(len(logits)), support).numpy()


def _wrong_differences(
    rows: np.ndarray, *, clip_bound: float = CLIP_BOUND, private_denominator: bool = False
) -> np.ndarray:
    """Planted: differences left as they are, or divided by the private number of rows."""

    def log_softmax(logits: np.ndarray) -> np.ndarray:
        return logits - np.logaddexp.reduce(logits, axis=-1)[..., None]

    public = log_softmax(PUBLIC_LOGITS)
    differences = np.clip(log_softmax(rows) - public, -clip_bound, clip_bound)
    denominator = max(1, len(rows)) if private_denominator else BATCH_SIZE
    return (public + differences.sum(axis=0) / denominator) / TEMPERATURE


def _range_audit(name: str, eta: float, scores: Scores, planted: Mapping[Bug, Scores]) -> Audit:
    def finding(tried: Scores, relation: NeighboringRelation = ADD_REMOVE) -> Finding:
        return Finding(claimed=eta, observed=largest_range(tried, relation))

    wrong = {bug: partial(finding, tried) for bug, tried in planted.items()}
    relation = {Bug.WRONG_RELATION: lambda: finding(scores, REPLACE_ONE)}
    return Audit.named(name, lambda: finding(scores), relation | wrong)


AUDITS = (
    Audit.named(
        "rare-tokens",
        lambda: _probabilities(tokens_from_words),
        {Bug.ONE_UNIFORM: lambda: _probabilities(_by_one_uniform)},
    ),
    _range_audit(
        "mean-token-range",
        MEAN.eta,
        partial(mean_scores, MEAN),
        {Bug.PRIVATE_DENOMINATOR: _over_private_rows, Bug.UNCLIPPED: _unclipped},
    ),
    Audit.named(
        "token-draws",
        _draws,
        {
            # A softmax has its noise in the temperature.
            Bug.HALVED_NOISE: lambda: _draws(temperature=0.5),
            Bug.GREEDY: lambda: _draws(greedy=True),
        },
    ),
    _range_audit(
        "difference-token-range",
        DIFFERENCE.eta,
        _difference_scores,
        {
            Bug.PRIVATE_DENOMINATOR: partial(_wrong_differences, private_denominator=True),
            Bug.UNCLIPPED: partial(_wrong_differences, clip_bound=np.inf),
        },
    ),
)
