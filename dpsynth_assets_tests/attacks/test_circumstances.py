"""Laws of the circumstances of a result: a change of code, libraries or machine is another one."""

import importlib
import json
import os
import sys
import time

import pytest

from dpsynth_assets.attacks import circumstances as subject
from dpsynth_assets.methods.base import Method
from dpsynth_assets.orchestration.resources.stores import Models


@pytest.fixture
def taken_anew():
    """Takes the circumstances as a new process would."""

    def take() -> str:
        subject._around.cache_clear()
        subject._digest_once.cache_clear()
        return subject.circumstances()

    yield take
    subject._around.cache_clear()
    subject._digest_once.cache_clear()


def test_other_kernels_cores_or_libraries_are_other_circumstances(taken_anew, monkeypatch):
    before = taken_anew()
    seen = {before}
    for name in ("ATEN_CPU_CAPABILITY", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        with monkeypatch.context() as changed:
            changed.setenv(name, "other")
            seen.add(taken_anew())
    with monkeypatch.context() as changed:
        changed.setattr(subject.sys, "version", "3.99")
        seen.add(taken_anew())
    with monkeypatch.context() as changed:
        changed.setattr(subject, "_libraries", lambda: ["torch-99.0.dist-info"])
        seen.add(taken_anew())
    with monkeypatch.context() as changed:
        changed.setattr(subject, "_lasting", lambda _path: ["flags: none"])
        seen.add(taken_anew())
    assert len(seen) == 7
    assert taken_anew() == before


def test_libraries_are_known_with_their_versions():
    assert any(name.startswith("torch-") for name in subject._libraries())


def test_any_change_of_a_source_file_is_other_code(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "inner" / "b.py").write_text("y = 1\n")
    digests = [subject.code_digest(tmp_path)]
    (tmp_path / "inner" / "b.py").write_text("y = 2\n")
    digests.append(subject.code_digest(tmp_path))
    (tmp_path / "inner" / "b.py").rename(tmp_path / "inner" / "c.py")
    digests.append(subject.code_digest(tmp_path))
    (tmp_path / "d.py").write_text("")
    digests.append(subject.code_digest(tmp_path))
    assert len(set(digests)) == 4


def test_code_that_was_edited_after_it_was_loaded_has_no_equal(taken_anew, monkeypatch):
    before = taken_anew()
    newest = max(path.stat().st_ctime_ns for path in subject._sources(subject._PACKAGE))
    monkeypatch.setattr(subject, "LOADED_AT", newest + 1)
    assert taken_anew() == before
    monkeypatch.setattr(subject, "LOADED_AT", newest)
    assert len({before, subject.circumstances(), subject.circumstances()}) == 3


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A package of somebody else: a method in a folder of its own, and what it imports."""
    files = {
        "the_plugin/__init__.py": "",
        "the_plugin/noise.py": "SCALE = 1\n",
        "the_plugin/methods/__init__.py": "",
        "the_plugin/methods/mine.py": "from the_plugin.noise import SCALE\n"
        "from the_base import Base\nclass Mine(Base): pass\n",
        "the_base.py": "class Base: pass\n",
        "another.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(subject, "LOADED_AT", time.time_ns() * 2)
    yield tmp_path
    for name in list(sys.modules):
        if name.partition(".")[0] in ("the_plugin", "the_base"):
            del sys.modules[name]


def test_a_class_of_another_package_brings_its_code_and_that_of_its_bases(plugin):
    kind = importlib.import_module("the_plugin.methods.mine").Mine

    def digest() -> str:
        subject._digest_once.cache_clear()
        return subject.code_behind(kind)

    assert subject.code_behind(Method) == subject.code_behind(Models) != digest()
    digests = [digest()]
    for name in ("the_plugin/methods/mine.py", "the_plugin/noise.py", "the_base.py"):
        (plugin / name).write_text(f"{(plugin / name).read_text()}# edited\n")
        digests.append(digest())
    assert len(set(digests)) == 4
    (plugin / "another.py").write_text("# edited\n")
    assert digest() == digests[-1]


def test_other_weights_in_the_same_folder_are_another_model(tmp_path):
    (tmp_path / "inner").mkdir()
    weights = tmp_path / "inner" / "model.safetensors"
    weights.write_bytes(b"one")
    manifest = {"path": str(tmp_path), "dtype": "float32"}
    seen = [subject.files_behind(manifest)]
    weights.write_bytes(b"other")
    seen.append(subject.files_behind(manifest))
    os.utime(weights, ns=(1, 1))
    seen.append(subject.files_behind(manifest))
    assert subject.files_behind(manifest) == seen[-1]
    assert len({json.dumps(each) for each in seen}) == 3
    for nowhere in ({"path": "somebody/a-model"}, {"path": "/no/folder"}, {"model": None}):
        assert subject.files_behind(nowhere) == []
