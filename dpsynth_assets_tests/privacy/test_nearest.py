"""Laws of the exact search of nearest public rows."""

import math

import numpy as np
import pytest

from dpsynth_assets.privacy import nearest
from dpsynth_assets.privacy.cpu import row_sums
from dpsynth_assets.privacy.nearest import (
    LARGEST_NORM,
    NO_ROW,
    PublicRows,
    nearest_rows,
    nearest_rows_of_labels,
    pair_scores,
)


def unit(count, dimension, seed=0):
    rows = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def by_definition(rows, public, *, distance):
    """Every pair in exact arithmetic, rounded once; the first of equal ones wins."""
    wide, known = rows.astype(np.float64), public.astype(np.float64)
    offsets = [math.fsum(c * c) / 2 if distance else 0.0 for c in known]
    scores = [
        [math.fsum(x * c) - offset for c, offset in zip(known, offsets, strict=True)] for x in wide
    ]
    return np.argmax(scores, axis=1).tolist()


@pytest.mark.parametrize("distance", [False, True])
def test_the_nearest_row_is_found_among_rows_that_float32_cannot_tell_apart(distance):
    base = unit(1, 40)[0]
    public = np.tile(base, (30, 1))
    draw = np.random.default_rng(1)
    for row in public:
        row[draw.integers(0, 40, 3)] += np.float32(2.0**-23)
    rows = np.tile(base, (50, 1)) + unit(50, 40, 2) * np.float32(1e-3)
    found = nearest_rows(rows, PublicRows(public, distance=distance))
    assert found.tolist() == by_definition(rows, public, distance=distance)


@pytest.mark.parametrize("distance", [False, True])
def test_lengths_decide_by_distance_and_not_by_inner_product(distance):
    public = np.array([[1, 0], [3, 0], [0, 1]], dtype=np.float32)
    rows = np.array([[1, 0], [0.1, 1]], dtype=np.float32)
    found = nearest_rows(rows, PublicRows(public, distance=distance)).tolist()
    assert found == ([0, 2] if distance else [1, 2])


def test_ties_go_to_the_lowest_number_and_equal_rows_count_once():
    public = np.eye(3, dtype=np.float32)[[2, 0, 0, 1]]
    rows = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [-0.0, 0, 0]], dtype=np.float32)
    known = PublicRows(public, distance=False)
    assert nearest_rows(rows, known).tolist() == [1, 1, 0, 0]
    assert nearest_rows(rows, known, known.group(np.array([3, 2]))).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf, 3e38, 1e25])
def test_a_broken_row_harms_itself_alone(broken):
    rows, public = unit(40, 16, 1), PublicRows(unit(9, 16, 2), distance=True)
    sound = nearest_rows(rows, public)
    for place in (0, 7, 39):
        spoilt = rows.copy()
        spoilt[place, ::2] = broken
        with np.errstate(all="raise"):  # not even a warning tells
            found = nearest_rows(spoilt, public)
            alone = nearest_rows(spoilt[[place]], public)
        assert np.delete(found, place).tolist() == np.delete(sound, place).tolist()
        assert found[place] == alone[0]
        assert np.isfinite(spoilt).all() or found[place] == 0


def test_groups_of_labels_windows_and_files_leave_no_trace(tmp_path, monkeypatch):
    rows, public = unit(300, 12, 1), PublicRows(unit(20, 12, 2), distance=False)
    labels = np.arange(300) % 4
    groups = {0: public.group(), 1: public.group(np.arange(5)), 2: public.group(np.arange(0))}
    whole = nearest_rows_of_labels(rows, labels, public, groups)
    assert set(whole[labels >= 2]) == {NO_ROW}
    assert whole[labels == 1].max() < 5
    monkeypatch.setattr(nearest, "WINDOW_ROWS", 37)
    monkeypatch.setattr(nearest, "SCORES_AT_A_TIME", 50)
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert nearest_rows_of_labels(mapped, labels, public, groups).tolist() == whole.tolist()


def test_a_score_does_not_depend_on_its_place_or_alignment():
    rows, public = unit(50, 33, 3), PublicRows(unit(5, 33, 4), distance=True)
    numbers, places = np.repeat(np.arange(50), 5), np.tile(np.arange(5), 50)
    together = pair_scores(rows, public, numbers, places)
    alone = [pair_scores(rows, public, numbers[[i]], places[[i]])[0] for i in range(250)]
    assert together.tobytes() == np.array(alone).tobytes()
    room = np.zeros(rows.nbytes + 64, dtype=np.uint8)
    for shift in (4, 12, 20):
        moved = room[shift : shift + rows.nbytes].view(np.float32).reshape(rows.shape)
        moved[:] = rows
        assert pair_scores(moved, public, numbers, places).tobytes() == together.tobytes()


@pytest.mark.parametrize("width", [0, 1, 2, 3, 7, 8, 384])
def test_sums_of_rows_are_sums(width):
    terms = np.random.default_rng(0).standard_normal((6, width))
    np.testing.assert_allclose(row_sums(terms), terms.sum(axis=1), atol=1e-12)
    assert row_sums(np.full((2, width), 2.0**-1074)).tolist() == [width * 2.0**-1074] * 2


def test_public_rows_that_could_overflow_or_do_not_fit_are_refused():
    for rows in (np.full((2, 3), np.nan), np.full((2, 3), 2 * LARGEST_NORM), np.zeros(3)):
        with pytest.raises(ValueError, match="Expected"):
            PublicRows(rows, distance=True)
    with pytest.raises(ValueError, match=r"Expected private rows \(N, 3\)"):
        nearest_rows(np.zeros((2, 4)), PublicRows(np.zeros((2, 3)), distance=True))
    assert nearest_rows(np.zeros((0, 3)), PublicRows(np.eye(3), distance=False)).shape == (0,)


@pytest.mark.parametrize("scale", [1e-30, 1e-23, 1e-21, 2e-19, 1e-18, 1e15])
def test_rows_of_any_length_are_compared_exactly(scale):
    """Squares of tiny entries underflow: the band must not become narrower than rounding."""
    rng = np.random.default_rng(1)
    public = unit(64, 384, seed=2)
    public[1] = public[0] + (rng.standard_normal(384) * 1e-8).astype(np.float32)
    rows = public[0] + 0.02 * rng.standard_normal((300, 384)).astype(np.float32)
    rows = (rows * np.float32(scale)).astype(np.float32)
    exact = rows.astype(np.float64) @ public.astype(np.float64).T
    found = nearest_rows(rows, PublicRows(public, distance=False))
    alone = [int(nearest_rows(row[None], PublicRows(public, distance=False))[0]) for row in rows]
    assert found.tolist() == alone
    assert (found == exact.argmax(axis=1)).mean() > 0.99
