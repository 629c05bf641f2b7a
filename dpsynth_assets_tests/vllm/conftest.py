"""An embedded language model trained in seconds, served by vLLM and by transformers."""

import importlib.util

import polars as pl
import pytest
from mailboxes import public_rows

from dpsynth_assets.models.engines.transformers_engine import TransformersEngine
from dpsynth_assets.models.engines.vllm_engine import VllmEngine
from dpsynth_assets.models.language_model import load_language_model
from dpsynth_assets.models.language_model_training import TrainingSettings, train_language_model

_SETTINGS = TrainingSettings(
    vocabulary=500, width=64, heads=2, layers=3, feed_forward=96, token_budget=180_000,
    batch_tokens=2048, sequence_tokens=(128, 256), threads=1,
)  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def _vllm_is_here():
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vllm is not importable here; `make test-vllm` runs these in .venv-vllm")


@pytest.fixture(scope="session")
def folder(_vllm_is_here, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "embedded"
    train_language_model(pl.DataFrame(public_rows(300, seed=0)), folder, _SETTINGS)
    return folder


@pytest.fixture(scope="session")
def language_model(folder):
    return load_language_model(folder, device="cpu")


@pytest.fixture(scope="session")
def transformers_engine(language_model):
    return TransformersEngine(language_model, batch_rows=16)


@pytest.fixture(scope="session")
def vllm_engine(language_model):
    """So small that prompts are read in parts and rows wait for one another."""
    engine = VllmEngine(language_model, batch_rows=12, batch_tokens=48, cache_gib=0.25)
    yield engine
    engine.close()
