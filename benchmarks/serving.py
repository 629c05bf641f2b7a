"""An endpoint of `dpsynth serve` under many clients: rows, latency, errors, memory.

    dpsynth serve COHORT --method METHOD &
    python benchmarks/serving.py --model COHORT/METHOD --label "billing" [--clients 32]
        [--seconds 60] [--rows 1] [--address http://127.0.0.1:8400] [--server PID]

Every client asks for its rows, waits for them and asks again. A request that another waits for is
part of its latency: rows of all clients are written together. `--server` reads the memory of the
server's process.
"""

import argparse
import os
import statistics
import threading
import time
from pathlib import Path

import httpx


def main() -> None:
    asked = _arguments()
    ends = time.monotonic() + asked.seconds
    seconds: list[float] = []
    answers: list[int] = []
    texts: list[str] = []

    def client() -> None:
        body = {"model": asked.model, "prompt": asked.label, "n": asked.rows}
        token = os.environ.get("DPSYNTH_SERVE_TOKEN")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        with httpx.Client(base_url=asked.address, timeout=600, headers=headers) as session:
            while time.monotonic() < ends:
                started = time.monotonic()
                answer = session.post("/v1/completions", json=body)
                seconds.append(time.monotonic() - started)
                answers.append(answer.status_code)
                if answer.status_code == 200:
                    texts.extend(choice["text"] for choice in answer.json()["choices"])
                else:
                    time.sleep(1)

    started = time.monotonic()
    threads = [threading.Thread(target=client) for _ in range(asked.clients)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    took = time.monotonic() - started
    ordered = sorted(seconds)
    print(f"{asked.clients} clients, {took:.0f} s: {len(answers)} requests, {len(texts)} rows")
    print(f"rows a second: {len(texts) / took:.2f}; blank rows: {texts.count('')}")
    print(
        f"latency in seconds: median {statistics.median(seconds):.2f}, "
        f"95 % {ordered[int(0.95 * (len(ordered) - 1))]:.2f}, longest {ordered[-1]:.2f}"
    )
    print(f"answers by status: { ({code: answers.count(code) for code in sorted(set(answers))}) }")
    if asked.server:
        status = Path(f"/proc/{asked.server}/status").read_text()
        for line in status.splitlines():
            if line.startswith(("VmHWM", "VmRSS")):
                print(line)
    for text in texts[:3]:
        print(f"  {text[:110]!r}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--label", default="")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--address", default="http://127.0.0.1:8400")
    parser.add_argument("--server", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
