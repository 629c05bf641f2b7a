"""One-run audits of DP-SGD against its whole claimed trade-off curve, with planted bugs.

Canary i's gradient is a multiple of unit vector i beyond the clip bound, so one training run
holds hundreds of independent trials: coordinates of canaries in the data against coordinates of
canaries that were left out. False alarm: at most 1e-6 for each audit.
"""

import functools

import numpy as np
import pytest
import torch

from dpsynth_assets.attacks.audits.gradients import private_gradient
from dpsynth_assets.attacks.audits.statistics import audit_scores, event_curve
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.per_example import LossOfPart, PerExampleGradients, opacus_layers
from dpsynth_assets.privacy.units import NeighboringRelation

ADD_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation
CANARIES = 1_000
FULL = {"sampling_probability": 1.0, "noise_multiplier": 1.0, "steps": 4}


def mechanism(relation=ADD_REMOVE, **settings):
    return DpSgdMechanism(
        l2_bound=0.5,
        expected_batch_size=CANARIES / 2,
        relation=relation,
        most_in_company=2 * CANARIES,
        gradient_slack=0.0,
        **settings,
    )


@functools.cache
def claim(relation=ADD_REMOVE, **settings):
    return event_curve([mechanism(relation, **settings).event()])


def gradients(batch):
    rows = torch.zeros(len(batch), 2 * CANARIES)
    rows[torch.arange(len(batch)), torch.from_numpy(batch)] = 3.0
    return rows


def train(tested, gradients_of=lambda batch: [gradients(batch)], records=CANARIES):
    """Sums of the released gradients, in units of the clip bound: (with, without) canaries."""
    total = torch.zeros(2 * CANARIES)
    for batch in tested.batches(records):
        total += sum(private_gradient(tested, gradients_of(batch)))
    scores = total.double().numpy() * tested.expected_batch_size / tested.l2_bound
    return scores[:CANARIES], scores[CANARIES:]


def opposite_halves(batch):
    """Records beyond the canaries point against theirs: what each canary was replaced with."""
    rows = gradients(batch)
    rows[torch.from_numpy(batch) >= CANARIES] *= -1.0
    return [rows]


@pytest.mark.statistical
def test_replacements_stay_within_the_replace_one_claim():
    tested = mechanism(REPLACE_ONE, **FULL)
    scores = train(tested, opposite_halves, 2 * CANARIES)
    assert not audit_scores(*scores, claim(REPLACE_ONE, **FULL)).refuted


@pytest.mark.statistical
def test_parameters_clipped_one_by_one_are_caught():
    # Planted bug: each of four parameters is clipped to C on its own; together they move by 2C.
    each = [train(mechanism(**FULL)) for _ in range(4)]
    scores = np.sum(each, axis=0)
    assert audit_scores(*scores, claim(**FULL)).refuted


@pytest.mark.statistical
def test_joint_clipping_of_four_parameters_holds():
    tested = mechanism(**FULL)
    scores = train(tested, lambda batch: [gradients(batch)] * 4)
    assert not audit_scores(*scores, claim(**FULL)).refuted


class Weighted(torch.nn.Module):
    """A layer that book-keeping does not know."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2 * CANARIES))

    def forward(self, rows):
        return (rows * self.weight).sum(dim=1)


def train_with_opacus(tested):
    """As `train`, with gradients that Opacus computes record by record."""
    model = Weighted()
    assert opacus_layers(model)
    clipped, total = PerExampleGradients(model), torch.zeros(2 * CANARIES)
    for batch in tested.batches(CANARIES):
        rows = gradients(batch)
        part = LossOfPart(len(batch), lambda model, rows=rows: model(rows))
        total += tested.private_gradient_of_losses(clipped, [part])[0]
    scores = total.double().numpy() * tested.expected_batch_size / tested.l2_bound
    return scores[:CANARIES], scores[CANARIES:]


@pytest.mark.statistical
def test_gradients_from_opacus_stay_within_the_claim_and_halved_noise_is_caught():
    honest = mechanism(**FULL)
    halved = mechanism(**{**FULL, "noise_multiplier": 0.5})
    assert not audit_scores(*train_with_opacus(honest), claim(**FULL)).refuted
    assert audit_scores(*train_with_opacus(halved), claim(**FULL)).refuted
