"""A package adds a decoder by an entry point: named in a file, it writes and is charged for."""

import pytest
import torch
from pydantic import ValidationError

from dpsynth_assets.datasets.public_spec import EngineSpec, LanguageModelSpec
from dpsynth_assets.methods.private_prediction import preconditions
from dpsynth_assets.models.decoding import open_decoder
from dpsynth_assets.models.engines import protocol
from dpsynth_assets.models.engines.protocol import (
    EngineError,
    Provenance,
    Sampling,
    close_engines,
    open_engine,
)

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


def test_it_writes_where_a_dataset_file_names_it(toy_model):
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


def test_private_draws_over_it_are_charged_for_rounding(toy_model):
    declared = LanguageModelSpec(decoder="counting")
    decoder = open_decoder(declared.decodes_by, toy_model)
    assert not declared.decodes_exactly
    assert not decoder.is_exact
    contexts = decoder.open([[7], [9]], prompt_columns=4, max_new_tokens=2)
    logits = contexts.next_logits(torch.tensor([0, 30]), torch.tensor([0, 1]))
    assert logits.argmax(1).tolist() == [8, 31]


def test_a_kind_that_nobody_installed_is_refused_in_one_line():
    for declare, field in ((EngineSpec, "kind"), (LanguageModelSpec, "decoder")):
        with pytest.raises(ValidationError, match="Expected one of transformers, exact") as told:
            declare(**{field: "missing"})
        assert "\n" not in told.value.errors()[0]["msg"]
