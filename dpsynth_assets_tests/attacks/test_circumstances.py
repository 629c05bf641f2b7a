"""Laws of the circumstances of a result: a change of code, libraries or machine is another one."""

import pytest

from dpsynth_assets.attacks import circumstances as subject
from dpsynth_assets.methods.base import Method


@pytest.fixture
def taken_anew():
    """Takes the circumstances as a new process would."""

    def take() -> str:
        subject.circumstances.cache_clear()
        return subject.circumstances()

    yield take
    subject.circumstances.cache_clear()


def test_unchanged_circumstances_are_equal(taken_anew):
    assert taken_anew() == taken_anew()


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


def test_a_class_of_another_package_brings_its_own_code():
    class Foreign:
        """Stands for a method that somebody else wrote."""

    assert subject.code_behind(Method) == ""
    assert subject.code_behind(Foreign) != ""
