"""Models that stay open in a process while a run uses them."""

import ctypes
import gc
from collections.abc import Callable
from functools import lru_cache
from threading import Lock
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Opened = TypeVar("Opened")

_forgets: list[Callable[[], None]] = []
_users = 0
_lock = Lock()


def kept(
    maxsize: int,
) -> Callable[[Callable[Arguments, Opened]], Callable[Arguments, Opened]]:
    """Keeps what a function opens, by its arguments, until `forget_models`.

    Args:
        maxsize: Results that stay open at once; the one used longest ago goes first.
    """

    def decorate(function: Callable[Arguments, Opened]) -> Callable[Arguments, Opened]:
        remembered = lru_cache(maxsize=maxsize)(function)
        _forgets.append(remembered.cache_clear)
        return remembered  # type: ignore[return-value]

    return decorate


_opened: dict[Callable[..., Any], Callable[..., Any]] = {}


def opened_once(
    opens: Callable[Arguments, Opened], *given: Arguments.args, **named: Arguments.kwargs
) -> Opened:
    """What a function opens, kept by its arguments; two of each kind stay open."""
    if opens not in _opened:
        _opened[opens] = kept(2)(opens)
    found: Opened = _opened[opens](*given, **named)
    return found


def forget_models() -> None:
    """Closes engines, drops every model that was kept, and gives memory back to the system."""
    from dpsynth_assets.models.engines.opening import close_engines

    close_engines()
    for forget in _forgets:
        forget()
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc keeps freed memory for itself.
        trim(0)


def begin_use() -> None:
    """Notes that a run of this process uses models."""
    global _users  # noqa: PLW0603 - one count a process
    with _lock:
        _users += 1


def end_use() -> None:
    """Notes that a run has ended; after the last one models are forgotten."""
    global _users  # noqa: PLW0603 - one count a process
    with _lock:
        _users -= 1
        if _users == 0:
            forget_models()
