"""A full disk and a read-only ledger, on file systems of their own: refused, or waited for."""

import base64
import errno
import os
import shutil
import signal
import subprocess
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from dpsynth_assets.orchestration.resources.stores import SensitiveStore
from dpsynth_assets.releases import waiting
from dpsynth_assets.sensitive import private_files
from dpsynth_assets.sensitive.sealing import KEY_VARIABLE
from dpsynth_assets_tests.faults.cohort import BEFORE, DRAWN, MARKED, NOT_STORED, RESERVED, STORED
from dpsynth_assets_tests.faults.conftest import House

pytestmark = pytest.mark.slow

SIZE_MIB = 40


def mounted(*arguments):
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True, check=False)


@pytest.fixture
def small_disk(tmp_path):
    """A tmpfs of a few MiB; needs the right to mount."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    if mounted("-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", folder).returncode:
        pytest.skip("mounting a tmpfs needs more rights")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def one_disk(small_disk, tmp_path, forge, instance):
    """A house whose ledger, stores, Dagster home and temporary folder lie on one small disk."""
    made = House(tmp_path, forge, instance, disk=small_disk)
    (small_disk / "tmp").mkdir()
    made.variables["TMPDIR"] = str(small_disk / "tmp")
    yield made
    made.close()


def fill(folder):
    """Writes until the disk is full; returns the file to remove."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
    return ballast


def test_a_disk_that_stays_full_leaves_the_charge_and_the_retry_uses_it(house, small_disk):
    house.variables |= {
        "FAULTS_STORE": str(small_disk / "releases"),
        "DPSYNTH_STORE_PATIENCE_SECONDS": "0",
    }
    house.hold(DRAWN)
    run = house.start()
    run.at(DRAWN)
    ballast = fill(small_disk)
    house.free(DRAWN)
    outcome = run.outcome()
    assert not outcome["success"]
    assert "Free space" in outcome["failures"][0]
    assert house.charges() == 1
    assert not list((small_disk / "releases").glob("[!.]*"))
    ballast.unlink()
    assert house.run()["success"]
    house.assert_whole(charges=1, released=1)


def test_a_full_disk_under_the_ledger_charges_nothing_and_breaks_nothing(house, small_disk):
    house.variables["DPSYNTH_LEDGER_URL"] = f"sqlite:///{small_disk / 'ledger.sqlite'}"
    assert house.run()["success"]
    house.forget_marks(MARKED)
    house.hold(MARKED)
    run = house.start(FAULTS_RELEASE="2")
    run.at(MARKED)
    ballast = fill(small_disk)  # After its room was asked for.
    house.free(MARKED)
    outcome = run.outcome()
    assert not outcome["success"]
    assert "disk is full" in outcome["failures"][0]
    refused = house.run(FAULTS_RELEASE="3")
    assert "(ledger), got 0. Nothing was charged: free space there" in refused["failures"][0]
    assert len(house.passed(RESERVED)) == 1
    ballast.unlink()
    house.assert_whole(charges=1, released=1)
    assert house.run(FAULTS_RELEASE="2")["success"]
    house.assert_whole(charges=2, released=2)


def waits_with_its_value(house, disk):
    """A run that has drawn and found the disk full twice; Dagster's own log lies there, too."""
    house.hold(DRAWN)
    run = house.start()
    run.at(DRAWN)
    ballast = fill(disk)
    house.free(DRAWN)
    for _ in range(2):
        run.at(NOT_STORED)
        house.forget_marks(NOT_STORED)
    return run, ballast


def test_everything_on_one_disk_that_fills_is_waited_for_and_the_value_kept(one_disk, small_disk):
    run, ballast = waits_with_its_value(one_disk, small_disk)
    assert not one_disk.passed(STORED)
    ballast.unlink()
    assert run.outcome()["success"]
    assert len(one_disk.passed(RESERVED)) == 1
    one_disk.assert_whole(charges=1, released=1)
    assert one_disk.run()["metadata"]["dpsynth/reused"]
    one_disk.assert_whole(charges=1, released=1)


def test_sigterm_ends_a_run_that_waits_for_room_and_the_next_one_uses_its_charge(
    one_disk, small_disk
):
    run, ballast = waits_with_its_value(one_disk, small_disk)
    os.kill(run.pid, signal.SIGTERM)
    run.wait()
    assert one_disk.charges() == 1
    ballast.unlink()
    assert one_disk.run()["success"]
    one_disk.assert_whole(charges=1, released=1)


def in_safetensors(folder):
    """Half a file before what cannot be written: its library's errors are of its own kind."""
    (folder / "state.json").write_text("{}")
    save_file({"weights": torch.zeros(4 << 20)}, folder / "tensors.safetensors")


def in_python(folder):
    (folder / "half").write_bytes(bytes(1 << 10))
    (folder / "tensors").write_bytes(bytes(16 << 20))


@pytest.mark.parametrize("write", [in_safetensors, in_python])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_checkpoint_waits_for_room_and_leaves_the_one_before(
    write, sealed, small_disk, monkeypatch
):
    if sealed:
        monkeypatch.setenv(KEY_VARIABLE, base64.b64encode(bytes(range(32))).decode())
        monkeypatch.setattr(private_files, "MEMORY", small_disk)
    kept = SensitiveStore.at(str(small_disk / "sensitive")).checkpoint(
        "letters", SimpleNamespace(id="r1")
    )
    kept.begin()
    kept.save(kept.filled(lambda folder: (folder / "state.json").write_text("first")))
    ballast, told = fill(small_disk), []

    def free_the_disk(message):
        told.append(message)
        assert (kept.saved / "state.json").read_text() == "first"
        ballast.unlink()

    monkeypatch.setattr(waiting, "say", free_the_disk)
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0.01)
    with ballast.open("r+b") as file:
        file.truncate(ballast.stat().st_size - (1 << 20))
    kept.save(kept.filled(write))
    assert [os.strerror(errno.ENOSPC) in line for line in told] == [True]
    assert len(list(kept.saved.iterdir())) == 2
    kept.remove()


def test_a_read_only_ledger_refuses_before_anything_private_is_read(house, small_disk):
    house.variables["DPSYNTH_LEDGER_URL"] = f"sqlite:///{small_disk / 'ledger.sqlite'}"
    assert house.run()["success"]
    assert mounted("-o", "remount,ro", small_disk).returncode == 0
    outcome = house.run(FAULTS_RELEASE="2")
    assert not outcome["success"]
    assert "readonly" in outcome["failures"][0]
    assert "check the file, its permissions" in outcome["failures"][0]
    assert len(house.passed(BEFORE)) == 2
    assert len(house.passed(RESERVED)) == 1
    assert mounted("-o", "remount,rw", small_disk).returncode == 0
    house.assert_whole(charges=1, released=1)


def test_a_lost_release_folder_is_named_and_is_not_drawn_again(house):
    assert house.run()["success"]
    shutil.move(house.store.base, house.folder / "backup")
    outcome = house.run()
    assert not outcome["success"]
    assert "Restore the folder from a backup" in outcome["failures"][0]
    shutil.rmtree(house.store.base, ignore_errors=True)
    shutil.move(house.folder / "backup", house.store.base)
    assert house.run()["metadata"]["dpsynth/reused"]
    house.assert_whole(charges=1, released=1)
