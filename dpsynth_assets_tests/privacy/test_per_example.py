"""Laws of book-keeping: norms and clipped sums are those of one example at a time."""

import functools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional

from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.per_example import (
    GRADIENT_SLACK,
    LossOfPart,
    PerExampleGradients,
    Products,
    arithmetic,
    bookkeeper,
    most_in_company,
    norms,
)
from dpsynth_assets.privacy.per_example.arithmetic import SumLattice
from dpsynth_assets.privacy.per_example.uses import Factors, Product
from dpsynth_assets_tests.privacy.dp_sgd_cases import mechanism
from dpsynth_assets_tests.privacy.small_models import (
    VOCABULARY,
    clipped_sum,
    one_at_a_time,
    small,
)

BATCH = 5
LENGTHS = [(9, 11), (8, 9), (7, 7), (6, 5), (5, 1)]
HUGE = 1e3
FALSE_ALARM = 1e-6


def plain(name):
    return lambda tied: small(name, tie_word_embeddings=tied)


def with_adapters(name):
    def build(_tied):
        from dpsynth_assets.models.fine_tuning.adapters import add_adapters

        model = add_adapters(small(name), 2)
        for parameter, each in model.named_parameters():
            if "lora_B" in parameter:  # starts at zero, where half of the gradients vanish
                nn.init.normal_(each, std=0.1)
        return model

    return build


MODELS = {
    "BART": plain("Bart"),
    "T5": plain("T5"),
    "GPT-2": plain("GPT2"),
    "Llama": plain("Llama"),
    "BART with LoRA": with_adapters("Bart"),
    "GPT-2 with LoRA": with_adapters("GPT2"),
    "Llama with LoRA": with_adapters("Llama"),
    "BERT classifier": plain("Bert"),
}
EVERY_MODEL = [
    pytest.param(name, tied, id=f"{name}, {'tied' if tied else 'untied'}")
    for name in MODELS
    for tied in (True, False)
    if tied or "LoRA" not in name
]


def built(name, tied=True):
    return MODELS[name](tied).eval()


def batch():
    """Padded sources and targets of five lengths, with repeated tokens."""
    generator = torch.Generator().manual_seed(1)
    sources = torch.randint(3, VOCABULARY, (BATCH, 9), generator=generator)
    targets = torch.randint(3, 12, (BATCH, 11), generator=generator)
    mask = torch.ones_like(sources)
    for row, (source, target) in enumerate(LENGTHS):
        sources[row, source:], mask[row, source:], targets[row, target:] = 1, 0, -100
    return sources, mask, targets


def losses(model, rows):
    """(B,) losses of some rows of the batch."""
    sources, mask, targets = (each[rows] for each in batch())
    inner = model.base_model.model if hasattr(model, "peft_config") else model
    name = type(inner).__name__
    if "Classification" in name:
        logits = model(input_ids=sources, attention_mask=mask).logits
        return functional.cross_entropy(logits, targets[:, 0] % 3, reduction="none")
    if "Bart" in name or "T5" in name:
        logits = model(
            input_ids=sources, attention_mask=mask, labels=targets, use_cache=False
        ).logits
    else:
        real = (targets >= 0).long()
        logits = model(input_ids=targets.clamp(min=1), attention_mask=real, use_cache=False).logits
    each = functional.cross_entropy(logits.mT, targets, reduction="none", ignore_index=-100)
    return each.sum(dim=1) / (targets >= 0).sum(dim=1)


def parts(*groups):
    return [LossOfPart(len(rows), lambda model, rows=rows: losses(model, rows)) for rows in groups]


def clipped(model, groups, bound, products=Products.NATIVE, threads=1):
    tested = PerExampleGradients(model, products, threads)
    assert tested.threads == threads
    return clipped_sum(tested, parts(*groups), bound)


@functools.cache
def reference(name, tied=True):
    """(B, P) gradients of a model as `built`."""
    return one_at_a_time(built(name, tied), losses, BATCH)


def bounds(model, rows, products):
    """(B,) norm bounds of one part."""
    tested = PerExampleGradients(model, products)
    found = [each for each in tested._bookkeepers[0].factors(parts(rows)[0]) if each is not None]
    return norms.norm_bounds(found, len(rows), products)


@pytest.fixture(params=["ghost", "direct", "kept"])
def way(request, monkeypatch):
    monkeypatch.setattr(norms, "_direct_is_cheaper", lambda *_: request.param == "direct")
    keeping = request.param == "kept"
    monkeypatch.setattr(
        norms, "_keeping_is_cheapest", lambda _, products: keeping and products is Products.NATIVE
    )


@pytest.mark.parametrize(("name", "tied"), EVERY_MODEL)
def test_norms_are_those_of_micro_batches_of_one(name, tied, way):
    model = built(name, tied)
    expected = reference(name, tied).norm(dim=1)
    for products, slack in ((Products.FLOAT64, 2e-5), (Products.NATIVE, 2e-4)):
        found = bounds(model, list(range(BATCH)), products)
        assert ((found / expected - 1).abs() < slack).all()
        assert (found >= expected * (1 - 1e-6)).all()


@pytest.mark.parametrize(("name", "tied"), EVERY_MODEL)
@pytest.mark.parametrize("products", Products)
def test_clipped_sums_are_those_of_micro_batches_of_one(name, tied, products):
    model = built(name, tied)
    gradients = reference(name, tied)
    bound = float(gradients.norm(dim=1).median())
    scales = (bound / gradients.norm(dim=1, keepdim=True)).clamp(max=1.0)
    found = clipped(model, [[0, 1, 2], [3, 4]], bound, products)
    expected = (gradients * scales).sum(dim=0)
    error = (found - expected).norm() / expected.norm()
    assert error < 2 * products.clip_margin
    whole = clipped(model, [[0, 1, 2, 3, 4]], HUGE, products)
    torch.testing.assert_close(whole, gradients.sum(dim=0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_that_were_kept_for_their_norms_give_the_same_sums(name, monkeypatch):
    found = []
    for keeping in (False, True):
        monkeypatch.setattr(norms, "_keeping_is_cheapest", lambda *_, keeping=keeping: keeping)
        found.append(clipped(built(name), [[0, 1, 2], [3, 4]], 0.3))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["BART", "GPT-2", "Llama"])
@pytest.mark.parametrize("products", Products)
def test_a_record_moves_the_clipped_sum_by_at_most_the_bound(name, products):
    model = built(name)
    bound = float(reference(name).norm(dim=1).min()) / 3
    for record in (0, 4):
        others = [row for row in range(BATCH) if row != record]
        without = clipped(model, [others[:2], others[2:]], bound, products)
        moved = clipped(model, [[record, *others[:1]], others[1:]], bound, products) - without
        assert bound * (1 - 2 * products.clip_margin) <= moved.norm() <= bound


@pytest.mark.parametrize("broken", [math.nan, math.inf, 1e38])
@pytest.mark.parametrize("products", Products)
def test_an_example_without_a_finite_gradient_adds_zero(broken, products, way):
    model = built("BART")

    def spoilt(model):
        found = losses(model, [0, 1, 2])
        return found * torch.tensor([1.0, broken, 1.0])

    found = clipped_sum(PerExampleGradients(model, products), [LossOfPart(3, spoilt)], 0.5)
    expected = clipped(model, [[0, 2]], 0.5, products)
    moved = (found - expected).norm()
    assert moved < 1e-4 or (broken == 1e38 and moved <= 0.5)


# Threads


@pytest.mark.parametrize("name", ["BART", "GPT-2", "Llama", "BART with LoRA"])
def test_threads_share_parts_and_change_no_sum(name):
    groups = [[0], [1, 2], [3], [4]]
    alone = clipped(built(name), groups, 0.3)
    for threads in (2, 3, 6):
        found = clipped(built(name), groups, 0.3, threads=threads)
        torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-7)


def test_threads_see_weights_that_changed_and_leave_the_model_as_it_was():
    model = built("BART")
    tested = PerExampleGradients(model, threads=2)
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(1.1)
    groups = [[0, 1], [2, 3, 4]]
    found = clipped_sum(tested, parts(*groups), 0.3)
    torch.testing.assert_close(found, clipped(model, groups, 0.3), rtol=1e-5, atol=1e-7)
    assert all(each.grad is None and each.requires_grad for each in model.parameters())


def test_an_error_of_one_thread_is_the_error_of_all():
    model, threads = built("GPT-2"), torch.get_num_threads()
    broken = LossOfPart(2, lambda model: losses(model, [1, 2]).sum())
    with pytest.raises(ValueError, match="one loss for each of 2"):
        PerExampleGradients(model, threads=2).private_clipped_sums([*parts([0]), broken], 1.0)
    assert all(each.grad is None for each in model.parameters())
    assert torch.get_num_threads() == threads


def test_passes_of_few_rows_have_one_thread():
    # Cut in two, they may be multiplied by code that rounds more than `GRADIENT_SLACK` covers.
    before, seen = torch.get_num_threads(), []

    def counted(model):
        seen.append(torch.get_num_threads())
        return losses(model, [0])

    try:
        for threads, few in ((2, 63), (32, 127)):
            torch.set_num_threads(threads)
            passes = [LossOfPart(1, counted, rows) for rows in (0, few, few + 1)]
            PerExampleGradients(built("GPT-2")).private_clipped_sums(passes, 1.0)
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 1, 2, 1, 1, 32]


def test_frozen_layers_add_nothing_to_the_norm_and_the_model_is_left_as_it_was():
    model = built("BART")
    for name, each in model.named_parameters():
        each.requires_grad_("fc1.bias" in name or "layer_norm" in name or "embed_pos" in name)
    flags = [each.requires_grad for each in model.parameters()]
    expected = one_at_a_time(model, losses, BATCH)
    found = bounds(model, list(range(BATCH)), Products.NATIVE)
    torch.testing.assert_close(found, expected.norm(dim=1), rtol=1e-4, atol=0.0)
    names = PerExampleGradients(model).names
    assert sum(model.get_parameter(name).numel() for name in names) == expected.shape[1]
    clipped(model, [[0, 1]], 1.0)
    assert [each.requires_grad for each in model.parameters()] == flags
    assert all(each.grad is None for each in model.parameters())
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


# What is refused


class Layered(nn.Module):
    """A model around one layer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)


class Reader(Layered):
    """Reads a layer's weight without calling the layer."""

    def forward(self, rows):
        return self.linear(rows) @ self.linear.weight


class Mixing(Layered):
    """Flattens examples and tokens, so that nobody can tell whose token is whose."""

    def forward(self, rows):
        return self.linear(rows.flatten(0, 1)).view_as(rows)


def summed(model, examples=4):
    rows = torch.randn(examples, 2, 3)
    part = LossOfPart(examples, lambda model: model(rows).sum(dim=(1, 2)))
    return PerExampleGradients(model).private_clipped_sums([part], 1.0)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), "batch normalisation"),
        (nn.Sequential(nn.EmbeddingBag(4, 3, max_norm=1.0)), "EmbeddingBag"),
        (nn.Sequential(nn.InstanceNorm1d(3, affine=True, track_running_stats=True)), "buffers"),
        (nn.Embedding(4, 3, max_norm=1.0), "Embedding"),
        (nn.Embedding(4, 3, scale_grad_by_freq=True), "Embedding"),
        (nn.Linear(3, 3).requires_grad_(False), "got none"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, nn.Module) else "",
)
def test_a_trainable_parameter_that_nobody_can_book_is_refused(model, message):
    with pytest.raises(TypeError, match=message) as refusal:
        PerExampleGradients(model)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("model", "message"), [(Reader, r"linear\.weight .*another reader"), (Mixing, "first axis")]
)
def test_rows_and_parameters_that_cannot_be_followed_are_refused(model, message):
    with pytest.raises(TypeError, match=message):
        summed(model())


class Remembering(Layered):
    """Keeps the largest row it has seen, in a buffer that it writes to or puts anew."""

    def __init__(self, *, anew):
        super().__init__()
        self.anew = anew
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, rows):
        most = torch.maximum(self.seen, rows.detach().amax((0, 1)))
        if self.anew:
            self.seen = most
        else:
            self.seen.copy_(most)
        return self.linear(rows)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(3, 3), nn.InstanceNorm1d(2, track_running_stats=True)).train(),
        Remembering(anew=True),
        Remembering(anew=False),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_a_pass_leaves_behind_in_the_model_is_refused(model):
    """It is released with the weights, and no noise is added to it."""
    with pytest.raises(TypeError, match="buffers that no forward pass changes") as refusal:
        summed(model)
    assert "\n" not in str(refusal.value)


def test_statistics_that_are_read_and_not_written_are_none_of_its_traces():
    norm = nn.InstanceNorm1d(2, track_running_stats=True)
    summed(nn.Sequential(nn.Linear(3, 3), norm).eval())


# Arithmetic


def test_native_sums_are_off_by_less_than_the_margin_even_where_all_gradients_agree():
    # 4096 examples of norm C = 1 that point the same way: the worst case of the argument.
    torch.manual_seed(0)
    left, right = torch.randn(1, 64, 96), torch.randn(1, 64, 96)
    shares = torch.linspace(0.5, 1.0, 4096)[:, None, None]
    scales = 1.0 / (shares.view(-1) * (left[0].T @ right[0]).norm()).double()
    totals = {each: torch.zeros(96, 96, dtype=torch.float64) for each in Products}
    for part in torch.arange(4096).split(64):
        product = Product((left * shares[part]).contiguous(), right.expand(len(part), -1, -1))
        for products, total in totals.items():
            lattice = SumLattice.of(1.0) if products is Products.FLOAT64 else None
            bookkeeper.add_weighted(total, Factors(products=[product]), scales[part], lattice)
    assert totals[Products.FLOAT64].norm() == pytest.approx(4096, rel=1e-4)
    error = (totals[Products.NATIVE] - totals[Products.FLOAT64]).norm()
    assert 0 < math.sqrt(2.0) * error < Products.NATIVE.clip_margin


def test_cancellation_among_an_examples_own_tokens_is_bounded():
    # Tokens cancel to a millionth of their size: rounding would decide the norm alone.
    layer = nn.Linear(2, 2, bias=False)
    rows = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    weights = torch.tensor([[[1e3], [-1e3 + 1e-3]]])
    part = LossOfPart(1, lambda layer: (layer(rows) * weights).sum(dim=(1, 2)))
    tested = PerExampleGradients(layer, Products.FLOAT64)
    (whole,), _ = tested.private_clipped_sums([part], HUGE)
    (scaled,), _ = tested.private_clipped_sums([part], 1e-3)
    assert 0.0 < whole.norm() < 2e-3
    coarse = math.sqrt(2.0) * 2e3
    share = 1e-3 * arithmetic.COARSE_RATIO / coarse
    assert float(scaled.norm()) == pytest.approx(float(share * whole.norm()), rel=1e-2)


def test_bfloat16_passes_stay_within_the_bound():
    model, bound = built("BART"), 0.05

    def autocast(model, rows):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return losses(model, rows)

    for row in range(BATCH):
        part = LossOfPart(1, lambda model, row=row: autocast(model, [row]))
        found = clipped_sum(PerExampleGradients(model), [part], bound)
        assert 0.9 * bound < found.norm() <= bound


# The mechanism


def test_the_mechanism_releases_the_clipped_sum_with_noise_over_its_fixed_number(noiseless):
    kept = {"most_in_company": BATCH, "gradient_slack": 0.02}
    model, tested = built("BART"), mechanism(noise_multiplier=3.0, **kept)
    next(tested.batches(BATCH))
    gradients = PerExampleGradients(model)
    released = tested.private_gradient_of_losses(gradients, parts([0, 1, 2], [3, 4]))
    found = torch.cat([each.flatten() for each in released])
    kept_back = 1 + BATCH * 0.02
    expected = clipped(model, [[0, 1, 2], [3, 4]], 0.5 / kept_back) / 4.0
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-8)
    assert set(noiseless) == {3.0 * 0.5}
    assert [each.shape for each in released] == [each.shape for each in gradients.parameters]


@pytest.mark.parametrize("most", [0, BATCH - 1])
def test_records_of_a_larger_batch_than_may_be_in_company_pass_alone_or_not_at_all(most):
    model = built("GPT-2")
    tested = mechanism(most_in_company=most)
    next(tested.batches(BATCH))
    gradients = PerExampleGradients(model)
    with pytest.raises(UnaccountedReleaseError, match="a pass of its own"):
        tested.private_gradient_of_losses(gradients, parts([0, 1], [2], [3], [4]))
    alone = mechanism(most_in_company=most)
    next(alone.batches(BATCH))
    alone.private_gradient_of_losses(gradients, parts(*([row] for row in range(BATCH))))


@pytest.mark.parametrize("name", ["BART", "GPT-2 with LoRA", "Llama"])
@pytest.mark.parametrize("products", Products)
def test_batch_mates_move_a_clipped_gradient_by_no_more_than_its_slack(name, products):
    """Their losses count for nothing here, so that a sum is what one record adds to it."""
    model, bound = built(name), 1e-3  # Far below every norm: all of it is clipped.

    def added(mates):
        rows = [2, *mates]

        def only(model):
            return losses(model, rows) * torch.tensor([1.0] + [0.0] * len(mates))

        tested = PerExampleGradients(model, products)
        return clipped_sum(tested, [LossOfPart(len(rows), only)], bound)

    alone = added([])
    assert alone.norm() > 0.9 * bound
    for mates in ([0], [4], [0, 4], [1] * 6, [0, 1, 3, 4, 0, 1]):
        assert (added(mates) - alone).norm() <= GRADIENT_SLACK * bound


def test_what_is_kept_back_for_company_is_charged_in_the_bound_and_not_in_the_noise():
    tested = mechanism(most_in_company=100, gradient_slack=1e-3)
    assert tested.record_bound * (1 + 100 * 1e-3) <= tested.l2_bound
    assert tested.record_bound == pytest.approx(0.5 / 1.1)
    assert tested.event() == mechanism().event()
    assert mechanism().record_bound == pytest.approx(0.5, rel=1e-12)
    assert mechanism(most_in_company=8).slack == GRADIENT_SLACK


def test_company_ends_where_too_much_would_be_kept_back():
    assert most_in_company(256, 2.0**-17) == 360
    assert most_in_company(1e4, 1e-3) == 0
    for expected in (1, 40, 4096):
        most = most_in_company(expected, 1e-6)
        assert expected + 6 * math.sqrt(expected) <= most <= 2 * expected + 20


@pytest.mark.statistical
@pytest.mark.parametrize("threads", [1, 2])
def test_noise_of_an_empty_batch_has_the_stated_deviation_and_is_independent(threads):
    layers = nn.ModuleList([nn.Linear(60, 80, bias=False) for _ in range(4)])
    tested = mechanism(sampling_probability=1e-12, noise_multiplier=3.0)
    next(tested.batches(BATCH))
    released = tested.private_gradient_of_losses(PerExampleGradients(layers, threads=threads), [])
    drawn = np.stack([each.double().flatten().numpy() * 4.0 for each in released])
    share = stats.chi2.cdf((drawn**2).sum() / 1.5**2, drawn.size)
    assert min(share, 1 - share) > FALSE_ALARM
    apart = np.corrcoef(drawn)[np.triu_indices(4, 1)]
    limit = stats.norm.isf(FALSE_ALARM / 2 / len(apart)) / math.sqrt(drawn.shape[1])
    assert np.abs(apart).max() < limit
