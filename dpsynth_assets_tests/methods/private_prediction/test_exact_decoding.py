"""Private prediction on the exact decoder: what a base declares is planned, charged and run."""

import sys
from types import SimpleNamespace

import pytest
import torch

from dpsynth_assets.datasets.public_spec import EngineSpec, LanguageModelSpec, PublicDataSpec
from dpsynth_assets.methods.base import priced
from dpsynth_assets.methods.dataset_plan import cohort_terms
from dpsynth_assets.methods.private_prediction.decoding import decoder_of
from dpsynth_assets.methods.registry import bound_method
from dpsynth_assets.models.decoding import open_decoder
from dpsynth_assets.models.exact_decoder.decoder import ExactDecoder
from dpsynth_assets.models.vllm_decoder import VllmDecoderError, opening, process
from dpsynth_assets.report.label_texts import assumptions, texts
from dpsynth_assets_tests.declared import private
from dpsynth_assets_tests.methods.private_prediction.conftest import NAMES, small

BATCHES = {"max_batches": 2, "max_document_tokens": 12, "max_example_tokens": 6}


def declared(decoder):
    return LanguageModelSpec(kind="pretrained", model="folder", decoder=decoder)


def planned(name, cases, decoder, **settings):
    """A method as a dataset file on such a base has it, and its plan."""
    whole = {} if name in ("median_clustered", "invisible_ink") else {"public_top_k": None}
    terms = cases.terms(
        accepts_ex_post=True, epsilon=60.0, language_model=decoder and declared(decoder)
    )
    method = bound_method(name, small(name, **(BATCHES | whole | settings)), terms)
    return method, priced(method, 12.0)


@pytest.fixture
def model(cases, tmp_path):
    """The character model in a folder, where the exact decoder finds it."""
    opened = cases.model()
    opened.model.save_pretrained(tmp_path)
    opened.source = str(tmp_path)
    return opened


@pytest.mark.parametrize(
    ("spec", "exactly"),
    [
        ({"kind": "smollm2"}, True),
        ({"kind": "smollm2", "decoder": "transformers"}, False),
        ({"kind": "smollm2", "device": "cuda"}, False),
        ({"kind": "smollm2", "device": "cuda", "decoder": "exact"}, True),
        ({"kind": "smollm2", "dtype": "bfloat16"}, False),
        ({"kind": "smollm2", "decoder": "vllm"}, False),
        ({"kind": "pretrained", "model": "owner/name"}, False),
        ({"kind": "pretrained", "model": "owner/name", "decoder": "exact"}, True),
        ({}, True),
    ],
)
def test_a_base_decodes_exactly_by_its_declaration(spec, exactly):
    assert LanguageModelSpec(**spec).decodes_exactly is exactly


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"decoder": "exact", "dtype": "bfloat16"}, "with decoder: exact"),
        ({"decoder": "vllm", "device": "cuda"}, "Expected auto with decoder: vllm"),
    ],
)
def test_a_decoder_is_refused_beside_what_it_does_not_do(spec, told):
    with pytest.raises(ValueError, match=told) as refusal:
        LanguageModelSpec(kind="smollm2", **spec)
    assert "\n" not in refusal.value.errors()[0]["msg"]


@pytest.mark.parametrize("name", NAMES)
def test_exact_logits_are_planned_without_rounding_and_others_with_the_same(name, cases):
    exact, plan = planned(name, cases, "exact")
    rounded, dearer = planned(name, cases, "transformers")
    assert (exact.config.logit_slack, plan.parameters["logit_slack"]) == (0.0, 0.0)
    assert plan.parameters["decoder"] == "exact"
    assert rounded.config.logit_slack == dearer.parameters["logit_slack"] > 0
    assert "decoder" not in dearer.parameters
    assert exact.declared.facts.slack_of_pass == 0 < rounded.declared.facts.slack_of_pass
    assert exact.declared.rows_per_pass is None
    assert rounded.declared.rows_per_pass == rounded.declared.facts.rows_per_pass
    assert plan.parameters["eta"] < dearer.parameters["eta"]
    in_vllm, same = planned(name, cases, "vllm")
    assert same.epsilon == dearer.epsilon
    assert same.parameters == dearer.parameters | {"decoder": "vllm"}
    assert in_vllm.declared.rows_per_pass == rounded.declared.rows_per_pass


@pytest.mark.parametrize("name", NAMES)
def test_what_is_declared_is_what_decodes(name, cases, model, monkeypatch):
    """Transformers' weights are out of reach, so that nothing else can have decoded."""
    method, plan = planned(name, cases, "exact")
    monkeypatch.setattr(model, "model", None)
    public = cases.clustered(model)
    plan.stages[0].check(public)
    release = cases.release(method, plan, cases.private(64), public)
    assert len(release.value.rows)
    if name != "median_clustered":
        assert release.cost.event == plan.event


def test_a_folder_is_opened_once_and_again_when_its_weights_change(cases, model):
    first = open_decoder("exact", model)
    assert first.is_exact
    assert open_decoder("exact", model) is first
    with torch.no_grad():
        model.model.lm_head.weight.add_(1.0)
    model.model.save_pretrained(model.source)
    assert open_decoder("exact", model) is not first
    assert open_decoder("transformers", model).model is model.model


def test_labels_say_what_logits_rest_on(cases):
    _, plan = planned("mean_uniform", cases, "exact")
    draws = {
        name: SimpleNamespace(event=plan.event, parameters={"decoder": name})
        for name in ("exact", "transformers")
    }
    exact, slack = (texts()["assumptions"][f"logits_{name}"] for name in ("exact", "slack"))
    for made, stated in (
        (("exact",), {exact}),
        (("transformers",), {slack}),
        (draws, {exact, slack}),
    ):
        assert {exact, slack} & {*assumptions([draws[name] for name in made])} == stated


def test_a_pass_has_no_bound_on_its_rows(cases, model, monkeypatch):
    passes, contexts = [], ExactDecoder.open

    def spy(decoder, prompts, **settings):
        if settings.get("public_prefixes"):  # of private contexts
            passes.append(len(prompts))
        return contexts(decoder, prompts, **settings)

    monkeypatch.setattr(ExactDecoder, "open", spy)
    method, plan = planned(
        "mean_uniform", cases, "exact", batches_per_label=1, batches_per_forward=1
    )
    cases.release(method, plan, cases.private(600), cases.clustered(model))
    assert passes == [300, 300]
    assert method.declared.facts.rows_per_pass < 300


@pytest.mark.parametrize(
    ("engine", "base", "kind"),
    [
        ({}, {"kind": "smollm2"}, "exact"),
        ({"batch_rows": 8}, {"kind": "smollm2"}, "exact"),
        ({"kind": "transformers"}, {"kind": "smollm2"}, "transformers"),
        ({"device": "cpu"}, {"kind": "smollm2"}, "transformers"),
        ({"model": "owner/name"}, {"kind": "smollm2"}, "transformers"),
        ({}, {"kind": "smollm2", "decoder": "transformers"}, "transformers"),
        ({}, {"kind": "pretrained", "model": "a/b"}, "transformers"),
    ],
)
def test_cohorts_write_through_the_decoder_of_their_base(engine, base, kind):
    spec = private(engine=engine)
    terms = cohort_terms(spec, PublicDataSpec(name="base", language_model=base))
    assert terms.engine.kind == kind
    assert terms.engine.batch_rows == spec.engine.batch_rows


# Private prediction whose base declares vLLM, where vLLM is not installed: plans and refusals.


@pytest.mark.parametrize("name", ["mean_svt", "median_clustered"])
def test_an_environment_without_vllm_is_refused_before_a_charge(name, cases, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr(process, "prepare_vllm", lambda: None)
    _method, plan = planned(name, cases, "vllm")
    model = cases.model()
    model.source, model.dtype, model.name = "folder", "float32", "folder"
    model.config = model.model.config
    public = cases.clustered(model)
    with pytest.raises(VllmDecoderError, match="in this environment, found none") as refused:
        plan.stages[0].check(public)
    assert "\n" not in str(refused.value)


def test_another_vllm_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", type(sys)("vllm"))
    sys.modules["vllm"].__version__ = "0.33.1"
    with pytest.raises(VllmDecoderError, match=r"Expected vllm 0\.32 .*, found 0\.33\.1"):
        process._require_version()


def test_its_memory_is_that_of_an_engine_of_its_kind(cases, monkeypatch):
    asked = []
    monkeypatch.setattr(opening, "opened_decoder", lambda model, engine: asked.append(engine))
    for engine in (EngineSpec(kind="vllm", cache_gib=3), EngineSpec(device="cpu")):
        decoder_of(cases.terms(language_model=declared("vllm"), engine=engine), None)
    assert [each and each.cache_gib for each in asked] == [3, None]
