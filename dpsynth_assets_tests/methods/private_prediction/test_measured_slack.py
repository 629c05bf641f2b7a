"""How far company moves a logit: measured, declared, tested before a slack of 0, and refused."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from dpsynth_assets.attacks.audits import latest_results, run_audits, save_results
from dpsynth_assets.attacks.audits.shared_passes import FLOAT32_SLACK
from dpsynth_assets.attacks.logit_moves import (
    MOST_ROWS,
    STEPS,
    WATCHED,
    LogitMoves,
    PassShape,
    companies,
    measured_moves,
)
from dpsynth_assets.cli import audit as cli
from dpsynth_assets.datasets.public_spec import EngineSpec, LanguageModelSpec
from dpsynth_assets.methods.base import priced
from dpsynth_assets.methods.private_prediction import decoding
from dpsynth_assets.methods.private_prediction.aggregates import MeanUniform
from dpsynth_assets.methods.private_prediction.config import MeanUniformConfig
from dpsynth_assets.methods.private_prediction.decoding import (
    cohort_audit,
    require_at_least_measured,
    settings_of,
    slack_file,
)
from dpsynth_assets.methods.private_prediction.preconditions import check_slack
from dpsynth_assets.methods.registry import bound_method
from dpsynth_assets.models.decoding import Decoder
from dpsynth_assets.models.transformers_decoder.decoder import TransformersDecoder
from dpsynth_assets.models.vllm_decoder import opening
from dpsynth_assets.privacy.guarantees import SELF_TEST

SMALL = PassShape(rows=24, columns=48)
BATCHES = {"expected_batch_size": 8, "clip_bound": 2.0, "max_example_tokens": 6}
MIXED = 1e-3
"""Share of the mean of its pass that a planted model adds to each row's logits."""
STILL = LogitMoves(
    by=0.0,
    contexts=24,
    companies=19,
    passes=PassShape(rows=16),
    engine="vllm 0.32.0",
    device="a GPU",
    dtype="bfloat16",
)


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch):
    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)


@pytest.fixture
def mixing(language_model):
    """Planted: each row's logits follow the mean over the rows of its pass."""

    def mix(_module, _inputs, logits):
        return logits + MIXED * logits.mean(dim=0, keepdim=True)

    language_model.model.lm_head.register_forward_hook(mix)
    return language_model


def terms_of(cases, decoder="transformers", **changes):
    spec = LanguageModelSpec(kind="pretrained", model="folder", decoder=decoder, **changes)
    return cases.terms(accepts_ex_post=True, epsilon=900.0, language_model=spec)


def recorded(terms, slack, model):
    """Audits a model and keeps the result, as the command does."""
    (result,) = run_audits(
        [cohort_audit(terms, slack, TransformersDecoder(model.model), model, SMALL)]
    )
    save_results(slack_file(), [dataclasses.replace(result, settings=settings_of(terms))])
    return result


def moves(model, passes=SMALL, **how):
    return measured_moves(TransformersDecoder(model.model), model, passes, **how)


# Measurement


@pytest.mark.parametrize("rows", [WATCHED + 1, 24, MOST_ROWS])
def test_companies_leave_out_add_permute_and_isolate(rows):
    tried = list(companies(rows))
    everyone = list(range(WATCHED))
    assert tried[0] == everyone
    assert everyone[::-1] in tried
    assert [0] in tried
    assert everyone[1:] in tried
    assert {len(each) for each in tried} >= {1, WATCHED, rows}
    assert all(len(set(each)) == len(each) for each in tried)
    assert tried[-1][-WATCHED:] == tried[-3][-WATCHED:]  # In their places, beside others.
    assert {*tried[-1]} & {*tried[-3]} == {*everyone}


def test_float32_rows_move_by_less_than_the_default_slack(language_model):
    found = moves(language_model)
    assert 0 <= found.by <= FLOAT32_SLACK == MeanUniformConfig.model_fields["logit_slack"].default
    assert found.engine.startswith("transformers 5")
    assert (found.device, found.dtype, found.passes.rows) == ("cpu", "float32", 24)


def test_a_row_that_moves_with_its_batch_is_measured(mixing):
    found = moves(mixing)
    assert found.by > 0.1 * MIXED
    assert found.by > FLOAT32_SLACK


def test_a_logit_that_is_no_number_is_an_infinite_move(language_model):
    with torch.no_grad():
        language_model.model.lm_head.weight[5] = float("nan")
    assert moves(language_model).by == float("inf")


# Audit and plan


def test_the_audit_fails_below_what_is_measured_and_passes_above(cases, mixing):
    terms = terms_of(cases)
    low = recorded(terms, FLOAT32_SLACK, mixing)
    assert (low.passed, low.name) == (False, "letters/logit-slack")
    assert "40 public contexts in 21 arrangements of up to 24 rows, 48 tokens" in low.note
    assert recorded(terms, 1.0, mixing).passed
    assert len(latest_results(slack_file())) == 1


def test_a_plan_that_declares_less_than_is_on_record_is_refused(cases, mixing):
    terms = terms_of(cases)

    def refusal(slack, terms=terms):
        settings = BATCHES | {"logit_slack": slack}
        return priced(bound_method("mean_uniform", settings, terms), 200.0).refusal

    assert refusal(FLOAT32_SLACK) is None
    recorded(terms, FLOAT32_SLACK, mixing)
    told = refusal(FLOAT32_SLACK)
    assert told.startswith("Expected logit_slack >= 0.0")
    assert "got 3e-05" in told
    assert "dpsynth audit run letters" in told
    assert "\n" not in told
    assert refusal(4e-3) is None
    told = refusal(4e-3, terms_of(cases, dtype="bfloat16"))
    assert told.startswith("Expected logit_slack as it was measured on this machine (bfloat16)")
    assert "on this machine (cuda)" in refusal(4e-3, terms_of(cases, device="cuda"))
    assert refusal(4e-3, terms_of(cases, "exact", device="cuda")) is None


def test_other_weights_engines_and_products_have_no_result(cases, tmp_path, monkeypatch):
    terms = terms_of(cases, "vllm", dtype="bfloat16")
    terms = dataclasses.replace(terms, engine=EngineSpec(kind="vllm"))
    both = dataclasses.replace(terms, engine=EngineSpec(kind="vllm", tensor_parallel_size=2))
    assert settings_of(terms) != settings_of(both)
    folder = LanguageModelSpec(kind="pretrained", model=str(tmp_path))
    terms = dataclasses.replace(terms, language_model=folder)
    before = settings_of(terms)
    (tmp_path / "model.safetensors").write_text("other weights")
    assert settings_of(terms) != before
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    gpu = SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32, engine_name="it")
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert Decoder.facts.fget(gpu) == {"engine": "it", "device": "a GPU", "dtype": "TF32"}


def test_an_exact_decoder_that_moves_would_be_refused_too(cases, mixing):
    terms = terms_of(cases, "exact")
    recorded(terms, 0.0, mixing)
    with pytest.raises(ValueError, match="Expected logit_slack >= "):
        require_at_least_measured(terms, 0.0)


# The command


def audited(monkeypatch, cases, model, slack, *words):
    method = bound_method("mean_uniform", BATCHES | {"logit_slack": slack}, terms_of(cases))
    plan = SimpleNamespace(terms=method.terms, methods=(SimpleNamespace(method=method),))
    spec = SimpleNamespace(public_data="demo")
    monkeypatch.setattr(cli, "find_cohort", lambda *_, **__: spec)
    monkeypatch.setattr("dpsynth_assets.methods.planning.plan_dataset", lambda _: plan)
    opened = SimpleNamespace(
        models=SimpleNamespace(language_model=lambda _: model),
        values=lambda names: dict.fromkeys(names),
    )
    monkeypatch.setattr(cli, "public_base", lambda _: opened)
    monkeypatch.setattr("dpsynth_assets.models.prompt_templates.prompted", lambda made, _: made)
    return CliRunner().invoke(cli.app, ["run", "letters", *words])


def test_the_command_keeps_a_result_and_refuses_too_low_a_slack(monkeypatch, cases, mixing):
    failed = audited(monkeypatch, cases, mixing, FLOAT32_SLACK)
    assert failed.exit_code == 1, failed.output
    assert "letters/logit-slack" in failed.output
    with pytest.raises(ValueError, match="Expected logit_slack >= "):
        require_at_least_measured(terms_of(cases), FLOAT32_SLACK)
    assert "letters/logit-slack" in CliRunner().invoke(cli.app, ["show"]).output
    declared = audited(monkeypatch, cases, mixing, 1.0, "--only", "logit-slack")
    assert declared.exit_code == 0
    require_at_least_measured(terms_of(cases), 1.0)


def test_the_command_notices_a_planted_bug(monkeypatch, cases, language_model):
    told = audited(monkeypatch, cases, language_model, FLOAT32_SLACK, "--with-planted-bugs")
    assert told.exit_code == 0, told.output
    assert "1 of 1 audits passed, 1 of 1 planted bugs noticed" in told.output
    assert [each.bug for each in latest_results(slack_file(), with_planted_bugs=True)] == [None]


def test_the_command_refuses_other_audits_of_a_cohort(monkeypatch, cases, language_model):
    told = audited(monkeypatch, cases, language_model, 1.0, "--only", "median-bound")
    assert told.exit_code == 2
    assert "Expected --only logit-slack" in told.output


# Self-test


@pytest.fixture
def on_gpu(monkeypatch, language_model):
    """A stand-in for vLLM on a GPU with batch-invariant kernels."""
    decoder = SimpleNamespace(
        device=torch.device("cuda"), dtype=torch.bfloat16, is_exact=False, can_be_invariant=True
    )
    decoder = type("Decoder", (SimpleNamespace,), {"__hash__": object.__hash__})(**vars(decoder))
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    monkeypatch.setattr(opening, "opened_decoder", lambda *_: decoder)
    return decoder


def test_a_test_of_a_plan_has_its_rows_and_tries_each_company_twice(mixing, monkeypatch):
    tried = []
    monkeypatch.setattr(
        "dpsynth_assets.attacks.logit_moves._largest_move",
        lambda _opened, _prompts, companies, steps: tried.append((companies, steps)) or 0.0,
    )
    passes = PassShape(rows=MOST_ROWS + 60, columns=12, new_tokens=8)
    one, whole = moves(mixing, passes), moves(mixing, passes, whole=True)
    assert (one.passes.rows, whole.passes) == (MOST_ROWS, passes)
    (_, few), (twice, steps) = tried
    assert (few, steps) == (STEPS, passes.new_tokens)
    half = len(twice) // 2
    assert twice[:half] == twice[half:]
    assert max(map(len, twice)) == passes.rows


def test_a_slack_of_zero_in_vllm_is_planned_only_where_kernels_are_asked_for(cases, monkeypatch):
    def plan(kind):
        settings = BATCHES | {"logit_slack": 0.0}
        return priced(bound_method("mean_uniform", settings, terms_of(cases, kind)), 200.0)

    refused = "Expected logit_slack > 0 with decoder: transformers or vllm"
    assert plan("vllm").refusal.startswith(refused)
    assert "VLLM_BATCH_INVARIANT=1" in plan("vllm").refusal
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert plan("vllm").refusal is None
    assert plan("vllm").parameters["logit_slack"] == 0.0
    assert plan("transformers").refusal.startswith("Expected logit_slack > 0")


def test_a_slack_of_zero_is_tested_once_and_stated(cases, language_model, on_gpu, monkeypatch):
    terms, config, runs = terms_of(cases, "vllm"), MeanUniformConfig(logit_slack=0.0), []

    def tested(decoder, model, passes, *, whole):
        runs.append((passes, whole))
        return STILL

    monkeypatch.setattr(decoding, "measured_moves", tested)
    plan = PassShape(rows=600, columns=90, new_tokens=40)
    for passes in (plan, None, plan):
        check_slack(config, terms, language_model, on_gpu, passes)
    monkeypatch.setattr(MeanUniform, "pass_shape", lambda *_: plan)
    method = bound_method("mean_uniform", BATCHES | {"logit_slack": 0.0}, terms)
    facts = method.stages()[0].tested(cases.public(language_model))
    told = facts[SELF_TEST]
    assert (told["passed"], told["rows"], told["device"]) == (True, 16, "a GPU")
    assert runs == [(plan, True)], "at the shape of the plan's own passes"
    check_slack(config, terms, language_model, on_gpu, dataclasses.replace(plan, rows=601))
    assert len(runs) == 2


def test_a_moving_row_a_processor_and_unasked_kernels_are_refused(
    cases, language_model, on_gpu, monkeypatch
):
    terms, config = terms_of(cases, "vllm"), MeanUniformConfig(logit_slack=0.0)

    def refused(decoder, match):
        with pytest.raises(ValueError, match=match) as told:
            check_slack(config, terms, language_model, decoder)
        assert "\n" not in str(told.value)

    moved = dataclasses.replace(STILL, by=2.9e-6)
    monkeypatch.setattr(decoding, "measured_moves", lambda *_, **__: moved)
    refused(on_gpu, r"moves of 2\.9e-06 \(24 public contexts.* a GPU, bfloat16\)")
    with monkeypatch.context() as on_a_processor:
        on_a_processor.setattr(on_gpu, "device", torch.device("cpu"))
        refused(on_gpu, "Expected logit_slack > 0")
    refused(TransformersDecoder(language_model.model), "Expected logit_slack > 0")  # transformers
    monkeypatch.delenv("VLLM_BATCH_INVARIANT")
    refused(on_gpu, "Expected logit_slack > 0")
