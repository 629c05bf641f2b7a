"""Audits of DP-SGD: orthogonal gradient canaries make one training run many independent trials.

Record i's gradient is the clip bound along coordinate i, so under the documented mechanism the
noisy gradients of different coordinates are independent; coordinates without a record are the
other world. The score is the log-likelihood ratio of a coordinate's T values, the best there is.
Shape letters: T steps, M canaries.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpsynth_assets.attacks.audits.audit import Audit, AuditKind, Bug, Finding
from dpsynth_assets.attacks.audits.statistics import audit_scores, event_curve
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism, dp_sgd_event
from dpsynth_assets.privacy.units import NeighboringRelation

CANARIES = 1000
L2_BOUND = 2.0
RELATION = NeighboringRelation.ADD_REMOVE


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """A claimed run; `runs` of them are pooled, each with fresh batches and noise."""

    sampling_probability: float
    noise_multiplier: float
    steps: int
    runs: int

    def mechanism(self, noise_share: float) -> DpSgdMechanism:
        """The real mechanism with a share of the claimed noise."""
        return DpSgdMechanism(
            l2_bound=L2_BOUND,
            noise_multiplier=self.noise_multiplier * noise_share,
            sampling_probability=self.sampling_probability,
            steps=self.steps,
            expected_batch_size=self.sampling_probability * CANARIES,
            relation=RELATION,
        )

    def measure(self, values: Sequence[np.ndarray], noise_multiplier: float) -> Finding:
        """Tests (T, 2M) values in units of the clip bound; records sit in the first M columns."""
        q, variance = self.sampling_probability, noise_multiplier**2
        ratios = [
            np.log1p(q * np.expm1((2.0 * run - 1.0) / (2.0 * variance))).sum(axis=0)
            for run in values
        ]
        scores = np.stack(ratios).reshape(len(values), 2, CANARIES)
        claimed = dp_sgd_event(
            sampling_probability=q,
            noise_multiplier=self.noise_multiplier,
            steps=self.steps,
            relation=RELATION,
        )
        return Finding.of(audit_scores(scores[:, 0], scores[:, 1], event_curve([claimed])))


FULL = _Setting(sampling_probability=1.0, noise_multiplier=2.0, steps=4, runs=3)
POISSON = _Setting(sampling_probability=0.5, noise_multiplier=0.3, steps=2, runs=4)


def _train(setting: _Setting, noise_share: float, *, replaced: bool) -> np.ndarray:
    """Runs the real mechanism; returns (T, 2M) noisy sums in units of the clip bound.

    Gradients are three times as long as the bound, so a mechanism that does not clip fails.
    """
    import torch

    mechanism = setting.mechanism(noise_share)
    gradients = 3.0 * L2_BOUND * torch.eye(CANARIES, 2 * CANARIES)
    if replaced:  # the records of the other world point the other way
        gradients = torch.cat([gradients, -gradients.roll(CANARIES, dims=1)])
    released = [
        mechanism.private_gradient([gradients[torch.from_numpy(batch)]])[0].numpy()
        for batch in mechanism.batches(len(gradients))
    ]
    return np.stack(released).astype(np.float64) * (mechanism.expected_batch_size / L2_BOUND)


def _measure(setting: _Setting, noise_share: float = 1.0, *, replaced: bool = False) -> Finding:
    values = [_train(setting, noise_share, replaced=replaced) for _ in range(setting.runs)]
    return setting.measure(values, setting.noise_multiplier * noise_share)


def _by_hand(setting: _Setting, *, shuffled: bool = False, length: float = 1.0) -> Finding:
    """Planted: DP-SGD written out with a library generator, wrong in one respect.

    Either equal batches of a shuffled epoch, as most training loops draw them, or gradients of
    `length` clip bounds that nobody clips.
    """
    generator = np.random.default_rng()
    batches = round(1 / setting.sampling_probability)

    def run() -> np.ndarray:
        chosen = generator.random((setting.steps, CANARIES)) < setting.sampling_probability
        if shuffled:
            places = generator.permuted(np.arange(CANARIES) % batches)
            chosen = np.arange(setting.steps)[:, None] % batches == places
        noise = setting.noise_multiplier * generator.normal(size=(setting.steps, 2 * CANARIES))
        return noise + length * np.pad(chosen, ((0, 0), (0, CANARIES)))

    return setting.measure([run() for _ in range(setting.runs)], setting.noise_multiplier)


def _audit(name: str, setting: _Setting, planted: Mapping[Bug, Callable[[], Finding]]) -> Audit:
    return Audit(
        name=name,
        mechanism="DP-SGD gradients",
        events=("poisson_gaussian",),
        claim="A whole run tells neighbours apart no better than its event says.",
        measure="true-positive rate",
        kind=AuditKind.STATISTICAL,
        observe=lambda: _measure(setting),
        planted={Bug.HALVED_NOISE: lambda: _measure(setting, 0.5), **planted},
    )


AUDITS = (
    _audit(
        "dp-sgd-full-batch",
        FULL,
        {
            Bug.WRONG_RELATION: lambda: _measure(FULL, replaced=True),
            Bug.UNCLIPPED: lambda: _by_hand(FULL, length=3.0),
        },
    ),
    _audit(
        "dp-sgd-poisson",
        POISSON,
        {Bug.SHUFFLED: lambda: _by_hand(POISSON, shuffled=True)},
    ),
)
