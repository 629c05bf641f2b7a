"""Laws of every cache on disk."""

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.files.kept import ARRAY, JSON, TABLE, kept_file

VALUES = {
    "json": (JSON, {"b": [0.1 + 0.2], "a": None}),
    "table": (TABLE, pl.DataFrame({"text": ["one", None]})),
    "array": (ARRAY, np.eye(2, 3, dtype=np.float32)),
}


def never():
    raise AssertionError("It was made although it is kept.")


def equal(one, other):
    return one.equals(other) if isinstance(one, pl.DataFrame) else np.array_equal(one, other)


@pytest.mark.parametrize("name", VALUES)
def test_what_is_kept_is_not_made_again_and_is_what_was_made(tmp_path, name):
    form, value = VALUES[name]
    place = tmp_path / "cache" / "digest"
    assert equal(kept_file(place, lambda: value, form), value)
    assert equal(kept_file(place, never, form), value)
    assert [path.name for path in place.parent.iterdir()] == ["digest"]
    assert place.stat().st_mode & 0o077 == place.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("damage", ["empty", "cut", "other", "folder"])
def test_a_damaged_entry_is_a_miss_and_is_replaced(tmp_path, name, damage):
    form, value = VALUES[name]
    place = tmp_path / "digest"
    kept_file(place, lambda: value, form)
    content = place.read_bytes()
    place.unlink()
    if damage == "folder":  # Cannot be replaced: the value is made each time.
        place.mkdir()
    else:
        place.write_bytes(
            {"empty": b"", "cut": content[: len(content) // 2], "other": b"x"}[damage]
        )
    assert equal(kept_file(place, lambda: value, form), value)
    if damage != "folder":
        assert place.read_bytes() == content


def test_where_nothing_can_be_written_the_value_is_made(tmp_path):
    (tmp_path / "file").touch()
    made = []
    for _ in range(2):
        assert kept_file(tmp_path / "file" / "digest", lambda: made.append(1) or 7, JSON) == 7
    assert len(made) == 2
