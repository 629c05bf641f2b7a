"""Who asks for exact sums gets them, and a charge that says nothing is the charge it always was."""

from dataclasses import replace

import pytest

from dpsynth_assets.methods.fine_tuning import DownstreamFineTuning
from dpsynth_assets.methods.fine_tuning.config import CtclConfig, DownstreamConfig
from dpsynth_assets.models.fine_tuning import CheckpointFolders, sources
from dpsynth_assets.privacy.per_example import PerExampleGradients, Products

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
    assert plan.parameters.get("exact_sums", False) is (products is Products.FLOAT64)


def test_a_charge_without_the_choice_keeps_its_parameters():
    assert "exact_sums" not in CtclConfig().model_dump(mode="json")
    assert CtclConfig(exact_sums=True).model_dump(mode="json")["exact_sums"] is True
    for config in (CtclConfig(), CtclConfig(exact_sums=True)):
        assert CtclConfig(**config.model_dump(mode="json")) == config
