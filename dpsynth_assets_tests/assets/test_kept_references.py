"""References are written again when anything that they are a function of changed, and else not."""

import polars as pl
import pytest

from dpsynth_assets.attacks import circumstances
from dpsynth_assets.orchestration.assets import kept_scores as subject
from dpsynth_assets.orchestration.resources.stores import Models, SensitiveStore
from dpsynth_assets.paths import home
from dpsynth_assets_tests.assets.declared_cases import letters

pytestmark = pytest.mark.usefixtures("own_home")

MODEL = {"path": "models/tiny", "dtype": "float32", "device": "cpu"}
RECORDS = pl.DataFrame({"text": ["one", "two"], "label": ["a", None]})


def version(model=MODEL, code="1", **changes) -> str:
    return subject.reference_version(letters(**changes), model, Models(), code)


def test_equal_settings_are_equal_versions_and_others_are_not(monkeypatch):
    class OwnModels(Models):
        """Opens other models."""

    versions = [
        version(),
        version(model=MODEL | {"path": "models/larger"}),
        version(code="2"),
        version(prompt={"response_start": "Yes:"}),
        version(evaluation={"reference_rows": 77}),
        subject.reference_version(letters(), MODEL, OwnModels(), "1"),
    ]
    assert version() == versions[0]
    monkeypatch.setattr(circumstances, "circumstances", lambda: "a newer library")
    versions.append(version())
    assert len(set(versions)) == len(versions)


def test_any_change_of_a_record_is_another_ceiling():
    changed = [
        RECORDS,
        RECORDS[::-1],
        RECORDS.with_columns(pl.Series("text", ["one", "too"])),
        RECORDS.with_columns(pl.Series("label", ["a", "b"])),
        RECORDS.head(1),
    ]
    versions = {subject.version_with_records("v", records) for records in changed}
    assert len(versions) == len(changed)
    assert subject.version_with_records("v", RECORDS) != subject.version_with_records("w", RECORDS)


def test_the_floor_is_written_once_for_a_version_and_only_the_last_is_kept():
    written = []

    def write() -> pl.DataFrame:
        written.append(1)
        return pl.DataFrame({"text": [f"text {len(written)}"]})

    first = subject.kept_floor("letters", "v", write)
    assert subject.kept_floor("letters", "v", write).equals(first)
    assert not subject.kept_floor("letters", "w", write).equals(first)
    assert len(written) == 2
    kept = list((home().artifacts / "references" / "letters").iterdir())
    assert [path.name for path in kept] == ["w.parquet"]


def test_a_ceiling_is_kept_with_the_version_that_it_was_written_for(tmp_path):
    store = SensitiveStore.at(str(tmp_path / "sensitive"))
    assert not subject.ceiling_is_kept(store, "letters", "v")
    subject.keep_ceiling(store, "letters", "v", RECORDS)
    assert subject.ceiling_is_kept(store, "letters", "v")
    assert not subject.ceiling_is_kept(store, "letters", "w")
    for path in store.folder("letters").iterdir():
        assert path.stat().st_mode & 0o077 == 0, "the digest of private records is the owner's too"
    (store.folder("letters") / f"{subject.CEILING}.parquet").write_bytes(b"PAR1")
    assert not subject.ceiling_is_kept(store, "letters", "v"), "damaged"
    (store.folder("letters") / f"{subject.CEILING}.parquet").unlink()
    assert not subject.ceiling_is_kept(store, "letters", "v"), "purged"


def test_a_ceiling_whose_write_was_interrupted_is_written_again(tmp_path, monkeypatch):
    store = SensitiveStore.at(str(tmp_path / "sensitive"))
    subject.keep_ceiling(store, "letters", "v", RECORDS)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as fault:
        fault.setattr(SensitiveStore, "write_internal", killed)
        with pytest.raises(KeyboardInterrupt):
            subject.keep_ceiling(store, "letters", "w", RECORDS.head(1))
    assert not subject.ceiling_is_kept(store, "letters", "v")
    assert not subject.ceiling_is_kept(store, "letters", "w")
