"""Public models that machines share: made by one, copied where they are missing.

A model's folder lies under `artifacts/public/<base>/<kind>/<version>`; its version is a digest of
all that it was made of, so machines that share a declaration ask for the same folder. Where
DPSYNTH_STORE_URL is set, a folder that was made is copied to `<store>/public/…`, and a machine
without it takes it from there: every file is compared with the digest stored with it. Without that
variable machines need a disk in common.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from dpsynth_assets.files.whole import MARKER, download_whole, written_whole
from dpsynth_assets.paths import Folder, home

_BELOW, _PARTS = ("artifacts", "public"), 3
"""A model's folder is named by base, kind and version below these two."""


def model_folder(base: str, kind: str, version: str) -> Path:
    """Folder of a model of this version on this machine, copied from the store if it is there.

    Raises:
        OSError: A file in the store is not the one that was stored.
    """
    return _fetched(home().public_models / base / kind / version)


def made_folder(base: str, kind: str, version: str, make: Callable[[Path], object]) -> Path:
    """Folder of a model of this version: made before, here or on another machine, or made now.

    Args:
        base: Whose it is.
        kind: What it is.
        version: Digest of all that it is made of.
        make: Fills an empty folder, which becomes the model's when it is whole.
    """
    folder = model_folder(base, kind, version)
    if not folder.is_dir():
        _copied(make, folder)
    share(folder)
    return folder


def share(folder: Path) -> None:
    """Copies a model that was made here to the store, unless it is there."""
    place = _shared(folder)
    if place is not None and not _is_there(place):
        _copied(lambda whole: shutil.copytree(folder, whole, dirs_exist_ok=True), place)


def local_copy(path: str) -> str:
    """Folder on this machine of a model that another machine made; other paths stay as they are.

    Args:
        path: What a manifest says: a folder under some machine's `artifacts/public`, any other
            folder, or a name of the hub.
    """
    named = Path(path)
    shared = home().shared_models
    if shared is None or named.is_dir() or named.parts[-_PARTS - 2 : -_PARTS] != _BELOW:
        return path
    return str(_fetched(home().public_models.joinpath(*named.parts[-_PARTS:])))


def _fetched(folder: Path) -> Path:
    place = _shared(folder)
    if place is None or folder.is_dir() or not _is_there(place):
        return folder
    if isinstance(place, Path):
        _copied(lambda whole: shutil.copytree(place, whole, dirs_exist_ok=True), folder)
    else:
        download_whole(place, folder)
    return folder


def _shared(folder: Path) -> Folder | None:
    """Place of a model in the store; None without a store."""
    shared = home().shared_models
    return shared and shared.joinpath(*folder.relative_to(home().public_models).parts)


def _is_there(place: Folder) -> bool:
    return place.is_dir() if isinstance(place, Path) else bool((place / MARKER).exists())


def _copied(write: Callable[[Path], object], place: Folder) -> None:
    """Writes a folder whole; another process that was first wrote the same."""
    try:
        with written_whole(place) as whole:
            write(whole)
    except OSError:
        if not _is_there(place):
            raise
