"""Engines open once per process, from a declaration whose mistakes are found before that."""

import sys

import pytest
from pydantic import ValidationError

from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.models.engines.decoder_engine import DecoderEngine
from dpsynth_assets.models.engines.openai_endpoint import OpenAiEndpoint
from dpsynth_assets.models.engines.protocol import EngineError, close_engines, open_engine, serving
from dpsynth_assets.models.language_model import LanguageModel
from dpsynth_assets_tests.children import python

ENDPOINT = {"kind": "openai", "model": "m", "base_url": "https://host/v1"}


@pytest.fixture(autouse=True)
def nothing_open():
    close_engines()
    yield
    close_engines()


def test_one_declaration_is_opened_once(toy_folder, toy_model):
    spec = EngineSpec(model=str(toy_folder), device="cpu")
    engine = open_engine(spec)
    assert isinstance(engine, DecoderEngine)
    assert open_engine(EngineSpec(model=str(toy_folder), device="cpu")) is engine
    assert open_engine(EngineSpec(model=str(toy_folder), device="cpu", batch_rows=2)) is not engine


def test_the_datasets_model_is_served_unless_another_is_named(toy_folder):
    model = LanguageModel(str(toy_folder))
    engine = open_engine(EngineSpec(), language_model=model)
    assert engine.language_model is model
    assert open_engine(EngineSpec(), language_model=LanguageModel(str(toy_folder))) is engine
    assert open_engine(EngineSpec(kind="exact"), language_model=model).decoder.is_exact


def test_an_endpoint_opens_with_its_prices(monkeypatch):
    monkeypatch.setenv("K", "secret")
    spec = EngineSpec(
        **ENDPOINT, api_key_variable="K", price_per_million_new_tokens=3, cost_limit=2
    )
    engine = open_engine(spec)
    assert isinstance(engine, OpenAiEndpoint)
    assert (engine.usage.new_price, engine.usage.cost_limit) == (3, 2)
    assert "secret" not in spec.model_dump_json()


def test_a_missing_model_gives_one_line(tmp_path):
    with pytest.raises(EngineError, match="found no config") as raised:
        open_engine(EngineSpec(model=str(tmp_path), device="cpu"))
    assert "\n" not in str(raised.value)
    with pytest.raises(EngineError, match="got none"):
        open_engine(EngineSpec())


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"kind": "transformers", "base_url": "https://h/v1"}, "no base_url"),
        ({"kind": "transformers", "tensor_parallel_size": 2}, "no tensor_parallel_size"),
        ({"kind": "vllm", "api_key_variable": "K"}, "no api_key_variable"),
        ({"kind": "vllm", "device": "cuda"}, "no device"),
        (ENDPOINT | {"memory_fraction": 0.5}, "no memory_fraction"),
        ({"kind": "openai", "model": "m"}, "base_url and model"),
        ({"kind": "openai", "base_url": "https://h/v1"}, "base_url and model"),
        (ENDPOINT | {"base_url": "https://user:pass@h/v1"}, "without credentials"),
        (ENDPOINT | {"base_url": "https://h/v1?key=1"}, "without credentials"),
        (ENDPOINT | {"base_url": "http://h/v1", "api_key_variable": "K"}, "https"),
        (ENDPOINT | {"base_url": "ftp://localhost/v1"}, "https"),
        (ENDPOINT | {"api_key_variable": "sk-12345"}, "pattern"),
        (ENDPOINT | {"api_key": "K"}, "api_key"),
        ({"kind": "vllm", "memory_fraction": 0}, "memory_fraction"),
    ],
)
def test_declarations_that_cannot_be_meant_are_refused(declared, message):
    with pytest.raises(ValidationError, match=message):
        EngineSpec(**declared)


def test_plain_http_may_carry_a_key_within_this_machine_alone():
    for url in ("http://127.0.0.1:8000/v1", "http://localhost/v1"):
        EngineSpec(**ENDPOINT | {"base_url": url, "api_key_variable": "K"})
    EngineSpec(**ENDPOINT | {"base_url": "http://10.0.0.5:8000/v1"})


def test_the_transformers_engine_needs_neither_pydantic_nor_polars_nor_dagster():
    program = """
import sys, json
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pydantic", "polars", "dagster", "vllm", "httpx"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
import dpsynth_assets.models.engines.decoder_engine
import dpsynth_assets.models.vllm_decoder.engine
import dpsynth_assets.models.engines.openai_endpoint
import dpsynth_assets.models.vllm_decoder.lockstep
del sys.meta_path[0]
import dpsynth_assets.models.vllm_decoder.opening
import dpsynth_assets.methods.private_prediction
print(json.dumps([name for name in ("torch", "transformers", "vllm") if name in sys.modules]))
"""
    assert python("-c", program).strip() == "[]"


def test_vllm_that_is_not_installed_gives_one_line(toy_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(EngineError, match="in this environment, found none"):
        open_engine(EngineSpec(kind="vllm", model=str(toy_folder)))


def test_weights_of_one_caller_are_served_and_closed_and_never_shared(toy_folder, monkeypatch):
    closed = []
    monkeypatch.setattr(DecoderEngine, "close", lambda engine: closed.append(engine))
    weights = LanguageModel(str(toy_folder))
    with serving(EngineSpec(), weights) as engine:
        assert engine.language_model is weights
        assert open_engine(EngineSpec(), language_model=weights) is not engine
        assert not closed
    assert closed == [engine]


@pytest.mark.parametrize("declared", [ENDPOINT, {"kind": "transformers", "model": "owner/other"}])
def test_an_engine_with_a_model_of_its_own_serves_no_others_weights(toy_folder, declared):
    with (
        pytest.raises(EngineError, match="got one with a model of its own"),
        serving(EngineSpec(**declared), LanguageModel(str(toy_folder))),
    ):
        pass


@pytest.mark.parametrize("declared", [{}, {"kind": "vllm", "cache_gib": 2}, ENDPOINT])
def test_a_declaration_written_out_in_full_reads_back_as_it_was(declared):
    spec = EngineSpec(**declared)
    again = EngineSpec.model_validate_json(spec.model_dump_json())
    assert again == spec
    assert EngineSpec.model_validate(again.model_dump(mode="json")) == spec
