"""Passes run side by side for a small model, in order of their numbers for every reader."""

from threading import Barrier, Thread

import pytest
import torch

from dpsynth_assets.methods.private_prediction import passes
from dpsynth_assets.methods.private_prediction.passes import DrawCounter, parts_of, run_passes


@pytest.fixture
def model():
    made = torch.nn.Linear(2, 2)
    made.device = torch.device("cpu")
    return made


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_parts_cover_the_batches_in_order():
    parts = parts_of(list("abcde"), 2)
    assert [(part.number, part.own, list(part.batches)) for part in parts] == [
        (0, slice(0, 2), ["a", "b"]),
        (1, slice(2, 4), ["c", "d"]),
        (2, slice(4, 5), ["e"]),
    ]
    assert parts_of([], 3) == []


def test_passes_of_a_small_model_are_under_way_together(model, two_threads):
    meeting = Barrier(2, timeout=20)

    def run(part):
        meeting.wait()  # Broken after its timeout if the other never comes.
        return part.number, torch.get_num_threads()

    assert run_passes(model, parts_of(list("abcd"), 1), run) == [(n, 1) for n in range(4)]


def test_passes_of_a_large_model_come_one_after_another(model, two_threads, monkeypatch):
    monkeypatch.setattr(passes, "SMALL_MODEL_PARAMETERS", 5)
    under_way = []

    def run(part):
        under_way.append(part.number)
        assert under_way == [part.number]
        return under_way.pop()

    assert run_passes(model, parts_of(list("abc"), 1), run) == [0, 1, 2]


def test_a_failing_pass_is_told_and_finished_ones_are_kept(model, two_threads):
    kept = []

    def run(part):
        if part.number == 1:
            raise MemoryError
        kept.append(part.number)

    with pytest.raises(MemoryError):
        run_passes(model, parts_of(list("abcdefgh"), 1), run)
    assert 0 in kept


def test_draws_of_all_threads_are_counted_and_shares_never_fall():
    seen = []
    counter = DrawCounter(400, lambda share, message: seen.append((share, message)))
    threads = [Thread(target=lambda: [counter.add(1, 2) for _ in range(100)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shares = [share for share, _ in seen]
    assert shares == sorted(shares)
    assert seen[-1] == (1.0, "400 of at most 400 private tokens, 800 public ones")
