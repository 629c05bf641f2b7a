"""Audits of the accountant: no ε it reports may lie below what an explicit attack attains.

Planted bugs are accountants of papers and libraries that report less than the attack attains.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpsynth_assets.attacks.audits.attained import (
    binomial_epsilon,
    binomial_mixture,
    counts_delta,
    cut_batch_pair,
    point,
    shuffled_epsilon,
    tail_epsilon,
)
from dpsynth_assets.attacks.audits.audit import Audit, AuditKind, Bug, Finding
from dpsynth_assets.privacy.accounting import ACCOUNTANTS, epsilon_of, privacy_profile
from dpsynth_assets.privacy.directed_rounding import declared
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    PureEvent,
    TruncatedPoissonGaussianEvent,
)
from dpsynth_assets.privacy.histogram import histogram_event
from dpsynth_assets.privacy.units import NeighboringRelation

DELTA = 1e-5
CUT: dict[str, Any] = {
    "records": 12,
    "sampling_probability": 0.9,
    "max_batch_size": 4,
    "noise_multiplier": 3.0,
}


COUNTED = tuple(
    (noise_std, rounds, records, relation)
    for noise_std in (1.0, 1.5, 3.0, 10.0)
    for rounds, records in ((1, 1), (1, 3), (4, 1))
    for relation in (NeighboringRelation.ADD_REMOVE, NeighboringRelation.REPLACE_ONE)
)
"""σ, releases, records of a unit and relation of the noisy counts whose δ is summed exactly."""

LEAST_DELTA = 1e-12
"""Smaller δ are not compared: what is kept back for rounding would hide any difference."""


def reported_epsilon(*events: Event) -> float:
    """The smallest ε that any of our accountants reports: each of them must hold."""
    return min(epsilon_of(events, DELTA, accountant) for accountant in ACCOUNTANTS)


def _against(claimed: float, attained: float) -> Finding:
    return Finding(claimed=claimed, observed=attained)


def _replaced_gaussian(claimed: float | None = None) -> Finding:
    """A replaced record moves a sum by √2; σ = 1."""
    if claimed is None:
        claimed = reported_epsilon(GaussianEvent(noise_multiplier=1.0 / math.sqrt(2.0)))
    return _against(claimed, tail_epsilon(point(math.sqrt(2.0), 1.0), point(0.0, 1.0), DELTA))


def _library_replace_one() -> Finding:
    """Planted: the library's Rényi accountant, whose replace-one mode changes nothing."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = RdpAccountant(neighboring_relation=relation)
    accountant.compose(dp_accounting.GaussianDpEvent(1.0))
    return _replaced_gaussian(float(accountant.get_epsilon(DELTA)))


def _classical_gaussian() -> Finding:
    """Planted: σ = √(2 ln(1.25/δ)) / ε used at ε = 15 (errata B-003.1)."""
    target = 15.0
    std = math.sqrt(2.0 * math.log(1.25 / DELTA)) / target
    return _against(target, tail_epsilon(point(1.0, std), point(0.0, std), DELTA))


def _sampled() -> Finding:
    """Sum of 25 noisy steps, q = 0.1, σ = 5; the event gets its noise as an int, as users do."""
    event = PoissonGaussianEvent(sampling_probability=0.1, noise_multiplier=5, steps=25)
    present = binomial_mixture(25, 0.1, 1.0, 25.0)
    return _against(reported_epsilon(event), tail_epsilon(present, point(0.0, 25.0), DELTA))


def _library_integer_noise() -> Finding:
    """Planted: the library's Rényi accountant forgets composition where the noise is an int (A.0).

    One sample of the records is released 25 times, which is one release of a fifth of the noise.
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    releases = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(5), 25)
    accountant = RdpAccountant().compose(dp_accounting.PoissonSampledDpEvent(0.1, releases))
    attained = tail_epsilon(binomial_mixture(1, 0.1, 1.0, 1.0), point(0.0, 1.0), DELTA)
    return _against(float(accountant.get_epsilon(DELTA)), attained)


def _counted(*, continuous: bool = False) -> Finding:
    """The largest ratio of δ of noisy counts, summed over all integers, to what is charged."""
    ratios = []
    for noise_std, rounds, records, relation in COUNTED:
        event = histogram_event(
            noise="gaussian", scale=noise_std, relation=relation, max_records_per_unit=records
        )
        events: list[Event] = [event] * rounds
        if continuous:
            multiplier = 1.0 / math.sqrt(2.0 * rounds * float(event.rho))
            events = [GaussianEvent(noise_multiplier=multiplier)]
        epsilons = np.linspace(0.1, 6.0, 40).tolist()
        charged = privacy_profile(events, epsilons, "tight")
        shifts = [records] * rounds * relation.records_changed
        exact = np.array([counts_delta(noise_std, shifts, epsilon) for epsilon in epsilons])
        seen = exact > LEAST_DELTA
        ratios.append(float((exact[seen] / np.asarray(charged)[seen]).max()))
    return Finding(claimed=1.0, observed=max(ratios))


def _counts_as_continuous() -> Finding:
    """Planted: integer noise priced as a continuous Gaussian of the same σ, as before 0.2.0."""
    return _counted(continuous=True)


def _sampled_replaced(*, claimed_replaced: bool) -> Finding:
    """Each of four full batches moves by 2 where a record is replaced."""
    event = PoissonGaussianEvent(
        sampling_probability=1.0, noise_multiplier=4.0, steps=4, replaced=claimed_replaced
    )
    attained = tail_epsilon(point(8.0, 8.0), point(0.0, 8.0), DELTA)
    return _against(reported_epsilon(event), attained)


def _shuffled_as_poisson() -> Finding:
    """Planted: one epoch of ten shuffled batches, accounted as Poisson (errata B-002.1)."""
    event = PoissonGaussianEvent(sampling_probability=0.1, noise_multiplier=0.7, steps=10)
    return _against(reported_epsilon(event), shuffled_epsilon(0.7, 10, DELTA))


def _cut(event: Event) -> Finding:
    present, absent = cut_batch_pair(**CUT)
    return _against(reported_epsilon(event), tail_epsilon(present, absent, DELTA))


def _cut_as_poisson() -> Finding:
    """Planted: a cut sample accounted as a plain Poisson sample."""
    return _cut(PoissonGaussianEvent(sampling_probability=0.9, noise_multiplier=3.0, steps=1))


def _repeated(event: Event, eta: float) -> Finding:
    """Sixty two-valued outcomes whose log-likelihood ratio ranges over `eta`."""
    return _against(reported_epsilon(event), binomial_epsilon(eta, 60, DELTA))


def _audit(
    mechanism: str,
    event: str,
    observe: Callable[[], Finding],
    planted: Mapping[Bug, Callable[[], Finding]],
) -> Audit:
    return Audit(
        name=f"accountant-{mechanism.replace(' ', '-')}",
        mechanism=f"accountant of {mechanism}",
        events=(event,),
        claim="No accountant of ours reports an ε below what an explicit attack attains.",
        measure=f"ε at δ = {declared(DELTA)}",
        kind=AuditKind.EXACT,
        observe=observe,
        planted=planted,
    )


TOKENS = BoundedRangeEvent(eta=0.5, count=60)
PURE = PureEvent(epsilon=0.25, count=60)

AUDITS = (
    _audit(
        "gaussian releases",
        "gaussian",
        _replaced_gaussian,
        {
            Bug.WRONG_RELATION: _library_replace_one,
            Bug.CLASSICAL_GAUSSIAN: _classical_gaussian,
        },
    ),
    Audit(
        name="accountant-noisy-counts",
        mechanism="accountant of counts with discrete Gaussian noise",
        events=("discrete_gaussian",),
        claim="δ that is charged is no less than δ summed over all integers, at every ε.",
        measure="largest ratio of exact to charged δ",
        kind=AuditKind.EXACT,
        observe=_counted,
        planted={Bug.CONTINUOUS_NOISE: _counts_as_continuous},
    ),
    _audit(
        "sampled gradients",
        "poisson_gaussian",
        _sampled,
        {Bug.INTEGER_NOISE: _library_integer_noise, Bug.SHUFFLED: _shuffled_as_poisson},
    ),
    _audit(
        "replaced gradients",
        "poisson_gaussian",
        lambda: _sampled_replaced(claimed_replaced=True),
        {Bug.WRONG_RELATION: lambda: _sampled_replaced(claimed_replaced=False)},
    ),
    _audit(
        "cut samples",
        "truncated_poisson_gaussian",
        lambda: _cut(TruncatedPoissonGaussianEvent(**CUT, steps=1)),
        {Bug.UNCUT: _cut_as_poisson},
    ),
    _audit(
        "token draws",
        "bounded_range",
        lambda: _repeated(TOKENS, TOKENS.eta),
        {Bug.WRONG_RELATION: lambda: _repeated(TOKENS, 2 * TOKENS.eta)},
    ),
    _audit(
        "pure releases",
        "pure",
        lambda: _repeated(PURE, 2 * PURE.epsilon),
        {Bug.HALVED_NOISE: lambda: _repeated(PURE, 4 * PURE.epsilon)},
    ),
)
