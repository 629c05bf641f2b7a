"""DP-SGD with its histogram, as CTCL releases them: the price, and the noise of a target."""

from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.calibration import dp_sgd_noise_multiplier
from dpsynth_assets.privacy.dp_sgd import dp_sgd_event
from dpsynth_assets.privacy.events import DiscreteGaussianEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation


def histogram_events(noise_std):
    return [] if noise_std is None else [DiscreteGaussianEvent(noise_std=noise_std)]


def training_price(rate, steps, *, noise_multiplier, delta, histogram_noise_std=None):
    training = dp_sgd_event(
        sampling_probability=rate,
        noise_multiplier=noise_multiplier,
        steps=steps,
        relation=NeighboringRelation.ADD_REMOVE,
    )
    histogram = histogram_events(histogram_noise_std)
    return {
        "noise_multiplier": noise_multiplier,
        "epsilon": epsilon_of([*histogram, training], delta, "tight"),
        "epsilon_training": epsilon_of([training], delta, "tight"),
        "epsilon_histogram": epsilon_of(histogram, delta, "tight"),
    }


def calibrated_training(rate, steps, *, epsilon, delta, histogram_noise_std=None):
    found = dp_sgd_noise_multiplier(
        dp_sgd_event(
            sampling_probability=rate,
            noise_multiplier=1.0,
            steps=steps,
            relation=NeighboringRelation.ADD_REMOVE,
        ),
        target_epsilon=epsilon,
        delta=delta,
        other_events=histogram_events(histogram_noise_std),
    )
    given = {"delta": delta, "histogram_noise_std": histogram_noise_std}
    return training_price(rate, steps, noise_multiplier=found, **given)
