"""Runs the walks: a house, `make ui` in it, and headless Chromium that clicks through it."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from dpsynth_assets_tests.children import free_port
from dpsynth_assets_tests.web import house

ROOT = Path(__file__).parents[2]
PLAYWRIGHT = "playwright-core@1.65.1"
AXE = "axe-core@4.14.1"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
PROGRAMS = ("make", "node", "npm")
START_SECONDS = 480
STEP_SECONDS = 120
SCREEN_WIDTH = 1440
"""Pixels; DPSYNTH_WALK_WIDTH takes another."""
RUN_SECONDS = 1500
STOP_SECONDS = 10
MECHANISMS = {
    "mean_clustered": {
        "mechanism": "candidate_corpus",
        "paper": "Amin et al. 2025",
        "code": "aggregates.py",
    },
    "epsvec": {
        "mechanism": "dataset_vectors",
        "paper": "Banayeeanzade et al. 2026",
        "code": "method.py",
    },
}
"""Methods that are walked through: an asset that pays, its paper, the file of its code."""


class MissingToolError(RuntimeError):
    """The walk cannot be made on this machine; the message says what to install."""


@dataclass(frozen=True)
class Browser:
    """What drives the browser: Chromium, and the folder of playwright-core and axe-core."""

    chromium: str
    playwright: Path


@dataclass(frozen=True)
class Ui:
    """A served UI: its address, and the session its processes are in."""

    url: str
    session: int


@dataclass(frozen=True)
class Step:
    """What one step of the walk came to, and the clicks it took."""

    name: str
    picture: Path
    seconds: float
    failure: str | None
    clicks: int = 0


def find_browser() -> Browser:
    """Chromium of the system, playwright-core and axe-core from the cache, installed there once.

    Raises:
        MissingToolError: If a program is missing, or npm cannot install a package.
    """
    chromium = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if chromium is None:
        raise MissingToolError("no chromium: apt-get install chromium")
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise MissingToolError(f"no {' and no '.join(missing)}: apt-get install make nodejs npm")
    return Browser(chromium, _playwright())


def _playwright() -> Path:
    given = os.environ.get("DPSYNTH_PLAYWRIGHT")
    if given:
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "dpsynth_assets" / PLAYWRIGHT.replace("@", "-")
    packages = (PLAYWRIGHT, AXE)
    names = (package.partition("@")[0] for package in packages)
    if not all((folder / "node_modules" / name).exists() for name in names):
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
        command += ["--prefix", str(folder), *packages]
        if subprocess.run(command, check=False, timeout=180).returncode != 0:
            raise MissingToolError(f"npm could not install {' '.join(packages)} from its registry")
    return folder


def walk_through(
    folder: Path, output: Path, browser: Browser, frames: Path | None = None
) -> list[Step]:
    """Builds a house in `folder`, serves it, walks through it.

    Args:
        folder: Where the house is built.
        output: Where a picture of each step goes.
        browser: What drives the browser.
        frames: Where what the page shows on the way goes; None: it is not kept.
    """
    output.mkdir(parents=True, exist_ok=True)
    with open_ui(folder / "home", house.build_house(folder)) as ui:
        steps, browsing = _walk(ui.url, browser, output, frames=frames)
        facts = {
            "processor_seconds_of_the_browser": round(browsing),
            "processor_seconds_of_dagster": round(processor_seconds(ui.session)),
            "steps": [asdict(step) | {"picture": step.picture.name} for step in steps],
        }
    (output / "walk.json").write_text(json.dumps(facts, indent=2))
    return steps


def look_at_demo(home: Path, output: Path, browser: Browser, names: Sequence[str]) -> list[Step]:
    """Looks at `enquiries` in the home of a finished `make demo`; starts no run.

    Args:
        home: What was DPSYNTH_HOME.
        output: Folder for pictures.
        browser: What drives the browser.
        names: Steps of the walk that only look.
    """
    output.mkdir(parents=True, exist_ok=True)
    with open_ui(home) as ui:
        return _walk(
            ui.url,
            browser,
            output,
            cohort=house.DEMO_COHORT,
            method=house.DEMO_METHOD,
            unspent=house.DEMO_UNSPENT,
            only=names,
        )[0]


@contextmanager
def open_ui(home: Path, datasets: Path | None = None) -> Iterator[Ui]:
    """Serves a house with `make ui` on a free port.

    Args:
        home: Its DPSYNTH_HOME; need not exist.
        datasets: Folder of dataset files beside those of the package.
    """
    port = free_port()
    environment = os.environ | {
        "DPSYNTH_HOME": str(home),
        "DAGSTER_HOME": str(home / "dagster"),
        "DPSYNTH_DATASETS": str(datasets or ""),
        "DPSYNTH_EXECUTOR": "in_process",  # Steps share their models: a third of the time.
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("DPSYNTH_LEDGER_URL", None)
    # This interpreter's environment is set up already, whatever the age of its stamp.
    installed = f"{sys.prefix}/.installed"
    command = ["make", "-o", installed, "ui", f"VENV={sys.prefix}", f"PORT={port}"]
    home.mkdir(parents=True, exist_ok=True)
    with (home / "ui.log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            _wait_until_served(port, server, home / "ui.log")
            yield Ui(f"http://127.0.0.1:{port}", server.pid)
        finally:
            _stop(server)


def _walk(
    url: str,
    browser: Browser,
    output: Path,
    *,
    cohort: str = house.COHORT,
    method: str = house.METHOD,
    unspent: str = house.BLOCKED,
    only: Sequence[str] | None = None,
    frames: Path | None = None,
) -> tuple[list[Step], float]:
    """Steps, and the browser's processor seconds."""
    plan = {
        "url": url,
        "output": str(output),
        "chromium": browser.chromium,
        "playwright": str(browser.playwright),
        "cohort": cohort,
        "only": only,
        "frames": None if frames is None else str(frames),
        "method": method,
        **MECHANISMS[method],
        "blocked": house.BLOCKED,
        "blocked_method": house.BLOCKED_METHOD,
        "groups": house.groups(cohort, method),
        "schedule": f"regenerate_{cohort}_schedule",
        "unspent_schedule": f"regenerate_{unspent}_schedule",
        "width": int(os.environ.get("DPSYNTH_WALK_WIDTH", SCREEN_WIDTH)),
        "patience_seconds": STEP_SECONDS,
        "run_patience_seconds": RUN_SECONDS,
        "settle_seconds": 1.5,
    }
    command = ["node", str(Path(__file__).with_name("walk.mjs")), json.dumps(plan)]
    steps, before = [], _waited_for()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as walker:
        try:
            for line in walker.stdout or ():
                row = json.loads(line)
                picture = Path(row["picture"])
                steps.append(
                    Step(row["step"], picture, row["seconds"], row["failure"], row["clicks"])
                )
        except BaseException:  # The walk ran out of time: its browser must not run on.
            os.killpg(walker.pid, signal.SIGKILL)
            raise
    return steps, _waited_for() - before


def _waited_for() -> float:
    """Processor time of all children that have ended: the browser's is known when it has."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def processor_seconds(session: int) -> float:
    """Processor time of the processes of a session, and of those they have waited for (Linux)."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _wait_until_served(port: int, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            with urlopen(f"http://127.0.0.1:{port}/server_info", timeout=10):
                return
        except (URLError, OSError):
            if server.poll() is not None:
                break
            time.sleep(1)
    raise RuntimeError(f"Expected `make ui` to answer, got:\n{log.read_text()[-4000:]}")


def _stop(server: subprocess.Popen) -> None:
    """Ends the server and all it started, politely at first."""
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if not _signalled(server, sign):
            return
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.5)
            if not _signalled(server, 0):
                return


def _signalled(server: subprocess.Popen, sign: int) -> bool:
    """Whether any process of the server's group was there to take the signal."""
    server.poll()  # A dead leader that nobody has waited for would still count.
    try:
        os.killpg(server.pid, sign)
    except ProcessLookupError:
        return False
    return True
