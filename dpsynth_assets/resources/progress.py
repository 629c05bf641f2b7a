"""Progress of long work: a bar with ETA in the terminal, a line with ETA in Dagster's log."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

import dagster as dg

from dpsynth_assets.methods.inputs import ProgressCallback

TerminalBar = Callable[[str], ProgressCallback]
"""Given a title, opens a bar and returns its callback."""

LOGGED_STEPS = 20
"""Shares are logged in steps of 1/20: a fine share after a known number of records, 16 of N say,
would tell N, which may be private."""

_terminal_bar: list[TerminalBar] = []


def show_in_terminal(bar: TerminalBar) -> None:
    """Sends progress of this process to a terminal bar as well (the CLI calls this once)."""
    _terminal_bar[:] = [bar]


class Progress(dg.ConfigurableResource):
    """Reports progress; messages carry public facts only."""

    opens_private_data: ClassVar[bool] = False

    log_every_seconds: float = 10.0

    def start(self, context: dg.AssetExecutionContext, title: str) -> ProgressCallback:
        """Opens a bar named `title`; call the result with the share done and a short message."""
        bar = _terminal_bar[0](title) if _terminal_bar else None
        started = time.monotonic()
        last = -math.inf  # The first message is always logged.

        def report(share: float, message: str) -> None:
            nonlocal last
            if bar is not None:
                bar(share, message)
            now = time.monotonic()
            if now - last < self.log_every_seconds and share < 1:
                return
            last = now
            line = progress_line(coarse(share), message, now - started)
            with suppress(Exception):  # A log without room must not end what is paid for.
                context.log.info("%s: %s", title, line)

        return report


def coarse(share: float) -> float:
    """Rounds a share down to what may be logged; see `LOGGED_STEPS`."""
    return math.floor(share * LOGGED_STEPS + 1e-9) / LOGGED_STEPS


def progress_line(share: float, message: str, elapsed: float) -> str:
    """Says how far something is: share, message, and the seconds it took or may still take."""
    if share <= 0:
        return message
    done = f"{share:.0%} {message}".rstrip()
    left = elapsed * (1 - share) / share
    eta = f", about {left:.0f} s left" if share < 1 else f", took {elapsed:.0f} s"
    return f"{done}{eta}"
