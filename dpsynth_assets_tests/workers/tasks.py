"""Functions that workers call in tests; processes import them by name."""

import ctypes
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.workers import kept

SECRET = "Dear doctor, my name is Ada."


def written(folder: Path) -> list[Path]:
    """Five parts, each a character longer than the one before."""
    places = [folder / f"{number:05d}-of-00005" for number in range(5)]
    for number, place in enumerate(places):
        place.write_text(SECRET + "x" * number)
    return places


def length(part: Path) -> int:
    return len(part.read_text())


def process(_: Path) -> int:
    return os.getpid()


def may_be_dumped(_: Path) -> int:
    return ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)  # PR_GET_DUMPABLE


def quotes_a_record(part: Path) -> int:
    raise ValueError(part.read_text())


def refuses(_: Path) -> int:
    raise PrivacyError("Expected a key, got none. Export it.")


@dataclass(frozen=True)
class DiesOnce:
    """Marks every call, and ends the process that calls it."""

    marks: Path

    def __call__(self, part: Path) -> int:
        with (self.marks / part.name).open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
        return 0


@dataclass(frozen=True)
class CountsAfterADeath:
    """Ends the first process that counts, and counts ever after."""

    marks: Path
    count: Callable[[Any], Any]

    def __call__(self, private: Any) -> Any:
        try:
            (self.marks / "died").touch(exist_ok=False)
        except FileExistsError:
            return self.count(private)
        os.kill(os.getpid(), signal.SIGKILL)
        return None


@dataclass(frozen=True)
class LongAfterTheFirst:
    """Returns at once for the first part; for others it marks its begin and, later, its end."""

    marks: Path

    def __call__(self, part: Path) -> int:
        if not part.name.startswith("00000"):
            (self.marks / "begun").touch()
            time.sleep(600)
            (self.marks / "ended").touch()
        return 0


def kept_here(part: Path) -> tuple[int, int]:
    """The process, and how often it made what it keeps."""
    made = kept("made", part.parent.name, list)
    made.append(part.name)
    return os.getpid(), len(made)


def slow_for_the_first(part: Path) -> int:
    time.sleep(0.5 if part.name.startswith("00000") else 0)
    return len(part.read_text())
