"""Writes the README's pictures: `python -m dpsynth_assets_tests.web.pictures FOLDER`.

Walks through the UI of a small house (the walk that `test_walk.py` runs) and keeps the pictures
the README shows.
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image

from dpsynth_assets_tests.web.walk import MissingToolError, find_browser, walk_through

SHOWN = (
    "data_flow",
    "mechanism_explained",
    "progress",
    "privacy_levels",
    "corpus",
    "blocking_check",
    "launchpad_refuses",
    "skip_reason",
)


def main(folder: Path) -> int:
    """Walks, keeps the pictures; 1 if a step did not find what a person would look for."""
    try:
        browser = find_browser()
    except MissingToolError as missing:
        sys.stderr.write(f"pictures need a browser: {missing}\n")
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        steps = walk_through(Path(scratch), Path(scratch) / "pictures", browser)
        for step in steps:
            sys.stderr.write(f"{step.name:24} {step.failure or 'seen'}\n")
            if step.name in SHOWN:
                _keep(step.picture, folder / f"{step.name}.png")
    return int(any(step.failure for step in steps))


def _keep(picture: Path, target: Path) -> None:
    with Image.open(picture) as image:
        image.convert("RGB").save(target, optimize=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
