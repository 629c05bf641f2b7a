"""How long opening the web UI takes: definitions, webserver, first paint, the asset graph drawn.

    python benchmarks/web_ui.py [--rounds 3]

Starts the webserver alone (`make ui` adds the daemon) in an empty home whose plans were made once,
then opens the asset graph in headless Chromium. Times are medians of the rounds in wall seconds;
processor seconds stand beside them, since they do not depend on what else the machine does.
Needs chromium, node and npm, like the walk of `dpsynth_assets_tests/web`.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dpsynth_assets_tests.web.walk import (  # noqa: E402
    Browser,
    MissingToolError,
    find_browser,
    processor_seconds,
)

SHOWN = "tickets"  # A group of the graph: visible when the graph is drawn.
LIMIT_SECONDS = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds

    try:
        browser = find_browser()
    except MissingToolError as missing:
        sys.exit(f"skipped: {missing}")
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"DPSYNTH_HOME": folder, "DAGSTER_HOME": f"{folder}/dagster"}
        Path(folder, "dagster").mkdir()
        _definitions(environment)  # Calibrates what the demo's fixed plan needs, once.
        loads = [_definitions(environment) for _ in range(rounds)]
        openings = [_opening(environment, browser) for _ in range(rounds)]
    _show("import and load the definitions, processor", loads)
    for name in openings[0]:
        _show(name, [opening[name] for opening in openings])
    painted = statistics.median(o["webserver started to first paint"] for o in openings)
    drawn = statistics.median(o["webserver started to graph drawn"] for o in openings)
    load = os.getloadavg()[0]
    print(f"first paint after {painted:.1f} s, graph after {drawn:.1f} s, wanted under "
          f"{LIMIT_SECONDS:.0f} s; {os.cpu_count()} cores, load average {load:.1f}")  # fmt: skip


def _show(name: str, seconds: list[float]) -> None:
    each = ", ".join(f"{value:.2f}" for value in seconds)
    print(f"{name:48} {statistics.median(seconds):6.2f} s   ({each})")


def _definitions(environment: dict[str, str]) -> float:
    code = (
        "import time; import dpsynth_assets.definitions as d;"
        "d.defs().resolve_asset_graph(); print(time.process_time())"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    made = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment
    )
    return float(made.stdout)


def _opening(environment: dict[str, str], browser: Browser) -> dict[str, float]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    program = str(Path(sys.executable).with_name("dagster-webserver"))
    started = time.monotonic()
    server = subprocess.Popen(
        [program, "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(port)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        answered = _answered(url) - started
        processor = processor_seconds(server.pid)
        script = str(Path(__file__).with_suffix(".mjs"))
        command = ["node", script, url, browser.chromium, str(browser.playwright), SHOWN]
        times = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)
    painted, drawn = times["painted"] / 1000, times["graph"] / 1000
    return {
        "webserver answers": answered,
        "webserver answers, processor": processor,
        "page opened to first paint": painted,
        "page opened to graph drawn": drawn,
        "webserver started to first paint": answered + painted,
        "webserver started to graph drawn": answered + drawn,
    }


def _answered(url: str) -> float:
    while True:
        try:
            with urlopen(f"{url}/server_info", timeout=30):
                return time.monotonic()
        except OSError:
            time.sleep(0.1)


if __name__ == "__main__":
    main()
