"""A toy language model, trained once for a few steps."""

import polars as pl
import pytest
from mailboxes import public_rows

from dpsynth_assets.models.language_model import load_language_model
from dpsynth_assets.models.language_model_training import TrainingSettings, train_language_model


@pytest.fixture(scope="session")
def toy_documents():
    return pl.DataFrame(public_rows(200, seed=0))


@pytest.fixture(scope="session")
def toy_settings():
    return TrainingSettings(
        vocabulary=400, width=32, heads=2, layers=2, feed_forward=48, token_budget=6000,
        batch_tokens=512, sequence_tokens=(128, 256), threads=1,
    )  # fmt: skip


@pytest.fixture(scope="session")
def toy_folder(toy_documents, toy_settings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "toy"
    train_language_model(toy_documents, folder, toy_settings)
    return folder


@pytest.fixture(scope="session")
def toy_model(toy_folder):
    return load_language_model(toy_folder, device="cpu")
