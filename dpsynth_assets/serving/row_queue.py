"""Rows of many requests, written together: requests for the same artifact share a batch."""

import secrets
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from dpsynth_assets.attacks.leak_scan import contains_canary
from dpsynth_assets.methods.capabilities import RowSampling, RowSource
from dpsynth_assets.serving.requests import RefusedError

TRIES = 4
"""Times that a row without a word is written again."""


SECONDS_TO_RETRY = 5


def _too_many() -> RefusedError:
    """More rows wait than the server takes, or it ends."""
    line = f"Expected fewer waiting rows. Send the request again in {SECONDS_TO_RETRY} seconds."
    return RefusedError(line, status=429)


def _held_back() -> RefusedError:
    """An artifact wrote what the release gate holds back; nothing more of it is given out."""
    line = (
        "model: expected rows without a declared canary, got one: this artifact is held back, as "
        "the release gate holds back a corpus. Ask its owner."
    )
    return RefusedError(line, "model", status=410)


@dataclass(frozen=True)
class _Waiting:
    artifact: str
    sampling: RowSampling
    label: int
    row: "Future[str]" = field(default_factory=Future, compare=False)


class RowQueue:
    """One thread writes all rows, the oldest request first, as many together as fit a batch."""

    def __init__(
        self,
        sources: Mapping[str, RowSource],
        *,
        batch_rows: int = 64,
        most_waiting: int,
        canaries: Sequence[str] = (),
    ) -> None:
        """Starts the thread.

        Args:
            sources: Open artifacts by name.
            batch_rows: Rows written together at most.
            most_waiting: Rows that may wait at once.
            canaries: Texts that no row may hold; an artifact that writes one is held back.
        """
        self._sources, self._batch_rows, self._most = sources, batch_rows, most_waiting
        self._canaries, self._held_back = canaries, set[str]()
        self._rows: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._write_all, name="rows", daemon=True)
        self._thread.start()

    def ask(
        self, artifact: str, labels: Sequence[int], sampling: RowSampling
    ) -> "list[Future[str]]":
        """Asks for one row of each label; they come as they are written.

        Raises:
            RefusedError: Too many rows wait, or the server ends, or the artifact has written a
                canary.
        """
        if artifact in self._held_back:
            raise _held_back()
        asked = [_Waiting(artifact, sampling, label) for label in labels]
        with self._changed:
            if self._closed or len(self._rows) + len(asked) > self._most:
                raise _too_many()
            self._rows.extend(asked)
            self._changed.notify()
        return [each.row for each in asked]

    def refuse_all(self) -> None:
        """Refuses what waits and all that is asked from here on; a batch in writing goes on."""
        with self._changed:
            self._closed = True
            while self._rows:
                row = self._rows.popleft().row
                if row.set_running_or_notify_cancel():
                    row.set_exception(_too_many())
            self._changed.notify()

    def close(self) -> None:
        """Does as `refuse_all`, and waits until the batch in writing is done."""
        self.refuse_all()
        self._thread.join()

    def _write_all(self) -> None:
        while batch := self._next():
            batch = [each for each in batch if each.row.set_running_or_notify_cancel()]
            try:
                texts = self._written(batch) if batch else []
            except BaseException as error:  # noqa: BLE001 - the client is told, the thread lives
                for each in batch:
                    each.row.set_exception(error)
                continue
            for each, text in zip(batch, texts, strict=True):
                each.row.set_result(text)

    def _next(self) -> list[_Waiting]:
        """The oldest row and others that may be written with it; none once the queue is closed."""
        with self._changed:
            while not self._rows and not self._closed:
                self._changed.wait()
            if self._closed:
                return []
            first, batch, left = self._rows[0], list[_Waiting](), deque[_Waiting]()
            for each in self._rows:
                together = (each.artifact, each.sampling) == (first.artifact, first.sampling)
                fits = together and len(batch) < self._batch_rows
                (batch if fits else left).append(each)
            self._rows = left
            return batch

    def _written(self, batch: Sequence[_Waiting]) -> list[str]:
        artifact, sampling = batch[0].artifact, batch[0].sampling
        source, texts = self._sources[artifact], [""] * len(batch)
        for _ in range(TRIES):
            blank = [place for place, text in enumerate(texts) if not text]
            if not blank:
                break
            labels = [batch[place].label for place in blank]
            written = source.write(labels, sampling, secrets.randbits(31))
            for place, text in zip(blank, written, strict=True):
                texts[place] = text
        if contains_canary(texts, self._canaries):
            self._held_back.add(artifact)
        if artifact in self._held_back:
            raise _held_back()
        return texts
