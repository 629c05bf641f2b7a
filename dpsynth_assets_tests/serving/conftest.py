"""A real server over an artifact that writes without a model."""

import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from dpsynth_assets.serving.app import Endpoint, RowServer, Served
from dpsynth_assets.serving.row_queue import RowQueue
from dpsynth_assets_tests.children import free_port

LABEL = {
    "guarantee": {"type": "dp", "epsilon": 3.0, "delta": 1e-6, "definition": "(ε, δ)-DP"},
    "privacy_unit": "one record",
    "neighboring_relation": "add_remove",
    "subject": {"reservation": "r" * 32},
}


class Sentences:
    """Writes the label and the number of the row; keeps what it was asked."""

    labels = ("billing", "delivery")
    engine = "none"
    longest = 40

    def __init__(self, seconds=0.0, blank_first=False):
        self.asked, self.seconds, self.blank_first = [], seconds, blank_first

    def write(self, labels, sampling, seed):
        time.sleep(self.seconds)
        self.asked.append((list(labels), sampling, seed))
        if self.blank_first and len(self.asked) == 1:
            return [""] * len(labels)
        return [f"a {self.labels[label]} letter" for label in labels]

    def tokens(self, text):
        return len(text.split())


class Artifact:
    """A release whose lines of the ledger are counted."""

    charge = SimpleNamespace(recorded_at="2026-11-24T00:00:00+00:00")

    def __init__(self):
        self.days = []

    def line(self, day):
        self.days.append(day)
        return LABEL


def endpoint(source, *, token="", waiting=64, batch_rows=4, canaries=()):
    served = Served(artifact=Artifact(), source=source)
    queue = RowQueue(
        {"letters/ctcl": source}, batch_rows=batch_rows, most_waiting=waiting, canaries=canaries
    )
    return Endpoint(served={"letters/ctcl": served}, queue=queue, most_rows=8, token=token)


@contextmanager
def listening(opened, app=None):
    """Runs the server of an endpoint on a free port of this machine; yields its address."""
    port = free_port()
    server = RowServer(app or opened.app(), opened.queue, host="127.0.0.1", port=port)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def source():
    return Sentences()


@pytest.fixture
def opening():
    """Opens endpoints, whose queues are closed when the test ends."""
    made = []

    def opening(source, **settings):
        made.append(endpoint(source, **settings))
        return made[-1]

    yield opening
    for each in made:
        each.queue.close()


@pytest.fixture
def opened(opening, source):
    return opening(source)
