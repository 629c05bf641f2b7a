"""Opens written HTML pages at three widths, and dark at one, and looks at them with axe-core.

    python -m dpsynth_assets_tests.web.accessible FOLDER PAGE...

prints one line for each page, width and choice of colours; screenshots go to FOLDER.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpsynth_assets_tests.web.walk import Browser, find_browser

SECONDS = 300


@dataclass(frozen=True)
class Look:
    """A page at one width.

    Attributes:
        page: Its file name.
        colors: `light` or `dark`.
        width: Pixels of the screen.
        overflow: Pixels by which the page is wider than that.
        scrolling: Tables that are wider than their place, and scroll within it.
        violations: Rules of axe-core that the page breaks, each with the elements.
    """

    page: str
    colors: str
    width: int
    overflow: int
    scrolling: list[str]
    violations: list[str]


def look_at_pages(pages: Sequence[Path], output: Path, browser: Browser) -> list[Look]:
    """Opens each page at 1280, 1600 and 390 pixels, and dark at 1280; keeps screenshots."""
    plan = {
        "pages": [str(page.resolve()) for page in pages],
        "output": str(output),
        "chromium": browser.chromium,
        "playwright": str(browser.playwright),
    }
    command = ["node", str(Path(__file__).with_name("pages.mjs")), json.dumps(plan)]
    seen = subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS)
    return [Look(**json.loads(line)) for line in seen.stdout.splitlines()]


def main(output: Path, pages: Sequence[Path]) -> int:
    """Prints what was seen; 1 if a page breaks a rule or is wider than the screen."""
    looks = look_at_pages(pages, output, find_browser())
    for look in looks:
        sys.stdout.write(f"{look}\n")
    return int(any(look.overflow or look.violations for look in looks))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]))
