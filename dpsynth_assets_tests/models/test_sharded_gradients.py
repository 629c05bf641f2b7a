"""Gradients of parts that threads work on side by side are those of the whole batch."""

import pytest
import torch

from dpsynth_assets.models.sharded_gradients import open_shards, shares


@pytest.fixture
def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 1))


def losses(model, rows):
    return model(rows).square()


def filled(model, rows, threads):
    parts = [rows[own] for own in shares(len(rows), threads)]
    with open_shards(model, threads) as gradients:
        loss = gradients.fill(parts, lambda part: losses(model, part).sum(), len(rows))
    return loss, [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_parts_add_up_to_the_gradient_of_the_mean_loss(model, threads):
    rows = torch.randn(5, 6)
    loss, found = filled(model, rows, threads)
    model.zero_grad()
    whole = losses(model, rows).mean()
    whole.backward()
    assert loss == pytest.approx(whole.item(), rel=1e-5)
    for gradient, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


def test_equal_parts_give_equal_bits_and_replace_what_was_there(model):
    rows = torch.randn(7, 6)
    _, first = filled(model, rows, 2)
    _, again = filled(model, rows, 2)
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))


def test_frozen_parameters_get_no_gradient(model):
    model[0].requires_grad_(False)
    with open_shards(model, 2) as gradients:
        gradients.fill([torch.randn(2, 6)], lambda part: losses(model, part).sum(), 2)
    assert model[0].weight.grad is None
    assert model[2].weight.grad is not None


@pytest.mark.parametrize(("rows", "threads"), [(0, 2), (1, 4), (5, 2), (8, 3)])
def test_shares_cover_every_row_once_and_evenly(rows, threads):
    cuts = shares(rows, threads)
    assert [row for cut in cuts for row in range(cut.start, cut.stop)] == list(range(rows))
    sizes = [cut.stop - cut.start for cut in cuts]
    assert len(cuts) <= threads
    assert max(sizes) - min(sizes) <= 1
