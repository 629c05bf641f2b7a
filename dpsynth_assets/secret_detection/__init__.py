"""Finds secrets in private text: who detects, what is found, and how many are missed."""

from dpsynth_assets.secret_detection.detectors import Detector, detector_of, normalised
from dpsynth_assets.secret_detection.incidence import (
    SecretIncidence,
    find_secrets,
    merged_dictionary,
    renumbered,
    values_of_columns,
)
from dpsynth_assets.secret_detection.recall import PlantedRecall, planted_recall

__all__ = [
    "Detector",
    "PlantedRecall",
    "SecretIncidence",
    "detector_of",
    "find_secrets",
    "merged_dictionary",
    "normalised",
    "planted_recall",
    "renumbered",
    "values_of_columns",
]
