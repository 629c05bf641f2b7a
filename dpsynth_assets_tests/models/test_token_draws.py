"""Tokens are drawn from the distribution that the sampling states."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from dpsynth_assets.datasets.public_spec import EngineSpec, LanguageModelSpec
from dpsynth_assets.methods.private_prediction import preconditions
from dpsynth_assets.models.decoding import open_decoder
from dpsynth_assets.models.decoding.token_draws import draw_tokens, uniforms
from dpsynth_assets.models.engines import protocol
from dpsynth_assets.models.engines.protocol import (
    EngineError,
    Provenance,
    Sampling,
    close_engines,
    open_engine,
)


def test_rows_have_streams_of_their_own():
    first = uniforms(7, [0, 1, 2], 50)
    assert first.dtype == np.float32
    assert first.min() >= 0
    assert first.max() < 1
    np.testing.assert_array_equal(uniforms(7, [2], 20)[0], first[2, :20])
    assert len(np.unique(first)) > 140
    assert (uniforms(8, [0, 1, 2], 50) != first).mean() > 0.9


def test_the_vocabulary_is_not_sorted(monkeypatch):
    widths = []
    for name in ("sort", "partition"):
        plain = getattr(np, name)
        monkeypatch.setattr(
            np, name, lambda row, *rest, plain=plain: widths.append(len(row)) or plain(row, *rest)
        )
    for name in ("sort", "topk"):
        monkeypatch.setattr(torch.Tensor, name, None)
    logits = 5 * torch.randn((4, 40_000), generator=torch.Generator().manual_seed(0))
    for settings in ({"top_p": 0.9}, {"top_k": 100}, {}):
        draw_tokens(logits, torch.full((4,), 0.5), Sampling(**settings))
    assert 0 < max(widths) <= 1024


def nucleus_by_sorting(values, top_p):
    """Places of the fewest largest that reach top_p, of equal ones the first."""
    order = np.argsort(-values, kind="stable")
    mass = values[order].cumsum(dtype=np.float64)
    return np.sort(order[: int(np.searchsorted(mass, top_p)) + 1])


def degenerate_rows():
    draw = np.random.default_rng(0)
    yield np.zeros(1)
    yield np.zeros(100)
    yield np.repeat([0.0, -1.0, 2.0], 43)
    yield np.where(draw.random(1000) < 0.9, -np.inf, draw.normal(0, 2, 1000))
    yield np.append(np.full(999, -40.0), 40.0)
    yield np.append(np.full(999, -np.inf), 0.0)
    for size, spread in [(63, 1), (64, 9), (65, 3), (4097, 0.1), (5000, 2), (20_000, 5)]:
        yield draw.normal(0, spread, size)
        yield np.round(draw.normal(0, spread, size))  # many ties


SETTINGS = (
    {},
    {"temperature": 0},
    {"temperature": 0.8},
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": 50, "top_p": 0.6},
    {"top_k": 3000, "top_p": 0.9, "temperature": 1.5},
    {"top_p": 1e-30},
    {"top_p": 0.1},
    {"top_p": 0.5},
    {"top_p": 1 - 1e-9},
    {"top_p": 0.95, "temperature": 0.9},
    {"top_p": 0.99, "temperature": 3.0},
)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_draws_are_those_of_sorting_the_same_numbers(settings):
    sampling = Sampling(**settings)
    for row in degenerate_rows():
        kept = np.sort(np.argsort(-row.astype(np.float32), kind="stable")[: sampling.top_k])
        logits = torch.from_numpy(row).float()
        if sampling.temperature == 0:
            assert draw_tokens(logits[None], torch.zeros(1), sampling) == np.argmax(logits.numpy())
            continue
        values = torch.softmax(logits[kept] / sampling.temperature, -1).numpy().astype(np.float64)
        everything = np.arange(len(values))
        cut = sampling.top_p < 1
        nucleus = nucleus_by_sorting(values, sampling.top_p) if cut else everything
        reached = values[nucleus].cumsum()
        for uniform in (0.0, 0.25, 0.7, 1 - 2.0**-23):
            token = draw_tokens(logits[None], torch.tensor([uniform]), sampling).item()
            place = int(np.searchsorted(kept[nucleus], token))
            assert kept[nucleus][place] == token
            assert values[nucleus][place] > 0
            low, high = reached[place] - values[nucleus][place], reached[place]
            share = uniform * reached[-1]  # in the token's cell, but for the rounding of float32
            assert low - 1e-5 * reached[-1] <= share <= high + 1e-5 * reached[-1]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_threads_and_rows_that_share_a_draw_change_no_token(settings):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn((23, 5_003), generator=generator)
    logits *= torch.tensor([0.1, 2.0, 6.0, 12.0]).repeat(6)[:23, None]
    uniform, sampling = torch.rand(23, generator=generator), Sampling(**settings)
    before, drawn = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            drawn.append(draw_tokens(logits, uniform, sampling))
            some = torch.tensor([22, 3, 4, 9])
            assert torch.equal(draw_tokens(logits[some], uniform[some], sampling), drawn[0][some])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_rows_that_are_sorted_at_once_as_on_a_device_give_the_same_tokens(settings):
    generator = torch.Generator().manual_seed(4)
    logits = 4 * torch.randn((40, 3_500), generator=generator)
    uniform, sampling = torch.rand(40, generator=generator), Sampling(**settings)
    at_once = draw_tokens(logits.double(), uniform, sampling)  # float64 goes a device's way
    agree = (at_once == draw_tokens(logits, uniform, sampling)).double().mean()
    assert agree >= 39 / 40  # a uniform within rounding of a boundary may fall on its other side


# A package adds a decoder by an entry point: named in a file, it writes and is charged for.

MODULE = """
import torch
from dpsynth_assets.models.decoding import Decoder

class CountingDecoder(Decoder):
    device, dtype, attention_limit = torch.device("cpu"), torch.float32, 64
    def _read(self, prompts, reading):
        return Contexts(torch.tensor([prompt[-1] for prompt in prompts]))

class Contexts:
    def __init__(self, last):
        self.last = last
    def next_logits(self, tokens, generated):
        tokens = torch.where(generated == 0, self.last, tokens)
        return 50.0 * torch.nn.functional.one_hot(tokens + 1, 400)
    def keep(self, contexts):
        self.last = self.last[contexts]

def opened(language_model, spec):
    return CountingDecoder()
"""


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """The package as an installation lays it out."""
    facts = tmp_path / "counting-1.0.dist-info"
    facts.mkdir()
    (tmp_path / "counting.py").write_text(MODULE)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[dpsynth.decoders]\ncounting = counting:opened\n")
    monkeypatch.syspath_prepend(tmp_path)
    protocol._outside.cache_clear()
    yield
    close_engines()


def test_it_writes_where_a_dataset_file_names_it_and_is_not_taken_for_exact(toy_model):
    assert not LanguageModelSpec(decoder="counting").decodes_exactly
    assert not open_decoder("counting", toy_model).is_exact
    engine = open_engine(EngineSpec(kind="counting", batch_rows=2), language_model=toy_model)
    prompts, sampling = [[20], [100, 10], [20]], Sampling(max_new_tokens=(3, 5, 2))
    written = engine.generate(prompts, sampling, provenance=Provenance.PUBLIC)
    tokens = [each.token_ids for each in written]
    assert tokens == [(21, 22, 23), (11, 12, 13, 14, 15), (21, 22)]
    with pytest.raises(EngineError, match="Expected a decoder that shows hidden states"):
        engine.hidden_states(["a"], [0], provenance=Provenance.PUBLIC)


@pytest.mark.parametrize("stated", [{}, {"provenance": Provenance.PRIVATE}])
def test_no_record_is_given_to_a_decoder_that_does_not_say_where_prompts_go(
    toy_model, stated, monkeypatch
):
    engine = open_engine(EngineSpec(kind="counting"), language_model=toy_model)
    for reads in (
        lambda: engine.generate([[20]], Sampling(max_new_tokens=1), **stated),
        lambda: engine.hidden_states(["a"], [0], **stated),
    ):
        with pytest.raises(EngineError, match="private ones: its operator would read them"):
            reads()
    decoder = open_decoder("counting", toy_model)
    monkeypatch.setattr(preconditions, "decoder_of", lambda *_: decoder)
    with pytest.raises(ValueError, match=r"states Capability.PRIVATE_TEXT.*got CountingDecoder"):
        preconditions.charged_decoder(None, None, toy_model)


def test_a_kind_that_nobody_installed_is_refused_in_one_line():
    for declare, field in ((EngineSpec, "kind"), (LanguageModelSpec, "decoder")):
        with pytest.raises(ValidationError, match="Expected one of transformers, exact") as told:
            declare(**{field: "missing"})
        assert "\n" not in told.value.errors()[0]["msg"]
