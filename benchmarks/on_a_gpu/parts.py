"""Runs measurements one after another, each in a process of its own with seconds it may take.

A part calls `tell` as soon as it knows something, and every such record is on disk before the next:
what breaks off later loses nothing. Children are forked from a process that has imported the
libraries and has not touched the card, so a part costs no import, its peak memory is its own, and
a part that fails or hangs leaves the card to the next.
"""

import json
import multiprocessing
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Tell = Callable[..., None]
"""Called with the figures of one measurement by name."""


@dataclass(frozen=True)
class Part:
    """A measurement.

    Attributes:
        name: Of all records it tells.
        seconds: After which it is stopped.
        run: Called with the device and `tell`.
    """

    name: str
    seconds: float
    run: Callable[[str, Tell], None]


def run_parts(parts: list[Part], device: str, out: Path, seconds: float) -> list[dict]:
    """Runs parts in their order until the time is over; returns all records.

    Args:
        parts: In the order in which they matter.
        device: `cuda` or `cpu`.
        out: Receives one JSON object a line.
        seconds: For all of them; a part begins only where half of its own seconds are left.
    """
    end = time.monotonic() + seconds
    out.parent.mkdir(parents=True, exist_ok=True)
    out.unlink(missing_ok=True)
    for part in parts:
        left = end - time.monotonic()
        if left < part.seconds / 2:
            write(out, part.name, {"left_out": f"{left:.0f} s were left, {part.seconds:.0f} asked"})
            continue
        started = time.monotonic()
        failure = run_part(part, device, out, min(left, part.seconds))
        took = time.monotonic() - started
        print(f"{part.name}: {took:.1f} s{'' if failure is None else ', ' + failure}", flush=True)
        write(out, part.name, {"took_s": round(took, 1)} | ({"failed": failure} if failure else {}))
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def run_part(part: Part, device: str, out: Path, seconds: float) -> str | None:
    """Runs one part in a forked child; says how it failed, if it did."""
    child = multiprocessing.get_context("fork").Process(target=_child, args=(part, device, out))
    child.start()
    child.join(seconds)
    if child.is_alive():
        child.kill()
        child.join()
        return f"stopped after {seconds:.0f} s"
    return None if child.exitcode == 0 else f"exit status {child.exitcode}"


def _child(part: Part, device: str, out: Path) -> None:
    def tell(**figures: object) -> None:
        write(out, part.name, figures)

    try:
        part.run(device, tell)
    except Exception as error:  # noqa: BLE001  the next part shall run, and this one's reason be known
        last = traceback.extract_tb(error.__traceback__)[-1]
        tell(error=f"{type(error).__name__}: {error}"[:300], at=f"{last.filename}:{last.lineno}")
        traceback.print_exc()
        raise SystemExit(1) from None


def write(out: Path, name: str, figures: dict) -> None:
    """Appends one record."""
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"part": name} | figures, default=float) + "\n")
