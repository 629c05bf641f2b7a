"""A tiny language model, served by vLLM and by transformers."""

import importlib.util

import pytest
import torch
from mailboxes import public_rows
from transformers import AutoConfig, LlamaForCausalLM

from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.models.engines.decoder_engine import DecoderEngine
from dpsynth_assets.models.language_model import load_language_model
from dpsynth_assets.models.vllm_decoder.engine import VllmEngine
from dpsynth_assets_tests.tiny_models import write_language_model

SMALL = EngineSpec(kind="vllm", batch_rows=12, cache_gib=0.25)


@pytest.fixture(scope="session", autouse=True)
def _vllm_is_here():
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vllm is not importable here; `make test-vllm` runs these in .venv-vllm")


@pytest.fixture(scope="session")
def folder(_vllm_is_here, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "toy"
    return write_language_model(folder, vocabulary=500, width=64, layers=3)


@pytest.fixture(scope="session")
def writers(_vllm_is_here, tmp_path_factory):
    """A model whose texts follow from prompts: served by vLLM, by transformers, and itself."""
    folder = tmp_path_factory.mktemp("models") / "writer"
    write_language_model(folder, vocabulary=500, width=64, layers=3)
    continue_on(folder, [f"{row['label']}: {row['text']}" for row in public_rows(300, seed=0)])
    language_model = load_language_model(folder, device="cpu")
    engine = VllmEngine(language_model, SMALL, batch_tokens=48)
    yield engine, DecoderEngine(language_model, batch_rows=16), language_model
    engine.close()


def continue_on(folder, texts, steps=250):
    """Trains weights for seconds."""
    language_model = load_language_model(folder, device="cpu")
    torch.manual_seed(0)
    model = LlamaForCausalLM(AutoConfig.from_pretrained(folder, initializer_range=0.05))
    ends = [[language_model.begin_token_id], [language_model.end_token_id]]
    stream = [id for text in texts for id in (*ends[0], *language_model.encode(text), *ends[1])]
    windows = torch.tensor(stream[: len(stream) // 128 * 128]).view(-1, 128)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for _ in range(steps):
        batch = windows[torch.randint(len(windows), (16,))]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)


@pytest.fixture(scope="session")
def language_model(folder):
    return load_language_model(folder, device="cpu")


@pytest.fixture(scope="session")
def transformers_engine(language_model):
    return DecoderEngine(language_model, batch_rows=16)


@pytest.fixture(scope="session")
def vllm_engine(language_model):
    """So small that prompts are read in parts and rows wait for one another."""
    engine = VllmEngine(language_model, SMALL, batch_tokens=48)
    yield engine
    engine.close()
