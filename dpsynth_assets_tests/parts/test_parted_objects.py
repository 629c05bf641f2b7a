"""Parts in an object store: bit for bit those of a folder, by their names, for any workers."""

import pytest

from dpsynth_assets.orchestration.resources.stores import PrivacyLedger, SensitiveStore
from dpsynth_assets.paths import home, located
from dpsynth_assets.sensitive.sealing import HEADER, KEY_VARIABLE
from dpsynth_assets_tests.assets.declared_cases import failure
from dpsynth_assets_tests.object_stores import bucket, s3_address
from dpsynth_assets_tests.parts.conftest import SECRET, declared
from dpsynth_assets_tests.parts.test_split_stages import (
    materialised,
    public,
)
from dpsynth_assets_tests.security.conftest import key

__all__ = ["bucket", "public", "s3_address"]

EVERY = {"private_records", "private_embeddings", "cluster_histogram"}


@pytest.fixture
def remote(bucket, store, monkeypatch):
    """The same installation with its sensitive store in a bucket."""
    for name in ("DPSYNTH_STORE_URL", "DPSYNTH_PUBLISH_URL", "DPSYNTH_LEDGER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DPSYNTH_SENSITIVE_URL", f"{bucket}/private")
    monkeypatch.setenv(KEY_VARIABLE, key(1))
    return SensitiveStore()


def objects(store):
    place = store.base
    return {name: place.fs.cat_file(name) for name in place.fs.find(place.path)}


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 3])
def test_a_cohort_is_read_embedded_and_released_once(tmp_path, remote, bucket, public, parts):
    spec = declared(tmp_path, rows=120, parts=parts)
    result = materialised(spec, public, select=EVERY)
    assert result.success
    kinds = [entry.kind for entry in PrivacyLedger().open().entries("letters")]
    assert kinds.count("reserve") == kinds.count("commit") == 1
    assert materialised(spec, public, select=EVERY).success, "the stored release is used again"
    kinds = [entry.kind for entry in PrivacyLedger().open().entries("letters")]
    assert kinds.count("reserve") == 1
    reads = remote.contributions("letters").reads()
    assert len(reads) == parts
    assert not home().local_sensitive.exists()
    for name, content in objects(remote).items():
        assert content.startswith(HEADER), name
        assert SECRET.encode() not in name.encode() + content
    everything = located(bucket).fs.find(bucket)
    assert all("/private/" in name for name in everything)


def test_without_a_key_the_step_is_refused_before_anything_is_read(
    tmp_path, remote, public, monkeypatch
):
    monkeypatch.delenv(KEY_VARIABLE)
    result = materialised(declared(tmp_path, rows=120), public, select={"private_records"})
    told = failure(result)
    assert told.startswith(f"{KEY_VARIABLE}: expected a key")
    assert objects(remote) == {}
