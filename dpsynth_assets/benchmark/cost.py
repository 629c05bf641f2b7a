"""What a run took: time, processor time, memory, tokens, and the code that ran."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpsynth_assets.attacks.circumstances import code_digest
from dpsynth_assets.models.decoding.protocol import COUNTS

_PACKAGE = Path(__file__).parents[1]
_RESET, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_MIB = 1024


@dataclass(kw_only=True)
class RunCost:
    """What one run of a method took.

    Attributes:
        seconds: Time by the clock.
        processor_seconds: Time of all threads of this process.
        peak_memory_mib: Most resident memory of this process (MiB); None where Linux does not tell.
        tokens_read: Tokens of prompts and read texts.
        tokens_written: Tokens that were decoded, of all rows of a pass.
        code: Beginning of a digest of this package's code.
    """

    seconds: float = 0.0
    processor_seconds: float = 0.0
    peak_memory_mib: int | None = None
    tokens_read: int = 0
    tokens_written: int = 0
    code: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def package_code() -> str:
    """Beginning of a digest of this package's code, as it lies on disk."""
    return code_digest(_PACKAGE)[:12]


@contextmanager
def metered() -> Iterator[RunCost]:
    """Yields the cost of what runs inside, filled in at the end."""
    cost = RunCost(code=package_code())
    began, before = (time.monotonic(), time.process_time()), COUNTS.copy()
    follows = _reset_peak()
    yield cost
    cost.seconds = round(time.monotonic() - began[0], 1)
    cost.processor_seconds = round(time.process_time() - began[1], 1)
    cost.peak_memory_mib = _peak_mib() if follows else None
    tokens = COUNTS.since(before)
    cost.tokens_read, cost.tokens_written = tokens.read, tokens.written


def _reset_peak() -> bool:
    """Starts the peak of resident memory anew; says whether that was possible."""
    try:
        _RESET.write_text("5", encoding="ascii")
    except OSError:
        return False
    return _STATUS.is_file()


def _peak_mib() -> int | None:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / _MIB)
    return None
