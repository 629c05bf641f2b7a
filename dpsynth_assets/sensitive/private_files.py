"""The one seam between the sensitive store and the place where its files lie.

Two kinds of place keep to it: a local folder (`owner_only.OwnerOnlyFiles`) and a prefix of an
object store (`sealed_objects.SealedObjects`). What reads and writes private files goes through it
and asks nothing of the place itself.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import numpy as np

from dpsynth_assets.paths import Folder
from dpsynth_assets.sensitive.owner_only import OwnerOnlyFiles


class PrivateFiles(Protocol):
    """Files below one root; the place below the root is part of what encryption seals."""

    def write(
        self, path: Folder, write: Callable[[BinaryIO], object], *, only_if_absent: bool = False
    ) -> None:
        """Calls `write` on an open file, which becomes `path` once it is whole, for good.

        Args:
            path: Place below the root.
            write: Writes the content.
            only_if_absent: Leave a file that is already there, also when another process or
                another machine was first.
        """

    def read(self, path: Folder) -> bytes:
        """Reads a file whole; a sealed one is decrypted in memory alone.

        Raises:
            SensitiveKeyError: The file is sealed and there is no key, or not the right one, or
                there is a key and the file is not sealed.
        """

    def read_array(self, path: Folder) -> np.ndarray:
        """Reads a NumPy file; raises as `read` does."""

    def exists(self, path: Folder) -> bool:
        """Says whether there is a file."""

    def matching(self, folder: Folder, pattern: str) -> list[Folder]:
        """Files and folders directly in a folder, by a pattern of their names; sorted."""

    def is_folder(self, place: Folder) -> bool:
        """Says whether anything lies in a folder of this name."""

    def make_folder(self, *folders: Folder) -> None:
        """Makes folders for the owner alone, where files need one."""

    def begin_folder(self, folder: Folder) -> None:
        """Makes a folder that `has_begun` finds, also after a crash of the machine."""

    def has_begun(self, folder: Folder) -> bool:
        """Says whether `begin_folder` was called, and the folder was not removed since."""

    def remove(self, place: Folder) -> None:
        """Removes a file, or a folder with all in it, if it is there."""

    def discard(self, folder: Folder) -> None:
        """Removes a folder that nobody reads any more; what cannot be removed stays, unsaid."""

    def withdraw(self, folder: Folder) -> None:
        """Removes a folder of `begin_folder`, which `has_begun` misses before any file is gone."""

    def last_written(self, place: Folder) -> float:
        """When a file, or the newest one in a folder, was written: seconds since 1970."""

    def store_folder(self, plain: Path, target: Folder) -> None:
        """Makes `target` hold the files of folder `plain`, whole or not at all; removes `plain`."""

    def open_folder(self, stored: Folder, plain: Path) -> Path:
        """Gives the files of a stored folder in a local one: `plain`, where they are decrypted."""

    def is_whole(self, stored: Folder) -> bool:
        """Says whether `store_folder` came to its end for this folder."""

    def alone(self, place: Folder) -> AbstractContextManager[None]:
        """Holds a lock: one process at a time is in such a block, whatever machine it is on."""

    def hidden_name(self, text: str) -> str:
        """A name for what a private text stands for; others learn nothing from it."""


def files_below(root: Folder) -> PrivateFiles:
    """The files of a sensitive store.

    Raises:
        SensitiveKeyError: They lie in an object store, and there is no key to seal them with.
    """
    if isinstance(root, Path):  # Each kind takes the places below a root of its own kind.
        return cast(PrivateFiles, OwnerOnlyFiles(root))
    from dpsynth_assets.sensitive.sealed_objects import SealedObjects

    return cast(PrivateFiles, SealedObjects(root))
