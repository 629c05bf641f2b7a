"""Writes the pictures and the recording of the three walks of the tour.

    python -m dpsynth_assets_tests.web.pictures FOLDER [--home HOME]

Walks through the UI of a small installation (the walk that `test_walk.py` runs) and keeps the
pictures that docs/tour.md shows. With the home of a finished `make demo`, pictures that
only look at what is there show that cohort; those of runs and refusals still show the small
installation.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from dpsynth_assets_tests.web.recording import write_recording
from dpsynth_assets_tests.web.walk import (
    MissingToolError,
    Step,
    find_browser,
    look_at_demo,
    walk_through,
)

LOOKS = (
    "mechanism_explained", "corpus", "columns", "samples", "report", "test_tick", "run_tags",
    "budgets", "five_questions", "statement",
)  # fmt: skip
"""Pictures of what lies there, in which a text or a number is worth reading."""

HAPPENS = (
    "data_flow", "progress", "privacy_levels", "blocking_check", "launchpad_refuses", "schedule",
    "timeline", "skip_reason",
)  # fmt: skip
"""Pictures of what happens in a walk, and of a graph small enough to be read."""


def main(folder: Path, home: Path | None) -> int:
    """Walks, keeps the pictures; 1 if a step did not find what a person would look for."""
    try:
        browser = find_browser()
    except MissingToolError as missing:
        sys.stderr.write(f"pictures need a browser: {missing}\n")
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        looks = [] if home is None else look_at_demo(home, scratch / "demo", browser, LOOKS)
        steps = walk_through(scratch, scratch / "pictures", browser, scratch / "frames")
        instead = {step.name: step for step in looks}
        shown = [instead.get(step.name, step) for step in steps]
        failed = _keep(shown, LOOKS + HAPPENS, folder)
        write_recording(shown, scratch / "frames", folder / "walk.gif", still=instead)
    return int(failed)


def _keep(steps: Sequence[Step], names: Sequence[str], folder: Path) -> bool:
    """Saves the named pictures; says whether any step failed."""
    for step in steps:
        sys.stderr.write(f"{step.name:24} {step.failure or 'seen'}\n")
        if step.name in names:
            with Image.open(step.picture) as image:
                image.convert("RGB").save(folder / f"{step.name}.png", optimize=True)
    return any(step.failure for step in steps)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--home", type=Path, help="DPSYNTH_HOME after `make demo`")
    given = parser.parse_args()
    sys.exit(main(given.folder, given.home and given.home.resolve()))
