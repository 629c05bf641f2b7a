"""Mechanisms of DP-SGD of a few steps."""

from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.guarantees import NeighboringRelation


def mechanism(**changes):
    """One in whose every batch each record is."""
    settings = {
        "l2_bound": 0.5,
        "noise_multiplier": 1.0,
        "sampling_probability": 1.0,
        "steps": 3,
        "expected_batch_size": 4.0,
        "relation": NeighboringRelation.ADD_REMOVE,
    }
    return DpSgdMechanism(**{**settings, **changes})
