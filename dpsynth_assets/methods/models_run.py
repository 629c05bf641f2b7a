"""Names of the models that a step computes with, by which it asks for processors or GPUs."""

from typing import Final

from dpsynth_assets.datasets.engine import EngineSpec

LANGUAGE_MODEL: Final = "public_language_model"
"""The base's language model, decoded: by exact integers on processors where the base says so."""

LANGUAGE_MODEL_WEIGHTS: Final = "public_language_model weights"
"""Its weights in floating point (training, likelihoods), on the device that the base names."""

TEXT_EMBEDDER: Final = "text_embedder"
CONDITIONAL_GENERATOR: Final = "conditional_generator"

RunModel = str | EngineSpec
"""One of these names, or an engine with what it serves."""
