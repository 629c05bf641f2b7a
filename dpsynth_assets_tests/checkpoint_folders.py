"""A place for the checkpoints of a run that no store keeps anything of."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from dpsynth_assets.privacy.ledger.replacing import owner_folder


class CheckpointFolders:
    """A `Checkpoint` in a folder of its own; a run may die where it would save for the nth time."""

    def __init__(self, folder: Path, dies_at: int | None = None) -> None:
        """Uses, or creates, an owner-only folder."""
        self._folder, self._left = owner_folder(folder), dies_at

    @property
    def saved(self) -> Path | None:
        """The last saved checkpoint."""
        found = sorted(each for each in self._folder.iterdir() if each.name.startswith("saved-"))
        return found[-1] if found else None

    def filled(self, write: Callable[[Path], object]) -> Path:
        """A fresh folder with what `write` puts there."""
        folder = Path(tempfile.mkdtemp(prefix="scratch-", dir=self._folder))
        write(folder)
        return folder

    def save(self, folder: Path) -> None:
        """Renames it, after which older ones are removed."""
        self._left = self._left and self._left - 1
        if self._left == 0:
            raise KeyboardInterrupt
        last = self.saved
        number = 0 if last is None else int(last.name.removeprefix("saved-")) + 1
        folder.rename(self._folder / f"saved-{number:09d}")
        for each in self._folder.iterdir():
            if each.name != f"saved-{number:09d}":
                shutil.rmtree(each)
