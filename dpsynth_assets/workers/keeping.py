"""What the functions of a worker keep from one call to the next: a model, or values of a step.

It lasts as long as the workers (`Workers.opened`). A process of its own takes what it kept with it;
where the calling process works on the parts itself, `forget` gives the memory back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_kept: dict[str, tuple[str, Any]] = {}


def kept(name: str, version: str, make: Callable[[], T]) -> T:
    """What was made before in this process, or is made now.

    Args:
        name: Place in which one thing at a time is kept.
        version: Which one: another goes before this one is made.
        make: Makes it.
    """
    if _kept.get(name, ("",))[0] != version:
        _kept.pop(name, None)
        _kept[name] = (version, make())
    made: T = _kept[name][1]
    return made


def forget() -> None:
    """Drops everything that was kept in this process."""
    _kept.clear()


@dataclass(frozen=True)
class Here(Generic[T]):
    """What a task uses where the process that made it does it; where it is sent, there is none."""

    value: T | None = None

    def __reduce__(self) -> tuple[type["Here[T]"], tuple[()]]:
        """Is sent without its value."""
        return type(self), ()
