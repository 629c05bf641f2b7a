"""The public-token test: a private token is charged only if the public token does not suffice.

AboveThreshold (the sparse vector technique) asks for each batch, token after token, whether the
records' mean next-token distribution is far from that of the public prompt. All answers of one
instance up to and including its first "far" cost one ε; the next instance needs a fresh noisy
threshold and another ε. Shape letters: R rows (prompts of all batches), n rows looked at, V
vocabulary, A allowed tokens, C tokens of one block, G active batches.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np

from dpsynth_assets.privacy.batch_terms import ROWS_PER_EXPECTED_ROW, BatchTerms
from dpsynth_assets.privacy.clipping import row_blocks
from dpsynth_assets.privacy.cpu import (
    blocks_of_rows,
    is_plain,
    map_on_cpu_threads,
    maxima,
    plain_entries,
)
from dpsynth_assets.privacy.errors import UnaccountedReleaseError, check_positive
from dpsynth_assets.privacy.events import PureEvent
from dpsynth_assets.privacy.noise import discrete_laplace
from dpsynth_assets.privacy.renyi import float_up
from dpsynth_assets.privacy.softmax_draws import draw_tokens
from dpsynth_assets.privacy.token_selection import (
    NextLogits,
    PrivateTokenMeter,
    allowed_tokens,
    rows_by_batch,
)

if TYPE_CHECKING:
    import torch


STEPS_PER_RECORD = 1 << 16
"""Distances are counted in lattice steps of 2^-16 of one record's weight 1/s."""

_TESTED: "WeakSet[PrivateTokenMeter]" = WeakSet()
"""Meters that pay for a test already: a second one would run r more instances unpaid."""


@dataclass(frozen=True, kw_only=True)
class PublicTokenTest:
    """Settings of the test "is d(Z, z_pub) at least θ?", and its price.

    Attributes:
        batch: Declared facts of the batches; s is the denominator for any private number
            of rows.
        noise_scale: σ > 0, in units of the distance, which is in [0, 2] for |Z| = s.
        threshold: θ, public. A batch with few rows has distance near 1, and looks far.

    **Privacy** Floating-point Laplace noise leaks through its low bits, so distance and threshold
    are floored to a public lattice and get exact integer noise. Floors of numbers x apart are at
    most ⌈x⌉ apart; `rounding_steps` bounds what summation may add. A sensitivity of D steps
    instead of the ideal Δ takes a scale of λ = D·σ/Δ steps: D/λ + 2D/(2λ) = 2Δ/σ is the stated ε
    exactly, for noise larger than σ by D·2^-16 - 1: .03 % at s = 64.

    **Source** Amin et al. 2024, Algorithm 1, lines 4 and 11-19; Dwork et al. 2009.
    """

    batch: BatchTerms
    noise_scale: float
    threshold: float

    def __post_init__(self) -> None:
        """Refuses settings without a finite ε."""
        if not math.isfinite(self.threshold):
            raise ValueError(f"Expected a finite threshold, got {self.threshold}.")
        self.event(0)

    @property
    def epsilon(self) -> float:
        """Pure ε of one instance in every batch, rounded up.

        **Privacy** d(Z, z_pub) = ‖Σ softmax(z)/s − p_pub‖₁ moves by at most ‖softmax(z)‖₁/s = 1/s
        when a vector comes or goes (reverse triangle inequality): Δ = 1/s, and 2/s if one replaces
        another. Raise the threshold's noise by Δ (density: e^(Δ/σ)): each distance that was "near"
        is near for the neighbour, however often it was asked, and the noise of the one "far"
        distance has to rise by at most 2Δ (e^(2Δ/(2σ))). So ε = 2Δ/σ. Changes add up, within a
        batch and over batches. Slack δ moves a softmax by 2·tanh(δ/2) <= δ in L1, in each of at
        most P rows, the room of a forward pass (`pass_rows`). Whose batches they are is not known;
        the instances of all batches of a pass add up (`_weight_elsewhere`).

        **Source** Amin et al. 2024, Lemma 3 and Lemma 5; replace-one is ours.
        """
        check_positive("noise_scale", self.noise_scale)
        weight = _weight_of_change(self.batch) + _weight_elsewhere(self.batch)
        noise = self.batch.expected_batch_size * Fraction(float(self.noise_scale))
        return float_up(2 * weight * self.batch.changes / noise)

    def event(self, count: int) -> PureEvent:
        """Prices `count` instances in every batch: one for each private token of the plan."""
        return PureEvent(epsilon=self.epsilon, count=count)

    @property
    def rounding_steps(self) -> int:
        """Lattice steps by which rounding may move the distances of two neighbours apart."""
        return _rounding_steps(self.batch.expected_batch_size)

    @cached_property
    def sensitivity_steps(self) -> int:
        """D: lattice steps by which one changed logit vector moves a floored distance."""
        weight = _weight_of_change(self.batch)
        return math.ceil(weight * STEPS_PER_RECORD) + self.rounding_steps

    @cached_property
    def noise_steps(self) -> float:
        """λ: Laplace scale of the threshold in lattice steps, rounded up; queries get 2λ."""
        weight = _weight_of_change(self.batch)
        sigma = Fraction(float(self.noise_scale)) * self.batch.expected_batch_size
        return float_up(self.sensitivity_steps * sigma / weight)

    @cached_property
    def threshold_steps(self) -> int:
        """θ in whole lattice steps."""
        return math.floor(
            Fraction(float(self.threshold)) * self.batch.expected_batch_size * STEPS_PER_RECORD
        )

    def open(self, meter: PrivateTokenMeter) -> "OpenTokenTest":
        """Starts testing the batches of `meter`, which bounds the instances of each by its r.

        Raises:
            UnaccountedReleaseError: If the meter pays for another test already.
        """
        return OpenTokenTest(self, meter)

    def private_distances(
        self,
        private_logits: "torch.Tensor",
        public_logits: "torch.Tensor",
        batch_of_row: "torch.Tensor",
        active: np.ndarray,
        columns: "torch.Tensor | None" = None,
    ) -> "torch.Tensor":
        """Computes (G,) float64 distances d(Z, z_pub). Private: only noisy answers may leave.

        Each row's softmax is taken before the mean; the softmax of a mean of clipped logits moves
        by far more than 1/s. No temperature enters: Eq. (2) compares the distributions at
        temperature 1.

        **Privacy** A row's distribution is computed in float32 from that row; its entries add up to
        1 within 2^-17, half a lattice step. The last bits of its total may depend on the rows that
        are added up beside it; `rounding_steps` charges that, as it does the sum of the
        distributions.
        """
        import torch

        public_logits = public_logits.to(private_logits.device)
        distances = torch.zeros(len(active), dtype=torch.float64, device=private_logits.device)
        few = ROWS_PER_EXPECTED_ROW * self.batch.expected_batch_size
        rows_of = rows_by_batch(batch_of_row, active)

        def compare(batch: int) -> None:
            public = next_token_distributions(public_logits[batch : batch + 1], columns)[0]
            total = public.double().mul_(-self.batch.expected_batch_size)
            total += sum_of_distributions(private_logits, columns, rows_of[batch], few)
            distances[batch] = total.abs_().sum()

        map_on_cpu_threads(compare, range(len(rows_of)), plain_entries(private_logits))
        return distances.div_(self.batch.expected_batch_size)  # [amin2024 Eq2]


class OpenTokenTest:
    """The noisy thresholds of every batch, of which no more can be opened than were paid for.

    **Privacy** The published loop draws a new threshold after every private token, also after the
    r-th, and continues asking: an (r+1)-th instance that was not paid for (errata B-001.1). Here a
    fresh threshold is one unit of a meter of r, spent before any logit is read, and a batch whose
    private tokens are gone is refused: from then on it may only write public text.
    """

    def __init__(self, test: PublicTokenTest, meter: PrivateTokenMeter) -> None:
        """Binds the test to the meter that also pays for the batches' private tokens."""
        if meter in _TESTED:
            raise UnaccountedReleaseError(
                "Expected a meter without a public-token test, got one with a test. Keep using "
                "that test."
            )
        _TESTED.add(meter)
        batches = meter.spent.size
        self._test, self._meter = test, meter
        self._instances = PrivateTokenMeter(meter.tokens_per_batch, batches)
        self._asking = np.zeros(batches, dtype=bool)
        self._noisy_thresholds = np.zeros(batches, dtype=np.int64)

    @property
    def opened(self) -> np.ndarray:
        """(batches,) int64, instances opened so far: at most r."""
        return self._instances.spent

    def needs_private_token(self, logits: NextLogits) -> np.ndarray:
        """Says for each active batch whether its next token must be a private one.

        Args:
            logits: With public ones: rounding that depends on private neighbours would not be
                covered. A row with NaN or without a finite maximum contributes a zero vector; both
                distributions are conditioned on the allowed tokens.

        Returns:
            (G,) bool, a release. True ends the batch's instance; False is free.

        Raises:
            UnaccountedReleaseError: If a batch has no private token or no instance left.
            ValueError: If shapes disagree, or a public row has no finite maximum.
        """
        active = np.asarray(logits.active, dtype=np.int64).reshape(-1)
        self._pay(active)
        logits.check()
        columns = allowed_tokens(logits.private, logits.allowed)
        distances = self._test.private_distances(
            logits.private, logits.compared, logits.batch_of_row, active, columns
        )
        far = self._noisy_distances(distances) >= self._noisy_thresholds[active]
        self._asking[active[far]] = False
        return far  # [amin2024 A1:L13] [amin2024 A3:L7]

    def _pay(self, active: np.ndarray) -> None:
        """Refuses batches without private tokens; opens and pays instances where none is open."""
        known = np.isin(active, np.arange(self._asking.size))
        if not known.all() or self._meter.exhausted[active].any():
            raise UnaccountedReleaseError(
                "Expected batches with a private token left, got one without. Write public text "
                "only from there on, or end the document."
            )
        fresh = np.unique(active[~self._asking[active]])
        if not fresh.size:
            return
        self._instances.spend(fresh)
        theta, scale = self._test.threshold_steps, self._test.noise_steps
        # [amin2024 A1:L4] [amin2024 A1:L17] [amin2024 A3:L2]
        self._noisy_thresholds[fresh] = discrete_laplace([theta] * len(fresh), scale)
        self._asking[fresh] = True

    def _noisy_distances(self, private_distances: "torch.Tensor") -> np.ndarray:
        """Floors (G,) distances to the lattice and adds integer noise of scale 2λ."""
        steps = self._test.batch.expected_batch_size * STEPS_PER_RECORD
        floored = np.floor(private_distances.cpu().numpy() * steps).astype(np.int64)
        noisy = discrete_laplace(floored.tolist(), 2.0 * self._test.noise_steps)
        return np.array(noisy, dtype=np.int64)  # [amin2024 A1:L12] [amin2024 A3:L6]


def draw_public_tokens(
    public_logits: "torch.Tensor", temperature: float, allowed: np.ndarray | None = None
) -> np.ndarray:
    """Draws (G,) tokens from softmax(z_pub / τ_public) of (G, V) public logits: free of charge.

    **Source** Amin et al. 2024, Algorithm 1, line 19.
    """
    check_positive("temperature", temperature)
    columns = allowed_tokens(public_logits, allowed)
    scores = public_logits if columns is None else public_logits.index_select(1, columns)
    tokens = draw_tokens(scores, Fraction(temperature))
    # [amin2024 A1:L19] [amin2024 A3:L10]
    return tokens if columns is None else columns.cpu().numpy()[tokens]


def _weight_of_change(batch: BatchTerms) -> Fraction:
    """Weighs one changed logit vector and the slack of a batch's part of the P rows: s·d's move."""
    return 1 + Fraction(batch.slack_of_batch)


def _weight_elsewhere(batch: BatchTerms) -> Fraction:
    """Bounds what slack adds to that weight in all batches of a pass together.

    Floored distances move by the slack of a batch's rows, by less than a step of flooring and by
    `_rounding_steps`, against noise of at least σ·s·2^16 steps. Slack adds up over the batches to
    that of P rows, in whichever they are. The record's own batch has its part of P in
    `_weight_of_change`; where more of its rows move, fewer do elsewhere, and flooring may add one
    step more. Without slack logits elsewhere, and so their distances, stay the same.
    """
    slack, batches = batch.slack_of_pass, batch.batches_per_pass
    if slack == 0 or batches == 1:
        return Fraction(0)
    moved = math.ceil(Fraction(slack) * (batches - 1) / batches * STEPS_PER_RECORD)
    steps = moved + (batches - 1) * (1 + _rounding_steps(batch.expected_batch_size)) + 1
    return Fraction(steps, STEPS_PER_RECORD)


def _rounding_steps(expected_batch_size: int) -> int:
    """Bounds in lattice steps how far rounding may move the distances of two neighbours apart.

    One step for a distribution's own mass and for float64 sums in another order (while
    (V + R)(R + s) < 2^34). A sum of k distributions in float32 is off by at most k·2^-24 / (1 −
    k·2^-24) of their mass, in any order: over the 4s rows that may be summed so
    (`ROWS_PER_EXPECTED_ROW`) by less than 4s·(k + 1)·2^-24 records, and so is a neighbour's.
    """
    records = Fraction(ROWS_PER_EXPECTED_ROW) * expected_batch_size
    moved = 2 * records * Fraction(DISTRIBUTIONS_PER_SUM + 1, 1 << 24)
    return 1 + math.ceil(moved * STEPS_PER_RECORD)


DISTRIBUTIONS_PER_SUM = 8
"""Distributions added in float32, in one matrix product, before their sums are in float64."""

_SAFE_TOTAL = (1e-20, 1e30)
"""Sums of plain exponentials between which float32 neither overflows nor loses digits."""

_GLIMPSE = 16
"""Tokens that a row's level is guessed from: one line of a cache."""

_FAR_FROM_ZERO = 20.0
"""Levels beyond it are taken off before exponentials are."""


def next_token_distributions(
    block: "torch.Tensor", columns: "torch.Tensor | None" = None
) -> "torch.Tensor":
    """Computes (n, A) float32 softmax of each row; zeros where the maximum is not finite.

    One exponential an entry. Rows whose plain exponentials leave the safe range are shifted by
    their maximum first; whether one is depends on that row alone.
    """
    import torch

    block = block if columns is None else block.index_select(1, columns)
    block = block.to(torch.float32)
    weights = torch.exp(block)
    total = weights.sum(dim=1)
    shifted = ~((total > _SAFE_TOTAL[0]) & (total < _SAFE_TOTAL[1]))
    if bool(shifted.any()):
        own = block[shifted]
        maximum = own.amax(dim=1, keepdim=True)
        own = torch.exp(own - maximum).masked_fill_(~torch.isfinite(maximum), 0.0)
        weights[shifted], total[shifted] = own, own.sum(dim=1).clamp_(min=1.0)
    return weights.mul_(total.reciprocal_().unsqueeze(1))


def sum_of_distributions(
    private_logits: "torch.Tensor",
    columns: "torch.Tensor | None",
    rows: "torch.Tensor | slice",
    most_in_float32: float,
) -> "torch.Tensor":
    """Adds up the distributions of a batch's rows: (A,) float64.

    Rows without a finite maximum add nothing.
    Up to `most_in_float32` rows a CPU adds DISTRIBUTIONS_PER_SUM distributions in float32.
    """
    import torch

    count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
    if is_plain(private_logits) and count <= most_in_float32:
        return _sum_on_a_cpu(private_logits, columns, rows)
    tokens = private_logits.shape[1] if columns is None else len(columns)
    summed = torch.zeros(tokens, dtype=torch.float64, device=private_logits.device)
    for block in row_blocks(private_logits, columns, rows):
        summed += sum_in_float64(next_token_distributions(block))
    return summed


def _sum_on_a_cpu(
    private_logits: "torch.Tensor",
    columns: "torch.Tensor | None",
    rows: "torch.Tensor | slice",
) -> "torch.Tensor":
    """Divides by the totals and adds DISTRIBUTIONS_PER_SUM at once, in one product, in cache.

    Rows whose exponentials leave the safe range are left to `next_token_distributions`, and no
    others: a row's distribution must not depend on the other rows of its block.
    """
    import torch

    tokens = private_logits.shape[1] if columns is None else len(columns)
    summed, buffer = np.zeros(tokens), torch.empty((0, tokens))
    own = None if columns is None else columns.numpy()
    for logits in blocks_of_rows(private_logits.numpy(), own, rows):
        buffer = torch.empty(logits.shape) if len(buffer) < len(logits) else buffer
        weights = _exponentials(logits, out=buffer[: len(logits)])
        total = weights.sum(dim=1).numpy()
        if not (_SAFE_TOTAL[0] < total.min() and total.max() < _SAFE_TOTAL[1]):
            unsafe = ~((total > _SAFE_TOTAL[0]) & (total < _SAFE_TOTAL[1]))
            weights[torch.from_numpy(unsafe)] = next_token_distributions(
                torch.from_numpy(logits[unsafe])
            )
            total[unsafe] = 1.0
        shares = torch.from_numpy(np.reciprocal(total))
        for start in range(0, len(logits), DISTRIBUTIONS_PER_SUM):
            part = slice(start, start + DISTRIBUTIONS_PER_SUM)
            summed += torch.mv(weights[part].T, shares[part]).numpy()
    return torch.from_numpy(summed)


def _exponentials(logits: np.ndarray, out: "torch.Tensor") -> "torch.Tensor":
    """Computes (n, A) float32 exp(z), of rows that lie far from zero exp(z − level).

    Some models' logits lie around -100, where exponentials are too small for normal floats and a
    processor takes a hundred times as long. A row's level is the largest of its first logits: a
    function of that row alone, and a row that stays as it is loses no bit to a neighbour's.
    """
    import torch

    level = maxima(logits[:, :_GLIMPSE])
    if level.min() >= -_FAR_FROM_ZERO and level.max() <= _FAR_FROM_ZERO:
        return torch.exp(torch.from_numpy(logits), out=out)
    far = (np.abs(level) > _FAR_FROM_ZERO) & np.isfinite(level)
    np.subtract(logits, np.where(far, level, np.float32(0.0))[:, None], out=out.numpy())
    return out.exp_()


def sum_in_float64(block: "torch.Tensor") -> "torch.Tensor":
    """Adds up (n, A) float32 rows in float64: (A,). A CPU does it without a float64 copy."""
    import torch

    if block.device.type == "cpu":
        return torch.from_numpy(np.add.reduce(block.numpy(), axis=0, dtype=np.float64))
    return block.sum(dim=0, dtype=torch.float64)
