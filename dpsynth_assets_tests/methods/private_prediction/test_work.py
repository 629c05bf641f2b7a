"""What is counted beforehand is what the decoder counts when the passes run."""

import pytest

from dpsynth_assets.methods.registry import get_method
from dpsynth_assets.methods.work import PublicSizes
from dpsynth_assets.models.decoding.protocol import COUNTS
from dpsynth_assets_tests.methods.private_prediction.test_methods import config_of, run

RECORDS = 64


def sizes(language_model, records=RECORDS):
    return PublicSizes(
        text_tokens=10, documents=100, records=records, label_texts=("x", "y"), prompts=None,
        tokens_of=lambda words: len(language_model.encode(words)),
    )  # fmt: skip


@pytest.mark.parametrize("finishes", ["drop", "finish_publicly"])
def test_counted_work_is_what_the_decoder_does(finishes, cases, endless_model):
    config = config_of("mean_uniform", batches_per_label=4, max_batches=8, on_exhaustion=finishes)
    before = COUNTS.copy()
    plan, _ = run(
        "mean_uniform", cases, endless_model, private=cases.private(RECORDS), config=config
    )
    done = COUNTS - before
    get_method("mean_uniform")(config, cases.terms())
    work = plan.stages[0].work(plan, sizes(endless_model))
    assert work.written == pytest.approx(done["written"], rel=0.15)
    assert work.steps == pytest.approx(2 * plan.tokens_per_batch, rel=0.25)


def test_batches_follow_declared_facts_alone(cases, endless_model):
    config = config_of("mean_clustered")
    method = get_method("mean_clustered")(
        config, cases.terms(public_records=None, has_cluster_histogram=True)
    )
    plan = method.plan(10.0)
    assert plan.refusal is None
    many, few = (plan.stages[0].work(plan, sizes(endless_model, records)) for records in (64, 16))
    assert many.written > few.written
