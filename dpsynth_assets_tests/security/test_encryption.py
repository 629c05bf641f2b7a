"""An encrypted store: nothing readable on disk, the right key or one line, and no key anywhere."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpsynth_assets.sensitive import private_files, sealing, unfinished
from dpsynth_assets.sensitive.private_files import (
    abandoned_plain_folders,
    forget_plain_folder,
    plain_folder,
)
from dpsynth_assets.sensitive.sealing import (
    HEADER,
    KEY_VARIABLE,
    SealingKey,
    SensitiveKeyError,
    sealing_key,
)
from dpsynth_assets_tests.security.conftest import EMBEDDINGS, RECORDS, TEXTS, key

RESERVATION = SimpleNamespace(id="r1")


def files(store):
    return [path for path in store.base.rglob("*") if path.is_file()]


def read(store):
    return store.read_internal("letters", "source", with_embeddings=True)


def test_no_file_of_an_encrypted_store_holds_a_private_byte(sealed):
    sealed.passes("letters", RESERVATION).begin()
    sealed.passes("letters", RESERVATION).save(1, {"text": TEXTS[0]})
    sealed.contributions("letters").note("r1", RECORDS)
    needles = [text.encode() for text in (*TEXTS, "record-a", "user-1")]
    needles.append(EMBEDDINGS[1].tobytes())
    for path in files(sealed):
        content = path.read_bytes()
        assert content.startswith(HEADER) or (path.suffix, content) == (".lock", b""), path
        assert not [needle for needle in needles if needle in content], path
        assert path.stat().st_mode & 0o777 == 0o600


def test_another_key_is_one_line_that_shows_neither(sealed, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, key(2))
    with pytest.raises(SensitiveKeyError, match="another key, or the file was altered") as caught:
        read(sealed)
    assert "\n" not in str(caught.value)
    assert not [secret for secret in (key(1), key(2)) if secret in str(caught.value)]
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_a_missing_key_and_an_unencrypted_file_are_one_line_each(sealed, store, monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(SensitiveKeyError, match="got none"):
        read(sealed)
    monkeypatch.setenv(KEY_VARIABLE, key(1))
    with pytest.raises(SensitiveKeyError, match="a file that is not"):
        read(store)


@pytest.mark.parametrize("written", ["short", key(1)[:-4], "x" * 44, "é"])
def test_a_malformed_key_is_refused_and_not_shown(monkeypatch, written):
    monkeypatch.setenv(KEY_VARIABLE, written)
    with pytest.raises(SensitiveKeyError, match="32 random bytes in base64") as caught:
        sealing_key()
    assert written not in str(caught.value)


def sealed_bytes(content=b"private", name="letters/source.parquet", secret=b"k" * 32):
    target = io.BytesIO()
    SealingKey(secret).seal(io.BytesIO(content), target, name)
    return target.getvalue()


@pytest.mark.parametrize("place", [len(HEADER), len(HEADER) + 32, -1])
def test_one_altered_bit_is_noticed(place):
    content = bytearray(sealed_bytes())
    content[place] ^= 1
    with pytest.raises(SensitiveKeyError):
        SealingKey(b"k" * 32).open(io.BytesIO(content), "letters/source.parquet")


def test_a_file_in_another_files_place_does_not_open():
    with pytest.raises(SensitiveKeyError):
        SealingKey(b"k" * 32).open(io.BytesIO(sealed_bytes()), "letters/held_out.parquet")


def test_chunks_can_be_neither_cut_off_nor_moved(monkeypatch):
    monkeypatch.setattr(sealing, "_CHUNK_BYTES", 8)
    whole = sealed_bytes(b"0123456789abcdefXYZ")
    begins = len(HEADER) + 32
    chunk = 8 + 16
    opened = SealingKey(b"k" * 32)
    assert opened.open(io.BytesIO(whole), "letters/source.parquet") == b"0123456789abcdefXYZ"
    first, second = whole[begins : begins + chunk], whole[begins + chunk : begins + 2 * chunk]
    rest = whole[begins + 2 * chunk :]
    for altered in (first + second, second + first + rest, first + rest, b""):
        with pytest.raises(SensitiveKeyError):
            opened.open(io.BytesIO(whole[:begins] + altered), "letters/source.parquet")


@pytest.mark.parametrize("size", [0, 1, 8, 16, 17])
def test_contents_of_every_size_come_back(monkeypatch, size):
    monkeypatch.setattr(sealing, "_CHUNK_BYTES", 8)
    content = os.urandom(size)
    sealed = sealed_bytes(content)
    assert SealingKey(b"k" * 32).open(io.BytesIO(sealed), "letters/source.parquet") == content


def test_equal_contents_are_sealed_differently_each_time():
    assert sealed_bytes() != sealed_bytes()


def test_a_key_is_shown_by_no_repr_and_is_no_setting_of_the_store(sealed):
    assert "k" * 32 not in repr(SealingKey(b"k" * 32))
    assert key(1) not in repr(sealed)
    assert key(1) not in json.dumps(type(sealed).to_config_schema().as_field().config_type.key)


def test_a_checkpoint_is_sealed_on_disk_and_plain_in_memory_alone(sealed):
    kept = sealed.checkpoint("letters", RESERVATION)
    kept.begin()
    for step in (1, 2):
        content = f"{TEXTS[0]} {step}"

        def write(folder, content=content):
            (folder / "deep").mkdir()
            (folder / "deep" / "state.json").write_text(content)

        filled = kept.filled(write)
        assert not filled.is_relative_to(sealed.base)
        kept.save(filled)
        assert not filled.exists()
        again = sealed.checkpoint("letters", RESERVATION)
        assert (again.saved / "deep" / "state.json").read_text() == content
    on_disk = [path for path in files(sealed) if "passes" in path.parts]
    assert [path.parent.parent.name for path in on_disk] == ["2"]
    assert TEXTS[0].encode() not in on_disk[0].read_bytes()
    plain = kept.saved
    kept.remove()
    assert not plain.exists()
    assert kept.saved is None
    assert plain not in unfinished._plain_folders.values()


def test_plain_folders_of_killed_processes_are_found_and_those_of_running_ones_left():
    script = (
        "import os, signal; from dpsynth_assets.sensitive.private_files import plain_folder;"
        "print(plain_folder(), flush=True); input(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        folder = Path(other.stdout.readline().strip())
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder not in abandoned_plain_folders()
        other.communicate("\n", timeout=60)
    assert folder in abandoned_plain_folders()
    folder.rmdir()
    running = plain_folder()
    assert running not in abandoned_plain_folders()
    assert running in private_files._locks
    forget_plain_folder(running)
    assert not running.exists()
    assert running not in private_files._locks


def test_a_plain_folder_has_its_name_only_once_it_is_locked(monkeypatch):
    lock, named = private_files.fcntl.flock, []

    def locking(*arguments):
        named.extend(private_files.plain_place().glob("dpsynth-plain-*"))
        lock(*arguments)

    monkeypatch.setattr(private_files.fcntl, "flock", locking)
    folder = plain_folder()
    assert folder not in named
    assert folder.exists()
    forget_plain_folder(folder)
