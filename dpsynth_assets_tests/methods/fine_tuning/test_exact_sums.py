"""Who asks for exact sums gets them, and a charge that says nothing is the charge it always was."""

from dataclasses import replace

import pytest

from dpsynth_assets.methods.fine_tuning import DownstreamFineTuning
from dpsynth_assets.methods.fine_tuning.config import CtclConfig, DownstreamConfig
from dpsynth_assets.methods.fine_tuning.plan import (
    plan_training,
    planned_mechanism,
    records_in_company,
    takes_slack_of_float32,
)
from dpsynth_assets.models.fine_tuning import CheckpointFolders, sources
from dpsynth_assets.privacy.per_example import (
    GRADIENT_SLACK,
    PerExampleGradients,
    Products,
    most_in_company,
)

TRAINING = {"steps": 1, "expected_batch_size": 10, "max_document_tokens": 16}


@pytest.mark.parametrize(
    ("chosen", "products"),
    [({}, Products.NATIVE), ({"exact_sums": True}, Products.FLOAT64)],
    ids=["native", "exact"],
)
def test_the_setting_decides_how_clipped_gradients_are_added(
    chosen, products, cases, public, tmp_path, monkeypatch
):
    asked = []

    def opened(model, products, threads):
        asked.append(products)
        return PerExampleGradients(model, products, threads)

    monkeypatch.setattr(sources, "PerExampleGradients", opened)
    method, config, terms = (
        DownstreamFineTuning(),
        DownstreamConfig(**TRAINING, **chosen),
        cases.terms(),
    )
    plan = method.plan(config, terms, target_epsilon=4.0)
    [stage] = plan.stages
    inputs, checkpoint = replace(public, public_records=None), CheckpointFolders(tmp_path / "c")
    method.release_stage(
        stage, plan, config, terms, cases.private(), inputs, checkpoint, lambda *_: None
    )
    assert asked == [products]
    passes = plan.rests_on[stage]["gradients"]["passes"]
    assert passes == ("alone" if products is Products.FLOAT64 else "shared")
    assert plan.parameters.get("exact_sums", False) is (products is Products.FLOAT64)


def test_records_pass_alone_for_exact_sums_and_share_passes_up_to_what_is_kept_back(
    cases, public, tmp_path, monkeypatch
):
    together = []
    original = sources.LossOfPart
    monkeypatch.setattr(
        sources, "LossOfPart", lambda n, losses: together.append(n) or original(n, losses)
    )
    method, terms = DownstreamFineTuning(), cases.terms()
    inputs = replace(public, public_records=None)
    for number, chosen in enumerate(({"exact_sums": True}, {})):
        together.clear()
        config = DownstreamConfig(**TRAINING, **chosen)
        plan = method.plan(config, terms, target_epsilon=4.0)
        [stage] = plan.stages
        place = CheckpointFolders(tmp_path / str(number))
        method.release_stage(
            stage, plan, config, terms, cases.private(), inputs, place, lambda *_: None
        )
        assert (max(together, default=1) == 1) is bool(chosen)


def test_the_bound_that_is_kept_back_follows_from_public_numbers(cases):
    terms = cases.terms()
    config = DownstreamConfig(**TRAINING)
    mates = records_in_company(config, terms)
    assert mates == most_in_company(10, GRADIENT_SLACK)
    assert records_in_company(DownstreamConfig(**TRAINING, exact_sums=True), terms) == 0
    coarse = DownstreamConfig(**TRAINING, gradient_slack=0.1)
    assert records_in_company(coarse, terms) == 0  # Too much would be kept back: all alone.
    fine = DownstreamConfig(**TRAINING, gradient_slack=1e-3)
    [stage] = (plan := plan_training("model", fine, terms, 4.0)).stages
    mechanism = planned_mechanism(stage, plan, fine, terms)
    assert mechanism.record_bound == pytest.approx(1 / (1 + mates * 1e-3))
    assert plan.rests_on[stage]["gradients"] == {
        "passes": "shared",
        "gradient_slack": 1e-3,
        "most_in_company": mates,
    }
    assert takes_slack_of_float32(config, terms)
    assert not takes_slack_of_float32(fine, terms)


def test_a_charge_without_the_choice_keeps_its_parameters():
    assert "gradient_slack" not in CtclConfig().model_dump(mode="json")
    assert CtclConfig(gradient_slack=1e-4).model_dump(mode="json")["gradient_slack"] == 1e-4
    assert "exact_sums" not in CtclConfig().model_dump(mode="json")
    assert CtclConfig(exact_sums=True).model_dump(mode="json")["exact_sums"] is True
    for config in (CtclConfig(), CtclConfig(exact_sums=True)):
        assert CtclConfig(**config.model_dump(mode="json")) == config
