"""Tokens with the largest noisy mean probability, each step over a fresh sample of the records.

Letters: n private records of one label, M subsets, N examples of a subset, K tokens of the public
support, V vocabulary, q sampling probability, T steps.
"""

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from dpsynth_assets.privacy.cpu import map_on_cpu_threads, plain_entries
from dpsynth_assets.privacy.difference_clipping import marked_tokens, public_support
from dpsynth_assets.privacy.errors import check_at_least
from dpsynth_assets.privacy.events import PoissonGaussianEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.noise import discrete_gaussian, secure_uniform
from dpsynth_assets.privacy.poisson_sampling import StepMeter, poisson_sample

if TYPE_CHECKING:
    import torch

_UP = 1.0 + 2.0**-48
"""Covers the handful of float64 roundings of a sensitivity or a noise scale."""


_STEPS_OF_NOISE = 30
"""The noise spans about 2^30 steps of the lattice that means are rounded to."""

_FINEST_STEP = 2.0**-60
"""A mean probability spans at most 2^60 steps, which leaves room for noise in 64 bits."""

_SMOOTHING = 3.0
"""Variance, in steps, by which integer noise is larger than the Gaussian noise that is charged."""


def mean_probability_sensitivity(subsets: int, logit_slack: float = 0.0) -> float:
    """Bounds how far one sampled record moves the mean of M probability vectors in L2; rounded up.

    Args:
        subsets: M >= 1, fixed and public: empty subsets count.
        logit_slack: λ >= 0, how far rounding may let a record move the logits of prompts that do
            not hold it (sup norm).

    Raises:
        ValueError: If an argument is outside its domain.

    **Privacy** A record sits in one subset, hence changes one of the M vectors. Two probability
    vectors are at most √2 apart, and exactly that where they put all on different tokens; a vector
    of zeros is at most 1 away from either. Moving logits by at most λ moves a vector by at most
    tanh(λ/2) in total variation (its likelihood ratios range over e^(2λ)), and L2 is at most √2
    times that for differences that sum to zero: at most λ/√2 for each of M − 1 vectors. The mean
    moves by at most (√2 + (M − 1) λ/√2) / M.

    **Source** Tang et al. 2024: L2 sensitivity √2 of a sum of M distributions.
    """
    check_at_least(1, subsets=subsets)
    check_at_least(0, logit_slack=logit_slack)
    own, others = math.sqrt(2.0), (subsets - 1) * logit_slack / math.sqrt(2.0)
    return (own + others) / subsets * _UP


def noisy_probabilities_event(
    *,
    sampling_probability: float,
    noise_multiplier: float,
    steps: int,
    relation: NeighboringRelation,
    max_records_per_unit: int = 1,
) -> PoissonGaussianEvent:
    """Prices T tokens of every label, each from a fresh Poisson sample of the label's records.

    Args:
        sampling_probability: q in (0, 1] of every record in every step.
        noise_multiplier: Noise / `mean_probability_sensitivity`, for every relation.
        steps: T >= 0 of each label, all of them, also those that a short text does not reach.
        relation: Declared neighbouring relation.
        max_records_per_unit: m, records one unit may contribute.

    **Privacy** Fix the coins, subsets and order of all other records. Add/remove and zero-out (a
    null record has no text and is left out of prompts): with probability q the record is drawn,
    into some subset, and the mean moves by one sensitivity at most, whichever subset it is: a
    Poisson-sampled Gaussian step. Labels are released in parallel, as a record has one label. A
    unit's m records move the mean by at most one sensitivity for each that is drawn; spread over
    labels they shift orthogonal vectors, so that the shifts are no longer than those of m records
    of one label (`pld` says why longer shifts are worse).

    Replace-one: no amplification is claimed. A record and its replacement of the same label share
    coin and subset, so one vector turns into another: one sensitivity, not two. A replacement of
    another label moves both labels' means by one each: √2 sensitivities together, times m for a
    unit. That is a step in which every record is drawn.

    **Source** Tang et al. 2024, whose accounting assumes Poisson samples. The published code draws
    samples of fixed size from seeded permutations and deals them out by position: one record more
    changes every subset, so the printed cost is not that of the code.
    """
    relation, multiplier = NeighboringRelation(relation), float(noise_multiplier)
    if relation is NeighboringRelation.REPLACE_ONE:
        sampling_probability, multiplier = 1.0, multiplier / (math.sqrt(2.0) * _UP)
    return PoissonGaussianEvent(
        sampling_probability=sampling_probability,
        noise_multiplier=multiplier,
        steps=steps,
        max_records_per_unit=max_records_per_unit,
    )


@dataclass(frozen=True, kw_only=True)
class NoisyProbabilities:
    """The tokens of one label: T samples of its records, and one token of each.

    Attributes:
        subsets: M >= 1, fixed denominator of the mean.
        examples_per_subset: N >= 1, records of one subset that are used; others are left out.
        sampling_probability: q in (0, 1], public.
        noise_multiplier: Noise / sensitivity of one record, for every relation.
        steps: T of this label.
        top_k: K >= 1.
        relation: Declared neighbouring relation.
        max_records_per_unit: Records one unit may contribute.
        logit_slack: See `mean_probability_sensitivity`.

    **Privacy** The cost of all labels together is `event()` of one of them, charged for T steps
    before the first record is drawn; a label has one mechanism, which refuses step T + 1. Means are
    floored to a lattice and get integer noise, of which only the place of the largest number
    leaves. Floors of numbers x steps apart are less than x + 1 steps apart, so K of them move by
    at most √K steps more than the means, and float64 means are within (K + M + 16) 2^-50 of the
    true ones: both are in the sensitivity that the noise is scaled to (`noise_on_lattice`; 1e-7
    more noise than `noise_std`). Integer noise of variance σ² about a whole number θ is, up to a
    factor of 1 ± 4e-26, post-processing of Gaussian noise of variance σ² − 3 about θ
    (`gaussian_dp.dominating_mu` has the proof), which is what the event prices.

    **Source** Tang et al. 2024, Algorithm 1, with the public top-K ("reduced vocab").
    """

    subsets: int
    examples_per_subset: int
    sampling_probability: float
    noise_multiplier: float
    steps: int
    top_k: int
    relation: NeighboringRelation
    max_records_per_unit: int = 1
    logit_slack: float = 0.0
    _meter: StepMeter = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuses settings without an event, and opens the meter."""
        self.event()
        _ = self.noise_std
        check_at_least(1, examples_per_subset=self.examples_per_subset, top_k=self.top_k)
        object.__setattr__(self, "_meter", StepMeter(self.steps))

    def __reduce__(self) -> NoReturn:
        """Refuses copies and pickles, each of which could draw T samples more."""
        raise TypeError("Expected one NoisyProbabilities for T steps, got a request to copy it.")

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each mean probability, but for the lattice's part."""
        unit = mean_probability_sensitivity(self.subsets, self.logit_slack)
        return float(self.noise_multiplier) * unit

    def noise_on_lattice(self, tokens: int) -> tuple[float, float]:
        """Computes the lattice's step, a power of two, and the noise's σ in steps, rounded up.

        Args:
            tokens: K, numbers that get noise.
        """
        exponent = math.frexp(self.noise_std)[1] - _STEPS_OF_NOISE
        step = max(math.ldexp(1.0, exponent), _FINEST_STEP)
        rounding = 1.0 + 2.0 * (tokens + self.subsets + 16) * 2.0**-50 / step
        moved = mean_probability_sensitivity(self.subsets, self.logit_slack) / step
        charged = float(self.noise_multiplier) * (moved + math.sqrt(tokens) * rounding)
        return step, math.sqrt(charged**2 + _SMOOTHING) * _UP

    @property
    def steps_left(self) -> int:
        """Samples that may still be drawn."""
        return self._meter.left

    def event(self) -> PoissonGaussianEvent:
        """Prices all T steps."""
        return noisy_probabilities_event(
            sampling_probability=self.sampling_probability,
            noise_multiplier=self.noise_multiplier,
            steps=self.steps,
            relation=self.relation,
            max_records_per_unit=self.max_records_per_unit,
        )

    def draw(self, private_records: int) -> list[np.ndarray]:
        """Draws the subsets of the next step: (<= N,) int64 record indices each, M of them.

        Args:
            private_records: n >= 0, records of the label that have a text.

        Raises:
            UnaccountedReleaseError: Before a coin is tossed, if all T samples were drawn.
        """
        self._meter.draw(self.subsets)
        sample = poisson_sample(private_records, self.sampling_probability)
        owners = (secure_uniform(len(sample)) * self.subsets).astype(np.int64)
        keys = secure_uniform(len(sample))
        return split_sample(
            sample, owners, keys, subsets=self.subsets, examples=self.examples_per_subset
        )

    def select(self, private_logits: "torch.Tensor", public_logits: "torch.Tensor") -> int:
        """Releases one token for the oldest sample that has none.

        Args:
            private_logits: (M, V) next-token logits of the subsets' prompts, in any order and of
                any floating type; an empty subset has the public prompt. A row with NaN or
                without a finite maximum contributes zeros.
            public_logits: (V,) logits of the public prompt. They must come from a forward pass
                without private rows: rounding that depends on private rows is not covered.

        Returns:
            The token with the largest noisy mean probability among the K most likely public ones
            (more where several tie for the K-th place).

        Raises:
            UnaccountedReleaseError: If no sample waits for its token.
            ValueError: If shapes disagree or no public logit is finite.
        """
        self._check_shapes(private_logits, public_logits)
        self._meter.release(self.subsets)
        support = self._support(public_logits).to(private_logits.device)
        means = partial(private_mean_probabilities, private_logits)
        (mean,) = map_on_cpu_threads(means, [support], plain_entries(private_logits))
        step, noise = self.noise_on_lattice(len(support))
        floored = np.floor(mean.cpu().numpy() / step).astype(np.int64)
        noisy = discrete_gaussian(floored.tolist(), noise)  # [tang2024 A1] noise
        return int(support[int(np.argmax(noisy))])  # [tang2024 A1] argmax

    def _support(self, public_logits: "torch.Tensor") -> "torch.Tensor":
        """Lists the public tokens (K,) among which the next one is chosen."""
        (support,) = marked_tokens(public_support(public_logits, self.top_k, 0.0).unsqueeze(0))
        if not len(support):
            raise ValueError("Expected public logits with a finite number, got none.")
        return support

    def _check_shapes(self, private_logits: "torch.Tensor", public_logits: "torch.Tensor") -> None:
        """Refuses shapes that disagree. Messages show shapes only."""
        expected = (self.subsets, *public_logits.shape)
        if public_logits.ndim != 1 or tuple(private_logits.shape) != expected:
            raise ValueError(
                f"Expected private_logits of shape ({self.subsets}, V) and public_logits of shape "
                f"(V,), got {tuple(private_logits.shape)} and {tuple(public_logits.shape)}."
            )


def split_sample(
    private_sample: np.ndarray,
    owners: np.ndarray,
    keys: np.ndarray,
    *,
    subsets: int,
    examples: int,
) -> list[np.ndarray]:
    """Puts a sample into M disjoint subsets and keeps the first N of each, in random order.

    Args:
        private_sample: (B,) record indices.
        owners: (B,) subset of each record in [0, M), drawn for it alone.
        keys: (B,) place in its subset, drawn for it alone: smaller keys come first.
        subsets: M.
        examples: N.

    **Privacy** Which records of a subset are kept depends on that subset alone: a record more in
    the sample changes the subset that owns it, where it may push another one out, and no other.

    **Source** Tang et al. 2024, Algorithm 1, where a subset has N records exactly.
    """
    order = np.argsort(keys, kind="stable")
    sample, owner = private_sample[order], owners[order]
    return [sample[owner == subset][:examples] for subset in range(subsets)]


def private_mean_probabilities(
    private_logits: "torch.Tensor", support: "torch.Tensor"
) -> "torch.Tensor":
    """Computes the (K,) float64 mean over M rows of softmax(logits) restricted to the support.

    Private: only the place of the largest noisy number may leave.

    **Source** Tang et al. 2024, Algorithm 1: probabilities of the public top-K, scaled to sum to
    one in each subset, then averaged.
    """
    import torch

    logits = private_logits.index_select(1, support).to(torch.float64)
    usable = torch.isfinite(logits.amax(dim=1, keepdim=True))
    probabilities = torch.softmax(torch.where(usable, logits, 0.0), dim=1)
    return torch.where(usable, probabilities, 0.0).mean(dim=0)
