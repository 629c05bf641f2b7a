"""A package adds a decoder by an entry point: named in a file, it writes and is charged for."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from dpsynth_assets.datasets.engine import EngineSpec
from dpsynth_assets.datasets.public_spec import LanguageModelSpec
from dpsynth_assets.models.decoding import open_decoder, opening, sample_documents
from dpsynth_assets.models.engines import Capability, EngineError, Sampling
from dpsynth_assets.models.engines.opening import close_engines, open_engine

MODULE = """
import torch
from dpsynth_assets.models.decoding import Decoder

class CountingDecoder(Decoder):
    device, dtype, attention_limit = torch.device("cpu"), torch.float32, 64

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def _read(self, prompts, reading):
        return Contexts([prompt[-1] for prompt in prompts], self.vocabulary)

class Contexts:
    def __init__(self, last, vocabulary):
        self.last, self.vocabulary = torch.tensor(last), vocabulary

    def __len__(self):
        return len(self.last)

    def next_logits(self, tokens, generated):
        tokens = torch.where(generated == 0, self.last, tokens)
        return 50.0 * torch.nn.functional.one_hot((tokens + 1) % self.vocabulary, self.vocabulary)

    def keep(self, contexts):
        self.last = self.last[contexts]

def opened(language_model, spec):
    return CountingDecoder(language_model.vocabulary_size)
"""


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """The package as an installation lays it out."""
    (tmp_path / "counting.py").write_text(MODULE)
    facts = tmp_path / "counting-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[dpsynth.decoders]\ncounting = counting:opened\n")
    monkeypatch.syspath_prepend(tmp_path)
    opening._outside.cache_clear()
    yield
    close_engines()


def test_it_writes_where_a_dataset_file_names_it(toy_model):
    engine = open_engine(EngineSpec(kind="counting", batch_rows=2), language_model=toy_model)
    written = engine.generate([[20], [100, 10], [20]], Sampling(max_new_tokens=(3, 5, 2)))
    tokens = [each.token_ids for each in written]
    assert tokens == [(21, 22, 23), (11, 12, 13, 14, 15), (21, 22)]
    assert engine.next_token_logits([[20]]).argmax() == 21
    assert Capability.HIDDEN_STATES not in engine.capabilities
    with pytest.raises(EngineError, match="Expected a decoder that shows hidden states"):
        engine.hidden_states(["a"], [0])


def test_private_draws_over_it_are_charged_for_rounding(toy_model):
    declared = LanguageModelSpec(kind="pretrained", model="folder", decoder="counting")
    assert (declared.decodes_by, declared.writes_by) == ("counting", "counting")
    assert not declared.decodes_exactly
    decoder = open_decoder(declared.decodes_by, toy_model)
    assert not decoder.is_exact
    contexts = decoder.open([[7], [9]], prompt_columns=4, max_new_tokens=2)
    logits = contexts.next_logits(torch.tensor([0, 30]), torch.tensor([0, 1]))
    np.testing.assert_array_equal(logits.argmax(1), [8, 31])


def test_long_prompts_are_read_on_where_limits_differ(toy_model):
    """Together no prompt has room for the largest limit, each for its own."""
    decoder = open_decoder("counting", toy_model)
    prompts = [list(range(100, 160)), [20]]
    found = sample_documents(
        decoder, prompts, Sampling(), end_token_id=1, pad_token_id=1, limits=[4, 30]
    )
    assert [each.tokens for each in found] == [[160, 161, 162, 163], list(range(21, 51))]


@pytest.mark.parametrize("declare", [
    lambda kind: EngineSpec(kind=kind),
    lambda kind: LanguageModelSpec(decoder=kind),
])  # fmt: skip
def test_a_kind_that_nobody_installed_is_refused_in_one_line(declare):
    declare("counting")
    with pytest.raises(ValidationError, match="Expected one of transformers, exact, vllm") as told:
        declare("missing")
    assert "\n" not in told.value.errors()[0]["msg"]
