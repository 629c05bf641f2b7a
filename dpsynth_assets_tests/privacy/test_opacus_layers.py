"""Laws of layers that book-keeping leaves to Opacus: gradients are those of one record alone."""

import pytest
import torch
from torch import nn

from dpsynth_assets.privacy.per_example import (
    GRADIENT_SLACK,
    LossOfPart,
    PerExampleGradients,
    Products,
)
from dpsynth_assets_tests.privacy.small_models import (
    VOCABULARY,
    clipped_sum,
    one_at_a_time,
    small,
)

BATCH, TOKENS = 5, 7
HUGE = 1e3


class Scaled(nn.Module):
    """A parameter of its own beside a linear layer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 2.0, 8))
        self.linear = nn.Linear(8, 8)

    def forward(self, rows):
        return self.linear(rows) * self.scale


class SquaredRMSNorm(nn.Module):
    """Bears the name of a norm and computes something else."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((8,), 1.5))

    def forward(self, rows):
        return rows * self.weight**2


class Convolved(nn.Module):
    """Convolutions over the tokens, among layers that book-keeping knows."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.first = nn.Conv1d(8, 8, 3, padding=1, groups=2)
        self.scaled = Scaled()
        self.norm = SquaredRMSNorm()
        self.head = nn.Linear(8, VOCABULARY, bias=False)

    def forward(self, input_ids, attention_mask=None, use_cache=False):
        real = attention_mask[..., None]
        mixed = self.first((self.embed(input_ids) * real).mT).mT * real
        mixed = mixed + self.first(mixed.mT).mT  # the same layer twice
        return Logits(self.head(self.norm(self.scaled(mixed))))


class Logits:
    def __init__(self, logits):
        self.logits = logits


def convolved(_name=None):
    torch.manual_seed(0)
    return Convolved().eval()


MODELS = {**dict.fromkeys(("Cohere", "Nemotron", "Mamba"), small), "convolutions": convolved}


def tokens():
    drawn = torch.randint(
        3, VOCABULARY, (BATCH, TOKENS), generator=torch.Generator().manual_seed(1)
    )
    mask = torch.ones_like(drawn)
    for row, length in enumerate((7, 6, 4, 7, 2)):
        mask[row, length:] = 0
    return drawn, mask


def losses(model, rows):
    """(B,) mean losses of rows, padded to the longest of them."""
    inputs, mask = (each[rows] for each in tokens())
    longest = int(mask.sum(dim=1).max())
    inputs, mask = inputs[:, :longest], mask[:, :longest]
    inputs = inputs * mask + 1 - mask
    logits = model(input_ids=inputs, attention_mask=mask, use_cache=False).logits
    each = nn.functional.cross_entropy(logits[:, :-1].mT, inputs[:, 1:], reduction="none")
    return (each * mask[:, 1:]).sum(dim=1) / mask[:, 1:].sum(dim=1)


def parts(*groups):
    return [LossOfPart(len(rows), lambda model, rows=rows: losses(model, rows)) for rows in groups]


def clipped(model, groups, bound, products=Products.NATIVE, threads=1):
    return clipped_sum(PerExampleGradients(model, products, threads), parts(*groups), bound)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("products", Products)
def test_clipped_sums_are_those_of_autograd_one_record_at_a_time(name, products):
    model = MODELS[name](name)
    gradients = one_at_a_time(model, losses, BATCH)
    bound = float(gradients.norm(dim=1).median())
    scales = (bound / gradients.norm(dim=1, keepdim=True)).clamp(max=1.0)
    found = clipped(model, [[0, 1, 2], [3, 4]], bound, products)
    expected = (gradients * scales).sum(dim=0)
    assert (found - expected).norm() / expected.norm() < 2 * products.clip_margin
    for row in range(BATCH):
        alone = clipped(model, [[row]], HUGE, products)
        torch.testing.assert_close(alone, gradients[row], rtol=1e-4, atol=1e-6)
    whole = clipped(model, [list(range(BATCH))], HUGE, products)
    torch.testing.assert_close(whole, gradients.sum(dim=0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_mates_move_what_a_record_adds_by_less_than_the_slack(name):
    # The slack that is charged for float32, at least eight times what is found.
    model, bound = MODELS[name](name), 0.1
    alone = clipped(model, [[2]], bound)
    for mates in ([0], [4], [0, 1, 3, 4]):
        moved = clipped(model, [[*mates, 2]], bound)
        moved -= sum(clipped(model, [[mate]], bound) for mate in mates) + alone
        assert moved.norm() <= len(mates) * GRADIENT_SLACK * bound / 8


def test_threads_change_no_sum_and_the_model_is_left_as_it_was():
    model = convolved()
    groups = [[0], [1, 2], [3], [4]]
    alone = clipped(model, groups, 0.3)
    torch.testing.assert_close(clipped(model, groups, 0.3, threads=2), alone, rtol=1e-5, atol=1e-7)
    assert all(each.requires_grad and each.grad is None for each in model.parameters())
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    assert not any(hasattr(each, "ft_compute_sample_grad") for each in model.modules())


def test_a_record_without_a_finite_gradient_adds_zero():
    model = convolved()
    spoilt = LossOfPart(3, lambda model: losses(model, [0, 1, 2]) * torch.tensor([1, torch.inf, 1]))
    found = clipped_sum(PerExampleGradients(model), [spoilt], 0.5)
    torch.testing.assert_close(found, clipped(model, [[0, 2]], 0.5), rtol=1e-4, atol=1e-6)


# What is refused, in one line


class Buffered(Scaled):
    def __init__(self):
        super().__init__()
        self.register_buffer("offset", torch.zeros(8))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.scaled = Scaled()
        self.scaled.linear.weight = self.linear.weight

    def forward(self, rows):
        return self.scaled(self.linear(rows))


class Masking(Scaled):
    def forward(self, rows, mask=None):
        return super().forward(rows * mask)


class Around(nn.Module):
    """A model around one layer."""

    def __init__(self, kind=Scaled):
        super().__init__()
        self.layer = kind()


class Untraced(Around):
    """Passes its layer rows of the batch that nobody followed."""

    def forward(self, rows):
        return self.layer(rows, mask=torch.from_numpy(rows.detach().numpy().copy()))


class NotOfTheBatch(Around):
    def forward(self, rows):
        return rows + self.layer(torch.ones(1, 8), mask=torch.ones(1))


class Cached(Around):
    """Passes its layer an object that might be changed."""

    def forward(self, rows):
        return self.layer(rows, {})


class Caching(Scaled):
    def forward(self, rows, cache):
        return super().forward(rows)


class Branching(Scaled):
    """Does one thing or another by a value of the batch."""

    def forward(self, rows):
        return super().forward(rows) if rows.sum() > 0 else rows


class Flattened(Scaled):
    def forward(self, rows):
        return super().forward(rows.flatten(0, 1))


class FlattenedBefore(Around):
    def forward(self, rows):
        return self.layer(rows.flatten(0, 1)).view_as(rows)


class ReadElsewhere(Around):
    def forward(self, rows):
        return self.layer(rows) * self.layer.scale


class Twice(Scaled):
    def forward(self, rows):
        return super().forward(rows), rows * self.scale


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Buffered, "Buffered, which has buffers"),
        (Tied, "one that other layers share"),
        (lambda: Cached(Caching), "tensors, numbers and texts, got a dict"),
        (lambda: Untraced(Masking), "can vectorise, got a Masking"),
        (lambda: NotOfTheBatch(Masking), "computed from those that the model is given, got others"),
        (Branching, "can vectorise, got a Branching"),
        (Flattened, "one row for each example"),
        (FlattenedBefore, "one row for each example"),
        (ReadElsewhere, r"layer\.scale .*another reader"),
        (Twice, "Twice, .*one row for each example"),
    ],
)
def test_what_opacus_cannot_do_is_refused_in_one_line(model, message):
    part = LossOfPart(3, lambda model: model(torch.ones(3, 2, 8)).square().sum(dim=(1, 2)))
    with pytest.raises(TypeError, match=message) as refusal:
        PerExampleGradients(model()).private_clipped_sums([part], 1.0)
    assert "\n" not in str(refusal.value)


def test_tensors_that_a_layer_is_given_beside_the_first_are_each_examples_own_or_shared():
    class Shifted(Scaled):
        def forward(self, rows, masks, *, offset):
            return super().forward(rows * masks[0] + offset)

    class Given(Around):
        def forward(self, rows):
            return self.layer(rows, (rows > 0, None), offset=torch.arange(8.0))

    torch.manual_seed(0)
    model, rows = Given(Shifted), torch.randn(3, 2, 8)
    part = LossOfPart(3, lambda model: model(rows).square().sum(dim=(1, 2)))
    found, _ = PerExampleGradients(model).private_clipped_sums([part], HUGE)
    expected = torch.autograd.grad(model(rows).square().sum(), list(model.parameters()))
    for each, other in zip(found, expected, strict=True):
        torch.testing.assert_close(each.float(), other)
