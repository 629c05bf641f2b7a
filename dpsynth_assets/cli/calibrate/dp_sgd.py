"""The noise multiplier that DP-SGD needs, with the histogram of CTCL in the same budget."""

from dpsynth_assets.cli.account.dp_sgd import (
    SampleSize,
    Steps,
    Training,
    price_training,
    say_training,
)
from dpsynth_assets.cli.account.options import (
    Accountant,
    AsJson,
    Delta,
    HistogramNoiseStd,
    Records,
    RecordsPerUnit,
    Relation,
    TargetEpsilon,
    positive,
)
from dpsynth_assets.cli.account.printing import refusals, show, up_significant
from dpsynth_assets.privacy.calibration import dp_sgd_noise_multiplier
from dpsynth_assets.privacy.renyi import check_delta
from dpsynth_assets.privacy.units import NeighboringRelation


def dp_sgd(  # noqa: PLR0913 - one argument an option
    records: Records,
    expected_batch_size: SampleSize,
    steps: Steps,
    epsilon: TargetEpsilon,
    delta: Delta,
    histogram_noise_std: HistogramNoiseStd = None,
    accountant: Accountant = "tight",
    relation: Relation = NeighboringRelation.ADD_REMOVE,
    max_records_per_unit: RecordsPerUnit = 1,
    as_json: AsJson = False,
) -> None:
    """Finds the smallest noise multiplier (noise std / clipping bound) within ε at δ."""
    with refusals():
        check_delta(delta)
        positive(epsilon=epsilon)
        settings = Training(
            records=records,
            expected_batch_size=expected_batch_size,
            steps=steps,
            relation=relation,
            max_records_per_unit=max_records_per_unit,
            histogram_noise_std=histogram_noise_std,
        )
        noise_multiplier = dp_sgd_noise_multiplier(
            sampling_probability=settings.sampling_probability,
            steps=steps,
            target_epsilon=epsilon,
            delta=delta,
            accountant=accountant,
            other_events=settings.other_events,
            max_records_per_unit=max_records_per_unit,
            replaced=relation is NeighboringRelation.REPLACE_ONE,
        )
        result = {
            "mechanism": "dp-sgd",
            "target_epsilon": epsilon,
            **settings.facts(),
            **price_training(settings, noise_multiplier, delta, accountant),
        }
    found = f"Noise multiplier {up_significant(noise_multiplier, 5)} of the clipping bound."
    show(result, [found, *say_training(result)], as_json)
