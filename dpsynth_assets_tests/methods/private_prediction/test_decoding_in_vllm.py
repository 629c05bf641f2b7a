"""Private prediction whose base declares vLLM, where vLLM is not installed: plans and refusals."""

import sys

import pytest

from dpsynth_assets.datasets.public_spec import EngineSpec, LanguageModelSpec
from dpsynth_assets.methods.base import priced
from dpsynth_assets.methods.private_prediction.decoding import decoder_of
from dpsynth_assets.methods.registry import bound_method
from dpsynth_assets.models.vllm_decoder import VllmDecoderError, opening, process
from dpsynth_assets_tests.methods.private_prediction.conftest import NAMES

BATCHES = {"expected_batch_size": 8, "clip_bound": 2.0, "max_example_tokens": 6}


def planned(name, cases, kind, **settings):
    spec = LanguageModelSpec(kind="pretrained", model="folder", decoder=kind)
    terms = cases.terms(accepts_ex_post=True, epsilon=900.0, language_model=spec)
    method = bound_method(name, BATCHES | settings, terms)
    return method, priced(method, 200.0)


@pytest.fixture
def without_vllm(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr(process, "prepare_vllm", lambda: None)


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_charges_for_rounding_as_with_transformers_and_names_vllm(name, cases):
    method, plan = planned(name, cases, "vllm")
    _, rounded = planned(name, cases, "transformers")
    assert plan.refusal is None
    assert plan.epsilon == rounded.epsilon
    assert plan.parameters == rounded.parameters | {"decoder": "vllm"}
    assert plan.parameters["logit_slack"] > 0
    assert method.declared.rows_per_pass == method.declared.facts.rows_per_pass


@pytest.mark.parametrize("name", NAMES)
def test_a_slack_of_zero_is_refused(name, cases):
    _, plan = planned(name, cases, "vllm", logit_slack=0.0)
    assert plan.refusal.startswith("Expected logit_slack > 0 with decoder: transformers or vllm")


@pytest.mark.parametrize("name", NAMES)
def test_an_environment_without_vllm_is_refused_before_a_charge(name, cases, without_vllm):
    _method, plan = planned(name, cases, "vllm")
    model = cases.model()
    model.source, model.dtype, model.name = "folder", "float32", "folder"
    model.config = model.model.config
    public = cases.clustered(model)
    with pytest.raises(VllmDecoderError, match="Expected vllm in this environment") as refused:
        plan.stages[0].check(public)
    assert "\n" not in str(refused.value)


def test_another_vllm_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", type(sys)("vllm"))
    sys.modules["vllm"].__version__ = "0.33.1"
    with pytest.raises(VllmDecoderError, match=r"Expected vllm 0\.32, found 0\.33\.1"):
        process._require_version()


def test_its_memory_is_that_of_an_engine_of_its_kind(cases, monkeypatch):
    asked = []
    monkeypatch.setattr(opening, "opened_decoder", lambda model, engine: asked.append(engine))
    spec = LanguageModelSpec(kind="pretrained", model="folder", decoder="vllm")
    for engine in (EngineSpec(kind="vllm", cache_gib=3), EngineSpec(device="cpu")):
        decoder_of(cases.terms(language_model=spec, engine=engine), None)
    assert [each and each.cache_gib for each in asked] == [3, None]


def test_other_bases_never_open_it(cases, monkeypatch):
    monkeypatch.setattr(opening, "opened_decoder", lambda *_: pytest.fail("opened"))
    model = cases.model()
    engine = EngineSpec(kind="vllm")
    for kind in ("transformers", None):
        spec = LanguageModelSpec(kind="pretrained", model="folder", decoder=kind)
        opened = decoder_of(cases.terms(language_model=spec, engine=engine), model)
        assert opened.model is model.model


def test_a_device_beside_it_is_refused():
    with pytest.raises(ValueError, match="Expected auto with decoder: vllm") as refused:
        LanguageModelSpec(kind="smollm2", decoder="vllm", device="cuda")
    assert "\n" not in refused.value.errors()[0]["msg"]
    assert not LanguageModelSpec(kind="smollm2", decoder="vllm").decodes_exactly
