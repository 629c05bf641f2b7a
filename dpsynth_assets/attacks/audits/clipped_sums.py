"""Audits of clipping inside a model: what one record moves, and what sums are divided by.

The model is as small as it can be with an embedding that is also the output layer: two uses of one
parameter, whose gradients must be added before the norm is taken.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpsynth_assets.attacks.audits.audit import Audit, AuditKind, Bug, Finding
from dpsynth_assets.attacks.audits.statistics import audit_scores, event_curve
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.per_example import LossOfPart, PerExampleGradients, Products
from dpsynth_assets.privacy.units import NeighboringRelation

EVENTS = ("poisson_gaussian", "truncated_poisson_gaussian")
RELATION = NeighboringRelation.ADD_REMOVE
RECORDS, TOKENS, VOCABULARY, WIDTH = 7, 6, 11, 8
MICRO_BATCH = 3
L2_BOUND = 0.25
TRIALS, COORDINATES = 1_500, 400

Sums = Callable[[Any, Any], Any]
"""A model and (N, T) token ids to the flat sum of clipped gradients."""


def _model() -> Any:
    """A next-token model with tied embeddings, a norm and a hidden layer; public weights."""
    import torch
    from torch import nn

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.forgets_lookup = False
            self.embedding = nn.Embedding(VOCABULARY, WIDTH)
            self.hidden = nn.Linear(WIDTH, WIDTH)
            self.norm = nn.LayerNorm(WIDTH)
            self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
            self.output.weight = self.embedding.weight

        def forward(self, tokens: Any) -> Any:
            looked_up = self.embedding(tokens)
            if self.forgets_lookup:
                looked_up = looked_up.detach()
            states = torch.tanh(self.hidden(looked_up))
            return self.output(self.norm(states))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return Tied()


def _losses(model: Any, tokens: Any) -> Any:
    """(B,) mean next-token losses of (B, T) tokens."""
    from torch.nn.functional import cross_entropy

    logits = model(tokens[:, :-1]).mT
    return cross_entropy(logits, tokens[:, 1:], reduction="none").mean(dim=1)


def _parts(tokens: Any) -> list[LossOfPart]:
    return [
        LossOfPart(len(part), lambda model, part=part: _losses(model, part))  # type: ignore[misc]
        for part in tokens.split(MICRO_BATCH)
        if len(part)
    ]


def _kernel_sums(products: Products) -> Sums:
    import torch

    def sums(model: Any, tokens: Any) -> Any:
        clipped = PerExampleGradients(model, products)
        found, _ = clipped.private_clipped_sums(_parts(tokens), L2_BOUND)
        return torch.cat([each.flatten() for each in found])

    return sums


def _flat_gradient(model: Any, loss: Any) -> Any:
    import torch

    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([each.flatten() for each in gradients])


def _clipped(gradient: Any, norm: Any) -> Any:
    return gradient * min(1.0, L2_BOUND / float(norm))


def _one_use_forgotten(model: Any, tokens: Any) -> Any:
    """Planted: the norm sees the embedding's gradient as an output layer only."""
    import torch

    total = torch.zeros(1)
    for row in tokens.split(1):
        gradient = _flat_gradient(model, _losses(model, row).sum())
        model.forgets_lookup = True
        seen = _flat_gradient(model, _losses(model, row).sum())
        model.forgets_lookup = False
        total = total + _clipped(gradient, seen.norm())
    return total


def _clipped_by_part(model: Any, tokens: Any) -> Any:
    """Planted: the gradient of each micro-batch is clipped as one."""
    import torch

    total = torch.zeros(1)
    for part in tokens.split(MICRO_BATCH):
        gradient = _flat_gradient(model, _losses(model, part).sum())
        total = total + _clipped(gradient, gradient.norm())
    return total


def _largest_move(sums: Sums) -> Finding:
    """Adds one record in front, so that every micro-batch changes; several data sets."""
    import torch

    model = _model()
    generator = np.random.default_rng(11)
    moves = []
    for _ in range(8):
        tokens = torch.from_numpy(generator.integers(0, VOCABULARY, (RECORDS, TOKENS)))
        record = torch.from_numpy(generator.integers(0, VOCABULARY, (1, TOKENS)))
        with_record = sums(model, torch.cat([record, tokens]))
        moves.append(float((with_record - sums(model, tokens)).detach().norm()))
    return Finding(claimed=L2_BOUND, observed=max(moves))


def _mechanism() -> DpSgdMechanism:
    return DpSgdMechanism(
        l2_bound=L2_BOUND,
        noise_multiplier=1.0,
        sampling_probability=1.0,
        steps=1,
        expected_batch_size=2.0,
        relation=RELATION,
    )


def _sizes(*, realised: bool) -> Finding:
    """Can one see from the size of a noisy gradient whether one more record took part?

    All gradients are zero, so that a batch of two and a batch of one differ in nothing else.
    """
    import torch

    def scores(records: int) -> np.ndarray:
        found = []
        for _ in range(TRIALS):
            mechanism = _mechanism()
            (batch,) = mechanism.batches(records)
            gradient = torch.zeros(len(batch), COORDINATES)
            released = mechanism.private_gradient([gradient])[0]
            if realised:
                released = released * (mechanism.expected_batch_size / len(batch))
            found.append(-float(released.square().sum()))
        return np.array(found)

    claimed = event_curve([_mechanism().event()])
    return Finding.of(audit_scores(scores(2), scores(1), claimed))


AUDITS = (
    *(
        Audit(
            name=f"clipped-sum-{products}",
            mechanism=f"book-keeping of clipped gradients, {products} products",
            events=EVENTS,
            claim="One record moves the clipped sum over all parameters by at most the bound.",
            measure="Euclidean distance",
            kind=AuditKind.EXACT,
            observe=lambda products=products: _largest_move(_kernel_sums(products)),  # type: ignore[misc]
            planted={
                Bug.TIED_USE_FORGOTTEN: lambda: _largest_move(_one_use_forgotten),
                Bug.CLIPPED_BY_PART: lambda: _largest_move(_clipped_by_part),
            },
        )
        for products in Products
    ),
    Audit(
        name="dp-sgd-fixed-divisor",
        mechanism="DP-SGD gradients",
        events=EVENTS,
        claim="The scale of a noisy gradient does not tell the size of its batch.",
        measure="true-positive rate",
        kind=AuditKind.STATISTICAL,
        observe=lambda: _sizes(realised=False),
        planted={Bug.PRIVATE_DENOMINATOR: lambda: _sizes(realised=True)},
    ),
)
