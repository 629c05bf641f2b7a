"""Laws of which row is whose: nothing is booked by a coincidence of sizes."""

import pytest
import torch
from torch import nn

from dpsynth_assets.privacy.per_example import LossOfPart, PerExampleGradients, Products
from dpsynth_assets.privacy.per_example.recording import Descent, following
from dpsynth_assets_tests.privacy.small_models import (
    VOCABULARY,
    clipped_sum,
    one_at_a_time,
    small,
)

TOKENS = 6
SIZES = [("T5", count) for count in (1, TOKENS - 1, TOKENS, TOKENS + 2)]
RELATIVE = "relative_attention_bias"


def tables_alone(model):
    for name, each in model.named_parameters():
        each.requires_grad_(RELATIVE in name)
    return model


def sequences(examples):
    generator = torch.Generator().manual_seed(1)
    shape = (2, examples, TOKENS)
    return torch.randint(2, VOCABULARY, shape, generator=generator)


def losses(model, sources, targets):
    logits = model(input_ids=sources, decoder_input_ids=targets, use_cache=False).logits
    return nn.functional.cross_entropy(logits.mT, targets.roll(-1, 1), reduction="none").mean(1)


def clipped(model, part, bound, products=Products.FLOAT64):
    """Flat clipped sum of one part (sources, targets)."""
    parts = [LossOfPart(part.shape[1], lambda model: losses(model, *part))]
    return clipped_sum(PerExampleGradients(model, products), parts, bound)


def gradients_of(model, part):
    return one_at_a_time(model, lambda own, row: losses(own, *part[:, row]), part.shape[1])


# Tables of relative positions


@pytest.mark.parametrize(("kind", "examples"), [*SIZES, ("MT5", TOKENS), ("UMT5", TOKENS)])
@pytest.mark.parametrize("trained", [nn.Module.requires_grad_, tables_alone])
def test_t5_is_clipped_by_example_also_where_there_are_as_many_as_tokens(kind, examples, trained):
    model, part = trained(small(kind)), sequences(examples)
    gradients = gradients_of(model, part)
    norms = gradients.norm(dim=1, keepdim=True)
    bound = 0.7 * float(norms.min())
    expected = (gradients * (bound / norms)).sum(dim=0)
    for products in Products:
        error = (clipped(model, part, bound, products) - expected).norm()
        assert error < 2 * products.clip_margin * expected.norm()
    whole = gradients.sum(dim=0)
    assert (clipped(model, part, 1e3) - whole).norm() < 1e-5 * whole.norm()


def test_t5_is_left_as_it_was_even_after_a_failing_pass():
    model, part = small("T5"), sequences(3)
    clipped(model, part, 1.0)
    with pytest.raises(IndexError):
        clipped(model, part + VOCABULARY, 1.0)
    assert all(each.requires_grad and each.grad is None for each in model.parameters())
    assert not any("compute_bias" in vars(each) for each in model.modules())
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    assert torch.overrides._get_current_function_mode() is None


class Owner(nn.Module):
    """Adds relative positions to rows of a batch, in a way of its own."""

    def __init__(self):
        super().__init__()
        self.relative_attention_bias = nn.Embedding(2 * TOKENS, 2)

    def forward(self, rows):
        tokens = rows.shape[1]
        return rows + self.compute_bias(tokens, tokens)[0].sum(dim=0)

    def compute_bias(self, queries, keys):
        places = torch.arange(keys)[None] - torch.arange(queries)[:, None] + TOKENS
        return self.relative_attention_bias(places).permute(2, 0, 1)[None]


class Squared(Owner):
    def compute_bias(self, queries, keys):
        return super().compute_bias(queries, keys) ** 2


class Elsewhere(Owner):
    compute_bias = None

    def forward(self, rows):
        places = torch.arange(TOKENS)[None] - torch.arange(TOKENS)[:, None] + TOKENS
        return rows + self.relative_attention_bias(places).sum(dim=2)


def booked(model, rows):
    part = LossOfPart(len(rows), lambda model: model(rows).square().flatten(1).sum(dim=1))
    return PerExampleGradients(model).private_clipped_sums([part], 1e9)[0]


@pytest.mark.parametrize("owner", [Squared, Elsewhere])
def test_other_tables_of_relative_positions_are_refused_by_name_before_any_pass(owner):
    model = nn.Sequential(owner())
    with pytest.raises(TypeError, match=rf"0\.relative_attention_bias of a {owner.__name__}"):
        PerExampleGradients(model)
    model[0].relative_attention_bias.requires_grad_(False)
    booked(model.append(nn.Linear(TOKENS, 1)), torch.randn(TOKENS, TOKENS, TOKENS))


def test_a_table_that_compute_bias_changes_later_is_refused():
    model = Owner()
    tested = PerExampleGradients(model)
    model.compute_bias = lambda *sizes: 2 * Owner.compute_bias(model, *sizes)
    part = LossOfPart(2, lambda model: model(torch.ones(2, TOKENS, TOKENS)).sum(dim=(1, 2)))
    with pytest.raises(TypeError, match="compute_bias to return what it looked up"):
        tested.private_clipped_sums([part], 1.0)


class Shared(Owner):
    """Its table is another embedding's as well."""

    def __init__(self):
        super().__init__()
        self.other = nn.Embedding(2 * TOKENS, 2)
        self.other.weight = self.relative_attention_bias.weight

    def forward(self, rows):
        return super().forward(rows) + self.other(torch.arange(TOKENS)[None]).sum(dim=2)


class CalledTwice(Owner):
    """Looks up once more, outside of compute_bias."""

    def forward(self, rows):
        return super().forward(rows) + self.relative_attention_bias(torch.arange(1)[None]).sum()


@pytest.mark.parametrize(
    ("model", "message"),
    [(Shared, "relative positions of its own"), (CalledTwice, "by compute_bias alone")],
)
def test_a_table_of_relative_positions_that_others_read_is_refused(model, message):
    with pytest.raises(TypeError, match=message):
        booked(model(), torch.randn(TOKENS, TOKENS, TOKENS))


# Other look-ups and layers


class Places(nn.Module):
    """Adds what a table holds at some places to (B, T) rows."""

    def __init__(self, places):
        super().__init__()
        self.table = nn.Embedding(16, 1)
        self.places = places

    def forward(self, rows):
        return rows + self.table(self.places(rows)).squeeze(-1)


SHARED = {
    "one row": lambda rows: torch.arange(rows.shape[1])[None],
    "one row, repeated": lambda rows: torch.arange(rows.shape[1]).expand(len(rows), -1) + 1,
    "zeros like the batch": lambda rows: torch.zeros_like(rows).long(),
    "counted": lambda rows: (rows > -9).long().cumsum(dim=1),
}
AMBIGUOUS = {
    "relative": lambda rows: (
        torch.arange(rows.shape[1])[None] + torch.arange(rows.shape[1])[:, None]
    ),
    "relative, of the type of the batch": lambda rows: (
        torch.arange(rows.shape[1]).to(rows)[None] + torch.arange(rows.shape[1])[:, None]
    ).long(),
    "relative, from one example": lambda rows: (
        (0 * rows.long() + 1)[0].cumsum(0)[:, None] + (0 * rows.long() + 1)[0].cumsum(0)
    ),
    "without an axis of examples": lambda rows: torch.arange(rows.shape[1]),
}


@pytest.mark.parametrize("examples", [1, 2, 4, 5])
@pytest.mark.parametrize("places", SHARED.values(), ids=SHARED)
def test_positions_that_all_examples_share_have_a_gradient_for_each(places, examples):
    torch.manual_seed(0)
    model, rows = Places(places), torch.randn(examples, 4)
    (found,) = booked(model, rows)
    model(rows).square().sum().backward()
    torch.testing.assert_close(found.float(), model.table.weight.grad)
    alone = [booked(model, rows[[row]])[0] for row in range(examples)]
    torch.testing.assert_close(found, torch.stack(alone).sum(dim=0))


@pytest.mark.parametrize("examples", [1, 3, 4, 5])
@pytest.mark.parametrize("places", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_places_that_are_not_known_to_be_an_examples_are_refused_whatever_the_sizes(
    places, examples
):
    with pytest.raises(TypeError, match="Embedding by the batch"):
        booked(Places(places), torch.randn(examples, 4))


class Projected(nn.Module):
    """Projects the positions, not the batch."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, rows):
        return rows + self.linear(torch.eye(4)).sum(dim=0)


@pytest.mark.parametrize("examples", [1, 4])
def test_a_layer_over_what_does_not_come_from_the_batch_is_refused(examples):
    with pytest.raises(TypeError, match="computed from the tensors"):
        booked(Projected(), torch.randn(examples, 4))


def test_a_loss_that_goes_past_the_model_is_refused():
    model = nn.Sequential(nn.Linear(3, 1))
    part = LossOfPart(4, lambda model: model[0](torch.ones(4, 3)).sum(dim=1))
    with pytest.raises(TypeError, match="call the model"):
        PerExampleGradients(model).private_clipped_sums([part], 1.0)


def test_descent_follows_values_and_not_shapes_or_types():
    rows, descent = torch.ones(3, 2), Descent(3)
    descent.begin(None, (rows, torch.ones(1, 2)), {"mask": [torch.zeros(3)], "flag": True})
    with following(descent, lambda _, output: output):
        written = torch.zeros(3, 2)
        written[:, 0] = rows[:, 0]
        values = [rows + 1, torch.cat([rows, rows]), rows.split(1, dim=1)[1], rows[:, 0], written]
        others = [torch.zeros_like(rows), torch.arange(3).to(rows), rows[0], rows.new_ones(3, 3)]
    assert all(descent.includes(each) for each in values)
    assert not any(descent.includes(each) for each in others)
    assert not any(Descent(3).includes(each) for each in values)
