"""A tiny language model, served by vLLM and by transformers."""

import importlib.util

import pytest

from dpsynth_assets.models.engines.transformers_engine import TransformersEngine
from dpsynth_assets.models.engines.vllm_engine import VllmEngine
from dpsynth_assets.models.language_model import load_language_model
from dpsynth_assets_tests.tiny_models import write_language_model


@pytest.fixture(scope="session", autouse=True)
def _vllm_is_here():
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vllm is not importable here; `make test-vllm` runs these in .venv-vllm")


@pytest.fixture(scope="session")
def folder(_vllm_is_here, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "toy"
    return write_language_model(folder, vocabulary=500, width=64, layers=3)


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
