"""Which texts vLLM gets at once when states are read; a stand-in takes the place of vLLM."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.models.engines.protocol import Provenance
from dpsynth_assets.models.vllm_decoder import engine as vllm_engine
from dpsynth_assets.models.vllm_decoder.engine import VllmEngine

TEXTS = [[5, 6], [], [7, 8, 9]]


class Served:
    """Takes requests as vLLM does, and notes which come together."""

    def __init__(self):
        self.together, self.waiting = [], {}

    def generate(self, requests, parameters, use_tqdm):
        self.together.append([request["prompt_token_ids"] for request in requests])
        for request, own in zip(requests, parameters, strict=True):
            row = own.extra_args["dpsynth_document"]
            self.waiting[row] = np.full((1, 4), sum(request["prompt_token_ids"]), np.float32)
        return requests

    def collective_rpc(self, method, args):
        return [self.waiting if method == "dpsynth_take_states" else None]

    def reset_prefix_cache(self):
        pass


@pytest.fixture
def engine(monkeypatch):
    stand_in = SimpleNamespace(SamplingParams=SimpleNamespace, TokensPrompt=dict)
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    monkeypatch.setattr(vllm_engine, "opened_llm", lambda *_, **__: Served())
    served = SimpleNamespace(
        begin_token_id=1,
        vocabulary_size=20,
        name="served",
        encode=None,
        config=SimpleNamespace(hidden_size=4, num_hidden_layers=2, max_position_embeddings=64),
    )
    return VllmEngine(served, EngineSpec(kind="vllm"))


def test_private_texts_are_served_one_after_another_and_others_at_once(engine):
    private = engine.hidden_states(TEXTS, [0])
    assert engine._llm.together == [[[1, 5, 6]], [[1, 7, 8, 9]]]
    for provenance in (Provenance.PUBLIC, Provenance.RELEASED):
        engine._llm.together.clear()
        known = engine.hidden_states(TEXTS, [0], provenance=provenance)
        assert engine._llm.together == [[[1, 5, 6], [1, 7, 8, 9]]]
        np.testing.assert_array_equal(known[0], private[0])
    assert private[0][:, 0].tolist() == [12.0, 0.0, 25.0]


def test_progress_counts_private_texts(engine):
    shares = []
    engine.hidden_states(TEXTS, [0], progress=shares.append)
    assert shares == [0.5, 1.0]
