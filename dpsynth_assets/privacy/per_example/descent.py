"""Finds tensors of a forward pass that come from its batch: their first axis counts examples.

Sizes prove nothing: T x T relative positions look like B rows of T tokens where B = T.

Shape letters: B examples, T tokens of one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.overrides import TorchFunctionMode

LookedUp = Callable[[tuple[Any, ...], Any], Any]
"""Given the arguments and the output of a table look-up, what the model uses next."""


class Descent:
    """Follows what is computed from the tensors that a model is given.

    **Privacy** A booked layer must see a tensor that is followed here, or one that was repeated for
    every example on purpose. What is made inside of a model, such as positions, belongs to no
    example; a trace that is lost leads to a refusal, never to a guess.
    """

    def __init__(self, examples: int) -> None:
        """Starts a pass of B examples, of which nothing is followed yet."""
        self._examples = examples

    def begin(self, _model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Follows what the model is given; a pre-forward hook.

        A tensor without a row for each example is shared, such as (1, T) positions.
        """
        for each in _tensors((args, kwargs)):
            if each.dim() and len(each) == self._examples:
                self.follow(each)

    def follow(self, tensor: "torch.Tensor") -> None:
        """Declares that a tensor comes from the batch; the mark goes with the tensor."""
        tensor._descent = self  # type: ignore[attr-defined]

    def includes(self, tensor: Any) -> bool:
        """Says whether a tensor comes from the batch."""
        return getattr(tensor, "_descent", None) is self

    def pass_on(self, function: Any, given: tuple[Any, ...], named: Any, found: Any) -> None:
        """Follows what a function returned, or changed in place, where it used what is followed."""
        if function in _without_values() or _takes_one_row(function, given):
            return
        sources = given[:1] if function in _of_one_argument() else given
        if self._is_among(sources) or (named and self._is_among(named.values())):
            for each in _tensors(given[:1] if found is None else found):
                self.follow(each)

    def _is_among(self, sources: Iterable[Any]) -> bool:
        """Says whether an argument of a function comes from the batch; called very often."""
        return any(
            self.includes(each) or (isinstance(each, list | tuple) and self._is_among(each))
            for each in sources
        )


def following(descent: Descent, looked_up: LookedUp) -> "TorchFunctionMode":
    """Makes a mode in which every function passes the descent on, and look-ups are reported."""
    return _mode()(descent, looked_up)


@cache
def _mode() -> Any:
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    can_come_from_a_batch = (torch.Tensor, tuple, list, type(None))  # most calls read a shape

    class Following(TorchFunctionMode):
        def __init__(self, descent: Descent, looked_up: LookedUp) -> None:
            super().__init__()
            self._descent = descent
            self._looked_up = looked_up

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            output = func(*args, **(kwargs or {}))
            if isinstance(output, can_come_from_a_batch) and type(output) is not torch.Size:
                self._descent.pass_on(func, args, kwargs, output)
            return self._looked_up(args, output) if func is functional.embedding else output

    return Following


@cache
def _without_values() -> frozenset[Any]:
    """Functions that read a tensor's shape and type alone."""
    import torch

    like = ("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like")
    new = ("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor")
    functions = [getattr(torch, name) for name in like]
    return frozenset([*functions, *(getattr(torch.Tensor, name) for name in new)])


@cache
def _of_one_argument() -> frozenset[Any]:
    """Functions that read no value of a second tensor."""
    import torch

    names = ("to", "type_as", "expand_as", "view_as", "reshape_as")
    return frozenset(getattr(torch.Tensor, name) for name in names)


def _takes_one_row(function: Any, given: tuple[Any, ...]) -> bool:
    """Says whether `rows[0]` leaves the examples behind."""
    import torch

    if function is not torch.Tensor.__getitem__:
        return False
    key = given[1][0] if isinstance(given[1], tuple) and given[1] else given[1]
    return isinstance(key, int) and not isinstance(key, bool)


def _tensors(nested: Any) -> "Iterator[torch.Tensor]":
    """Yields the tensors in nested tuples, lists and mappings."""
    import torch

    if isinstance(nested, torch.Tensor):
        yield nested
    elif isinstance(nested, list | tuple):
        for each in nested:
            yield from _tensors(each)
    elif isinstance(nested, Mapping):
        for each in nested.values():
            yield from _tensors(each)
