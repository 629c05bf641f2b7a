"""Public models through a store: made once, copied whole and unaltered where they are missing."""

from pathlib import Path

import pytest

from dpsynth_assets.files.kept import local_copy, model_folder, share
from dpsynth_assets.models import smollm2
from dpsynth_assets.models.language_model import LanguageModelError
from dpsynth_assets.paths import home, located
from dpsynth_assets.public_base.making import packaged_model
from dpsynth_assets_tests.object_stores import bucket, s3_address

__all__ = ["bucket", "s3_address"]

KIND, VERSION = "language_models", "0123abcd"
CONTENT = {"model.safetensors": b"weights" * 1000, "tokenizer/tokenizer.json": b"{}"}


@pytest.fixture(params=["folder", "s3"])
def store(request, tmp_path, monkeypatch):
    """An address that machines share."""
    address = request.getfixturevalue("bucket") if request.param == "s3" else str(tmp_path / "nas")
    monkeypatch.setenv("DPSYNTH_STORE_URL", address)
    return address


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Moves to a machine of this name, with a disk of its own."""

    def move(name):
        monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / name))
        return home()

    return move


def make(folder):
    for name, content in CONTENT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def contents(folder):
    return {name: (folder / name).read_bytes() for name in CONTENT}


def test_a_model_that_one_machine_made_is_there_on_another(store, machine):
    machine("first")
    folder = model_folder("demo", KIND, VERSION)
    assert not folder.exists()
    share(make(folder))
    second = machine("second")
    copied = model_folder("demo", KIND, VERSION)
    assert copied.is_relative_to(second.artifacts)
    assert contents(copied) == CONTENT


def test_a_manifest_of_another_machine_names_the_copy_of_this_one(store, machine):
    machine("first")
    made = make(model_folder("demo", KIND, VERSION))
    share(made)
    machine("second")
    elsewhere = f"/another/disk/artifacts/public/demo/{KIND}/{VERSION}"
    assert contents(Path(local_copy(elsewhere))) == CONTENT


@pytest.mark.parametrize("path", ["google/gemma-2-2b", "/models/gemma", "a/b/c/d/e/f"])
def test_names_of_the_hub_and_other_folders_stay_as_they_are(store, machine, path):
    machine("first")
    assert local_copy(path) == path


def test_without_a_store_nothing_is_copied(machine, monkeypatch):
    monkeypatch.delenv("DPSYNTH_STORE_URL", raising=False)
    machine("first")
    share(make(model_folder("demo", KIND, VERSION)))
    machine("second")
    assert not model_folder("demo", KIND, VERSION).exists()


def test_an_upload_that_was_cut_short_is_no_model(bucket, machine, monkeypatch):
    monkeypatch.setenv("DPSYNTH_STORE_URL", bucket)
    machine("first")
    share(make(model_folder("demo", KIND, VERSION)))
    (located(bucket) / "public" / "demo" / KIND / VERSION / "complete.json").unlink()
    machine("second")
    assert not model_folder("demo", KIND, VERSION).exists()


def test_only_public_models_go_there(store, machine):
    machine("first")
    with pytest.raises(ValueError, match="is not in the subpath"):
        share(home().sensitive / "tickets")


def test_the_packaged_model_is_unpacked_once_and_reaches_other_machines(
    store, machine, monkeypatch
):
    made = []

    def write(folder):
        made.append(folder)
        make(folder)

    monkeypatch.setattr(smollm2, "write_smollm2", write)
    machine("first")
    folder = packaged_model()
    assert (folder.name, packaged_model()) == (smollm2.VERSION, folder)
    machine("second")
    copy = packaged_model()
    assert contents(copy) == CONTENT
    assert (copy != folder, len(made)) == (True, 1)


def test_what_fails_while_unpacking_leaves_nothing_behind(machine, monkeypatch):
    def fail(folder):
        make(folder)
        raise LanguageModelError("Expected one thing, got another.")

    monkeypatch.setattr(smollm2, "write_smollm2", fail)
    place = machine("first").public_models
    with pytest.raises(LanguageModelError):
        packaged_model()
    assert not [path for path in place.rglob("*") if path.is_file()]
