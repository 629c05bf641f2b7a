"""Audits of DP-SGD: how far one record changes a clipped sum, and what a noisy run reveals.

Orthogonal gradient canaries make one training run many independent trials. Record i's gradient is
the clip bound along coordinate i, so under the documented mechanism the noisy gradients of
different coordinates are independent; coordinates without a record are the other world. The score
is the log-likelihood ratio of a coordinate's T values, the best there is.

Clipping is tried on a model as small as it can be with an embedding that is also the output layer:
two uses of one parameter, whose gradients must be added before the norm is taken.

Shape letters: T steps, M canaries.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.attacks.audits.audit import ADD_REMOVE, Audit, Bug, Finding, told_apart
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.per_example import LossOfPart, PerExampleGradients, Products

if TYPE_CHECKING:
    import torch

CANARIES = 1000
L2_BOUND = 2.0


def one_step(**changes: Any) -> DpSgdMechanism:
    """One step over all records with noise of one bound, but for what changes."""
    settings: dict[str, Any] = {
        "l2_bound": L2_BOUND,
        "noise_multiplier": 1.0,
        "sampling_probability": 1.0,
        "steps": 1,
        "expected_batch_size": 1.0,
        "relation": ADD_REMOVE,
    }
    return DpSgdMechanism(**{**settings, **changes})


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """A claimed run; `runs` of them are pooled, each with fresh batches and noise."""

    sampling_probability: float
    noise_multiplier: float
    steps: int
    runs: int

    def mechanism(self, noise_share: float = 1.0) -> DpSgdMechanism:
        """The real mechanism with a share of the claimed noise."""
        return one_step(
            noise_multiplier=self.noise_multiplier * noise_share,
            sampling_probability=self.sampling_probability,
            steps=self.steps,
            expected_batch_size=self.sampling_probability * CANARIES,
            most_in_company=2 * CANARIES,
            gradient_slack=0.0,
        )

    def measure(self, values: Sequence[np.ndarray], noise_multiplier: float) -> Finding:
        """Tests (T, 2M) values in units of the clip bound; records sit in the first M columns."""
        q, variance = self.sampling_probability, noise_multiplier**2
        ratios = [
            np.log1p(q * np.expm1((2.0 * run - 1.0) / (2.0 * variance))).sum(axis=0)
            for run in values
        ]
        scores = np.stack(ratios).reshape(len(values), 2, CANARIES)
        return told_apart(scores[:, 0], scores[:, 1], self.mechanism().event())


FULL = _Setting(sampling_probability=1.0, noise_multiplier=2.0, steps=4, runs=3)
POISSON = _Setting(sampling_probability=0.5, noise_multiplier=0.3, steps=2, runs=4)


def private_gradient(mechanism: DpSgdMechanism, rows: Sequence["torch.Tensor"]) -> list[Any]:
    """Releases a batch whose records have given gradients, by the passes that training takes.

    A linear layer has the row that it is given for its gradient.

    Args:
        mechanism: A batch of it was drawn.
        rows: (B, d) gradients for each of several parameters.

    Returns:
        (d,) noisy mean gradients.
    """
    records = len(rows[0])
    together = max(1, records if mechanism.may_share_passes(records) else 1)
    parts = [
        LossOfPart(len(some[0]), lambda model, some=some: model(*some))  # type: ignore[misc]
        for some in zip(*(each.split(together) for each in rows), strict=True)
        if len(some[0])
    ]
    gradients = linear_layers(tuple(each.shape[1] for each in rows))
    return [each[0] for each in mechanism.private_gradient_of_losses(gradients, parts)]


@cache
def linear_layers(
    widths: tuple[int, ...], products: Products = Products.NATIVE
) -> PerExampleGradients:
    """Clips gradients of layers of one output each: what a record puts into a layer."""
    from torch import nn

    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(width, 1, bias=False) for width in widths)

        def forward(self, *given: Any) -> Any:
            pairs = zip(self.layers, given, strict=True)
            return sum(layer(each[:, None])[:, 0, 0] for layer, each in pairs)

    return PerExampleGradients(Linear(), products)


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
        private_gradient(mechanism, [gradients[torch.from_numpy(batch)]])[0].numpy()
        for batch in mechanism.batches(len(gradients))
    ]
    return np.stack(released).astype(np.float64) * (mechanism.expected_batch_size / L2_BOUND)


def _measure(setting: _Setting, noise_share: float = 1.0, *, replaced: bool = False) -> Finding:
    values = [_train(setting, noise_share, replaced=replaced) for _ in range(setting.runs)]
    return setting.measure(values, setting.noise_multiplier * noise_share)


def _by_hand(setting: _Setting, *, shuffled: bool = False, length: float = 1.0) -> Finding:
    """Planted: DP-SGD written out with a library generator, wrong in one respect.

    Either equal batches of a shuffled epoch, as most training loops draw them, or gradients of
    `length` clip bounds, unclipped.
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


RECORDS, TOKENS, VOCABULARY, WIDTH = 7, 6, 11, 8
MICRO_BATCH = 3
TIED_BOUND = 0.25
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
        found, _ = clipped.private_clipped_sums(_parts(tokens), TIED_BOUND)
        return torch.cat([each.flatten() for each in found])

    return sums


def _flat_gradient(model: Any, loss: Any) -> Any:
    import torch

    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([each.flatten() for each in gradients])


def _clipped(gradient: Any, norm: Any) -> Any:
    return gradient * min(1.0, TIED_BOUND / float(norm))


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
    return Finding(claimed=TIED_BOUND, observed=max(moves))


def _sizes(*, realised: bool) -> Finding:
    """Can one see from the size of a noisy gradient whether one more record took part?

    All gradients are zero, so that a batch of two and a batch of one differ in nothing else.
    """
    import torch

    company = {"expected_batch_size": 2.0, "most_in_company": 2, "gradient_slack": 0.0}

    def scores(records: int) -> np.ndarray:
        found = []
        mechanism = one_step(steps=TRIALS, **company)
        for batch in mechanism.batches(records):
            (released,) = private_gradient(mechanism, [torch.zeros(len(batch), COORDINATES)])
            if realised:
                released = released * (mechanism.expected_batch_size / len(batch))
            found.append(-float(released.square().sum()))
        return np.array(found)

    return told_apart(scores(2), scores(1), one_step(**company).event())


AUDITS = (
    Audit.named(
        "dp-sgd-full-batch",
        lambda: _measure(FULL),
        {
            Bug.HALVED_NOISE: lambda: _measure(FULL, 0.5),
            Bug.WRONG_RELATION: lambda: _measure(FULL, replaced=True),
            Bug.UNCLIPPED: lambda: _by_hand(FULL, length=3.0),
        },
    ),
    Audit.named(
        "dp-sgd-poisson",
        lambda: _measure(POISSON),
        {
            Bug.HALVED_NOISE: lambda: _measure(POISSON, 0.5),
            Bug.SHUFFLED: lambda: _by_hand(POISSON, shuffled=True),
        },
    ),
    *(
        Audit.named(
            f"clipped-sum-{products}",
            lambda products=products: _largest_move(_kernel_sums(products)),  # type: ignore[misc]
            {
                Bug.TIED_USE_FORGOTTEN: lambda: _largest_move(_one_use_forgotten),
                Bug.CLIPPED_BY_PART: lambda: _largest_move(_clipped_by_part),
            },
        )
        for products in Products
    ),
    Audit.named(
        "dp-sgd-fixed-divisor",
        lambda: _sizes(realised=False),
        {Bug.PRIVATE_DENOMINATOR: lambda: _sizes(realised=True)},
    ),
)
