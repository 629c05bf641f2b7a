"""Passes and checkpoints of a release that is paid for and not finished."""

import atexit
import errno
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpsynth_assets.paths import Folder
from dpsynth_assets.releases.waiting import once_there_is_room
from dpsynth_assets.sensitive.private_files import Below, forget_plain_folder, plain_folder
from dpsynth_assets.sensitive.sealing import sealing_key

_LEAST_ROOM = 1 << 20
"""A disk with fewer bytes than this is full."""

_DRAWN_FROM = "drawn_from.json"
_PAID = "A checkpoint of a release that is paid for cannot be kept."

_plain_folders: dict[Folder, Path] = {}
"""Where this process keeps the plain files of an encrypted checkpoint: folder -> plain folder."""


class Unfinished(Below):
    """State of one unfinished reservation, in a folder of its own."""

    @property
    def begun(self) -> bool:
        """Says whether the charge was made with this store, and nothing of it is released yet."""
        return self._files.has_begun(self._folder)

    def begin(self, drawn_from: Mapping[str, Any] | None = None) -> None:
        """Marks, on disk, that a charge is made with this store; before the charge itself is.

        Args:
            drawn_from: What decides the draw: JSON values, for the owner alone.
        """
        self._files.begin_folder(self._folder)
        if drawn_from:
            self._files.write_json(self._folder / _DRAWN_FROM, drawn_from)

    @property
    def drawn_from(self) -> dict[str, Any]:
        """What `begin` was told."""
        known: dict[str, Any] = self._files.json(self._folder / _DRAWN_FROM) or {}
        return known

    def keep_cost(self, value: str, epsilon: float) -> None:
        """Keeps the realised cost of an ex-post value, by the value's digest, on disk."""
        self._files.write_json(self._cost(value), epsilon)

    def cost(self, value: str) -> float | None:
        """Reads the realised cost that was kept for a value; None where none was."""
        kept: float | None = self._files.json(self._cost(value))
        return kept

    def _cost(self, value: str) -> Folder:
        """A value that is not stored may be drawn again: no other reader may learn which it was."""
        return self._folder / f"cost of {self._files.hidden_name(value)}.json"

    def remove(self) -> None:
        """Forgets what was kept, once the release is committed."""
        self._files.discard(self._folder)
        _forget_plain(self._folder)


class StoredPasses(Unfinished):
    """Passes as JSON files of mode 0600 in a folder of their reservation."""

    def load(self, number: int) -> dict[str, Any] | None:
        """Reads a finished pass; None where it has to be run."""
        values: dict[str, Any] | None = self._files.json(self._folder / f"{number}.json")
        return values

    def save(self, number: int, values: dict[str, Any]) -> None:
        """Keeps a finished pass, waiting for room; it appears whole or not at all.

        A pass that is kept stays as it is, even if it is drawn once more: the first may have been
        told of, so another in its place would be a second draw under one charge.
        """
        path = self._folder / f"{number}.json"
        once_there_is_room(
            lambda: self._files.write_json(path, values, only_if_absent=True),
            "A finished pass of a release that is paid for cannot be kept.",
        )


class StoredCheckpoint(Unfinished):
    """Checkpoints as numbered folders; the highest number is the last, older ones are removed.

    Training libraries want a path. With a key of the store, that path is a plain folder in memory
    (`/dev/shm`; elsewhere the system's temporary folder) for as long as the process lives, and what
    is in the store is sealed.
    """

    @property
    def saved(self) -> Path | None:
        """Folder of the last checkpoint; None at the first start."""
        numbers = self._numbers()
        if not numbers:
            return None
        return self._files.open_folder(self._folder / f"{numbers[-1]}", self._emptied("saved"))

    def filled(self, write: Callable[[Path], object]) -> Path:
        """A folder of mode 0700 that `write` fills, waiting for room.

        It holds the next checkpoint, or the files of the release.
        """
        return once_there_is_room(lambda: self._filled(write), _PAID)

    def save(self, folder: Path) -> None:
        """Makes a filled folder the last checkpoint, waiting for room; on disk at the end."""
        earlier = self._numbers()
        target = self._folder / f"{earlier[-1] + 1 if earlier else 1}"
        once_there_is_room(lambda: self._files.store_folder(folder, target), _PAID)
        for number in earlier:
            self._files.discard(self._folder / f"{number}")

    def _filled(self, write: Callable[[Path], object]) -> Path:
        folder = self._emptied("scratch")
        folder.mkdir(mode=0o700, parents=True)
        try:
            write(folder)
        except BaseException as error:
            full = _is_full(folder, error)
            shutil.rmtree(folder, ignore_errors=True)  # Half a checkpoint takes room from others.
            if full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
            raise
        return folder

    def _numbers(self) -> list[int]:
        kept = self._files.matching(self._folder, "[0-9]*")
        return sorted(
            int(each.name) for each in kept if each.name.isdigit() and self._files.is_whole(each)
        )

    def _emptied(self, name: str) -> Path:
        base = self._folder
        if sealing_key() is not None or not isinstance(base, Path):
            if self._folder not in _plain_folders:
                _plain_folders[self._folder] = plain_folder()
            base = _plain_folders[self._folder]
        shutil.rmtree(base / name, ignore_errors=True)
        return base / name


def _is_full(folder: Path, error: BaseException) -> bool:
    """Says whether a disk had no room; libraries that write tensors raise kinds of their own."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, Exception) and shutil.disk_usage(folder).free < _LEAST_ROOM


@atexit.register
def _forget_all_plain() -> None:
    for folder in list(_plain_folders):
        _forget_plain(folder)


def _forget_plain(folder: Folder) -> None:
    if folder in _plain_folders:
        forget_plain_folder(_plain_folders.pop(folder))
