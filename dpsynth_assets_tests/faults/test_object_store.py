"""kill -9 of a run whose unfinished work lies in an object store: one charge, one value."""

import os
import shutil
from types import SimpleNamespace

import pytest

from dpsynth_assets.orchestration.resources.stores import SensitiveStore
from dpsynth_assets.paths import located
from dpsynth_assets.sensitive.sealing import HEADER, KEY_VARIABLE
from dpsynth_assets_tests.faults.cohort import (
    COHORT,
    PAID,
    PASS,
    PASSES,
    RECORDS,
    STORED,
)
from dpsynth_assets_tests.security.conftest import key
from dpsynth_assets_tests.stored import write_records

pytestmark = pytest.mark.slow


@pytest.fixture
def remote(house, bucket, monkeypatch):
    """The sensitive store of a house, in a bucket that its runs reach."""
    house.variables |= {
        "DPSYNTH_SENSITIVE_URL": f"{bucket}/private",
        KEY_VARIABLE: key(1),
        **{name: os.environ[name] for name in os.environ if name.startswith("AWS_")},
    }
    monkeypatch.setenv("DPSYNTH_SENSITIVE_URL", f"{bucket}/private")
    monkeypatch.setenv(KEY_VARIABLE, key(1))
    shutil.rmtree(house.home / "sensitive")
    store = SensitiveStore()
    write_records(store, COHORT, "source", RECORDS)
    store.read_records.note_read(COHORT, "version 1", "declared", "rows")
    return store


@pytest.mark.parametrize("point", [PAID, PASS, STORED])
def test_a_killed_run_is_continued_under_its_own_charge(house, remote, bucket, point):
    house.killed_at(point)
    charged = [entry.reservation for entry in house.ledger().entries()]
    kept = [
        {number: values for number in range(PASSES) if (values := passes.load(number))}
        for passes in (remote.passes(COHORT, SimpleNamespace(id=each)) for each in charged)
    ]
    assert list(map(len, kept)) == {PAID: [0], PASS: [2]}.get(point, [PASSES])
    retried = house.run()
    assert retried["success"], retried["failures"]
    house.assert_whole(charges=1, released=1)
    (reservation,) = {entry.reservation for entry in house.ledger().entries()}
    drawn = house.store.load(reservation)[0]["dp_counts"]
    for number, values in [pair for each in kept for pair in each.items()]:
        assert drawn[number] == values["dp_counts"]
    assert not (house.home / "sensitive").exists()
    place = located(f"{bucket}/private")
    contents = [place.fs.cat_file(name) for name in place.fs.find(place.path)]
    assert contents
    assert all(content.startswith(HEADER) for content in contents)
    assert not [1 for content in contents if b"Ottoline" in content]
