import json

import numpy as np
import pytest

from dpsynth_assets.models.topic_model.model import TopicModel, TopicModelError


@pytest.fixture
def folder(model, tmp_path):
    model.save(tmp_path / "topics")
    return tmp_path / "topics"


def test_a_saved_model_is_the_same_when_loaded(model, folder, corpus):
    loaded = TopicModel.load(str(folder))
    np.testing.assert_array_equal(loaded.embeddings, model.embeddings)
    np.testing.assert_array_equal(loaded.sizes, model.sizes)
    np.testing.assert_array_equal(loaded.assign(corpus.embeddings), model.assign(corpus.embeddings))
    for name in ("keywords", "fallback_keywords", "threshold", "settings", "embedder", "bins"):
        assert getattr(loaded, name) == getattr(model, name)


def test_files_are_safetensors_parquet_and_json(folder):
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".parquet", ".json"}


def test_saving_again_replaces_the_model(model, folder):
    model.save(folder)
    assert TopicModel.load(folder).keywords == model.keywords


def manifest_with(folder, **changes):
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def damage(folder, name):
    (folder / name).write_bytes(b"damaged")


@pytest.mark.parametrize(
    ("break_it", "expected"),
    [
        (lambda folder: manifest_with(folder, version=0), "another version"),
        (lambda folder: manifest_with(folder, format="other"), "of one dpsynth topic model"),
        (lambda folder: manifest_with(folder, topics=2), "damaged"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "damaged"),
        (lambda folder: (folder / "manifest.json").unlink(), "got none"),
        (lambda folder: damage(folder, "manifest.json"), "damaged"),
        (lambda folder: damage(folder, "topics.safetensors"), "damaged"),
        (lambda folder: damage(folder, "topics.parquet"), "damaged"),
        (lambda folder: (folder / "topics.parquet").unlink(), "missing file"),
    ],
)
def test_another_version_or_a_broken_folder_is_refused_in_one_line(folder, break_it, expected):
    break_it(folder)
    with pytest.raises(TopicModelError, match=expected) as caught:
        TopicModel.load(folder)
    assert "\n" not in str(caught.value)
