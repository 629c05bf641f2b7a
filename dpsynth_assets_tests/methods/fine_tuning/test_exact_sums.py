"""Who asks for exact sums gets them, and a charge that says nothing is the charge it always was."""

from dataclasses import replace

import pytest

from dpsynth_assets.methods.fine_tuning import DownstreamFineTuning
from dpsynth_assets.methods.fine_tuning.config import CtclConfig, DownstreamConfig
from dpsynth_assets.models.fine_tuning import sources
from dpsynth_assets.privacy.per_example import (
    GRADIENT_SLACK,
    PerExampleGradients,
    Products,
    most_in_company,
)
from dpsynth_assets_tests.checkpoint_folders import CheckpointFolders

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
    method = DownstreamFineTuning(DownstreamConfig(**TRAINING, **chosen), cases.terms())
    plan = method.plan(4.0)
    [stage] = plan.stages
    inputs, checkpoint = replace(public, public_records=None), CheckpointFolders(tmp_path / "c")
    stage.release(cases.private(), inputs, checkpoint, lambda *_: None)
    assert asked == [products]
    passes = stage.rests_on["gradients"]["passes"]
    assert passes == ("alone" if products is Products.FLOAT64 else "shared")
    assert plan.parameters.get("exact_sums", False) is (products is Products.FLOAT64)


def test_the_bound_that_is_kept_back_follows_from_public_numbers(cases):
    terms = cases.terms()

    def declared(**chosen):
        return DownstreamFineTuning(DownstreamConfig(**TRAINING, **chosen), terms)

    mates = declared().records_in_company
    assert mates == most_in_company(10, GRADIENT_SLACK)
    assert declared(exact_sums=True).records_in_company == 0
    assert declared(gradient_slack=0.1).records_in_company == 0  # Too much kept back: all alone.
    fine = declared(gradient_slack=1e-3)
    [stage] = DownstreamFineTuning(fine.config, terms).plan(4.0).stages
    assert stage.mechanism.record_bound == pytest.approx(1 / (1 + mates * 1e-3))
    assert stage.rests_on["gradients"] == {
        "passes": "shared",
        "gradient_slack": 1e-3,
        "most_in_company": mates,
    }
    assert declared().takes_slack_of_float32
    assert not fine.takes_slack_of_float32


def test_a_charge_without_the_choice_keeps_its_parameters():
    assert "gradient_slack" not in CtclConfig().model_dump(mode="json")
    assert CtclConfig(gradient_slack=1e-4).model_dump(mode="json")["gradient_slack"] == 1e-4
    assert "exact_sums" not in CtclConfig().model_dump(mode="json")
    assert CtclConfig(exact_sums=True).model_dump(mode="json")["exact_sums"] is True
    for config in (CtclConfig(), CtclConfig(exact_sums=True)):
        assert CtclConfig(**config.model_dump(mode="json")) == config
