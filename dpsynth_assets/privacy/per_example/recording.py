"""Hooks that keep the factors of per-example gradients during one forward and backward pass.

While a booked module runs, its own parameters ask for no gradient, so that autograd computes none
of theirs; a parameter that something else reads directly still gets one, and gives that away.

Tensors are followed from the batch (`Descent`): then their first axis counts examples. Sizes prove
nothing: T x T relative positions look like B rows of T tokens where B = T.

Shape letters: B examples, T tokens of one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from dpsynth_assets.privacy.per_example.arithmetic import Products
from dpsynth_assets.privacy.per_example.opacus_layers import call_of
from dpsynth_assets.privacy.per_example.support import ModuleKind, is_look_up, owners_of_tables
from dpsynth_assets.privacy.per_example.uses import Factors, ModuleUse, book

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
        read = _arguments_read().get(function)
        if read == 0 or (read == _ROWS and _is_one_row(given[1])):
            return
        sources = given if read is None else given[:read]
        if self._is_among(sources) or (named and self._is_among(named.values())):
            for each in _tensors(given[:1] if found is None else found):
                self.follow(each)

    def _is_among(self, sources: Iterable[Any]) -> bool:
        """Says whether an argument of a function comes from the batch; called very often."""
        for each in sources:
            if getattr(each, "_descent", None) is self:
                return True
            if isinstance(each, (list, tuple)) and self._is_among(each):
                return True
        return False


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
            output = func(*args, **kwargs) if kwargs else func(*args)
            if isinstance(output, can_come_from_a_batch) and type(output) is not torch.Size:
                self._descent.pass_on(func, args, kwargs, output)
            return self._looked_up(args, output) if func is functional.embedding else output

    return Following


_ROWS = 2
"""Arguments of `rows[key]`, which leaves the examples behind where the key is one number."""


@cache
def _arguments_read() -> dict[Any, int]:
    """Says of functions that read no value of a second tensor how many arguments they read."""
    import torch

    like = ("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like")
    new = ("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor")
    one = ("to", "type_as", "expand_as", "view_as", "reshape_as")
    found = dict.fromkeys((getattr(torch, name) for name in like), 0)
    found |= {getattr(torch.Tensor, name): 0 for name in new}
    found |= {getattr(torch.Tensor, name): 1 for name in one}
    return found | {torch.Tensor.__getitem__: _ROWS}


def _is_one_row(key: Any) -> bool:
    """Says whether `rows[key]` leaves the examples behind."""
    first = key[0] if isinstance(key, tuple) and key else key
    return isinstance(first, int) and not isinstance(first, bool)


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


@dataclass
class Recording:
    """Every call of a booked module during one forward pass of B examples.

    Attributes:
        examples: B.
        products: Arithmetic.
        descent: What comes from the batch.
        uses: The calls so far.
        silent: Parameters of running modules that ask for gradients otherwise.
        table: The embedding that is running.
        index: What was last looked up in a table of relative positions.
    """

    examples: int = field(repr=False)
    products: Products
    descent: Descent = field(repr=False)
    uses: list[ModuleUse] = field(default_factory=list, repr=False)
    silent: "dict[int, list[torch.nn.Parameter]]" = field(default_factory=dict, repr=False)
    table: "tuple[Any, ModuleKind] | None" = None
    index: "torch.Tensor | None" = field(default=None, repr=False)

    def before(self, module: "torch.nn.Module", kind: ModuleKind) -> None:
        """Stops the module's own parameters from asking for gradients.

        Those of a layer that is left to Opacus are all that are inside of it.
        """
        whole = kind is ModuleKind.OPACUS
        own: Any = module.parameters() if whole else module._parameters.values()
        asking = [each for each in own if each is not None and each.requires_grad]
        self.silent[id(module)] = asking
        for each in asking:
            each.requires_grad_(False)

    def restore(self, module: int) -> None:
        """Undoes `before` of the module of this `id`."""
        for each in self.silent.pop(module, ()):
            each.requires_grad_()

    def restore_all(self) -> None:
        """Undoes `before` of modules that did not come to an end."""
        for module in list(self.silent):
            self.restore(module)

    def watch(
        self, module: "torch.nn.Module", kind: ModuleKind, inputs: Any, output: Any
    ) -> "torch.Tensor":
        """Keeps one call, and returns an output that leads autograd back to it.

        Raises:
            TypeError: If the first axis of what came in is not known to count examples.
        """
        import torch

        if not torch.is_grad_enabled():
            return output
        if kind not in _TABLES and not self.descent.includes(inputs):
            raise TypeError(
                f"Expected a trainable {type(module).__name__} to see what was computed from the "
                "tensors that the model is given, got another tensor. Freeze it, or call the model."
            )
        return self._keep(ModuleUse(module, kind, inputs.detach()), output)

    def _keep(self, use: ModuleUse, output: "torch.Tensor") -> "torch.Tensor":
        """Keeps a call whose first axis counts examples."""
        if not output.requires_grad:  # nothing trainable before: start the graph here
            output = output.detach().requires_grad_().clone()
        output.register_hook(use.keep)
        self.uses.append(use)
        self.descent.follow(output)
        return output

    def watch_opacus(
        self, module: "torch.nn.Module", args: Any, kwargs: Mapping[str, Any], output: Any
    ) -> Any:
        """Keeps one call of a layer that is left to Opacus.

        Raises:
            TypeError: As `call_of`, or if it does not return a tensor of one row for each example.
        """
        import torch

        if not torch.is_grad_enabled():
            return output
        call = call_of(module, args, kwargs, self.examples, self.descent.includes)
        if not isinstance(output, torch.Tensor) or output.shape[:1] != (self.examples,):
            raise TypeError(
                f"Expected a trainable {type(module).__name__}, whose gradients Opacus computes, "
                "to return one tensor of one row for each example, got something else. Freeze it "
                "(requires_grad=False), or train adapters."
            )
        return self._keep(ModuleUse(module, ModuleKind.OPACUS, call), output)

    def looked_up(self, args: Any, output: Any) -> Any:
        """Keeps the table look-up inside an embedding, offset and scale aside."""
        import torch

        if self.table is None or not torch.is_grad_enabled():
            return output
        module, kind = self.table
        if args[1] is not module.weight:
            return output
        if kind is ModuleKind.RELATIVE_BIAS:
            self._refuse_open_look_up()
            self.index = args[0]
            return output
        index, output = self._by_example(module, args[0], output)
        return self.watch(module, kind, index, output)

    def repeated(self, table: Any, bias: Any) -> "torch.Tensor":
        """Repeats a (1, H, Q, K) bias of relative positions for every example and keeps it.

        Raises:
            TypeError: If it is more than the rows that were looked up.
        """
        index, self.index = self.index, None
        if index is None or not is_look_up(bias, index, table.weight):
            raise TypeError(
                "Expected compute_bias to return what it looked up in relative_attention_bias, got "
                "something else. Freeze relative_attention_bias."
            )
        bias = bias.expand(self.examples, -1, -1, -1)
        return self.watch(table, ModuleKind.RELATIVE_BIAS, index, bias)

    def take(self) -> dict[int, Factors]:
        """Turns the calls into factors by parameter (its `id`), and forgets them."""
        self._refuse_open_look_up()
        found: dict[int, Factors] = {}
        while self.uses:
            use = self.uses.pop()
            if use.gradient is not None:
                book(use, found, self.examples, self.products)
        return found

    def _refuse_open_look_up(self) -> None:
        if self.index is not None:
            raise TypeError(
                "Expected relative_attention_bias to be looked up by compute_bias alone, got "
                "another caller. Freeze relative_attention_bias."
            )

    def _by_example(self, module: Any, index: Any, output: Any) -> "tuple[Any, torch.Tensor]":
        """Returns look-ups, and what they found, with a first axis that counts examples.

        What was computed from the batch has one. One row of positions that all share is repeated
        for every example, so that each has a gradient of its own, unless the model did so itself.

        Raises:
            TypeError: If it is neither: a (T, T) index is not B rows of T, for every B.
        """
        if self.descent.includes(index) and len(index) == self.examples:
            return index, output
        shared = index.dim() == 2 and not self.descent.includes(index)
        if shared and len(index) == 1:
            return index.expand(self.examples, -1), output.expand(self.examples, -1, -1)
        if shared and len(index) == self.examples and bool((index == index[:1]).all()):
            return index, output
        raise TypeError(
            f"Expected look-ups in a trainable {type(module).__name__} by the batch that the model "
            "is given, or by one row of positions, got others, as of relative positions. Freeze it "
            "(requires_grad=False)."
        )


_TABLES = (ModuleKind.EMBEDDING, ModuleKind.RELATIVE_BIAS)


@contextmanager
def recording(
    model: "torch.nn.Module",
    modules: "Sequence[tuple[torch.nn.Module, ModuleKind]]",
    examples: int,
    products: Products = Products.NATIVE,
) -> Iterator[Recording]:
    """Records the forward pass of `examples` examples through a model inside the `with` block."""
    descent = Descent(examples)
    record = Recording(examples, products, descent)
    with ExitStack() as undo:
        undo.callback(record.restore_all)
        hooks = [model.register_forward_pre_hook(descent.begin, with_kwargs=True)]
        for module, kind in modules:
            own = _Hooks(record, kind)
            hooks.append(module.register_forward_pre_hook(own.before))
            hooks.append(module.register_forward_hook(own.after, with_kwargs=True))
        for handle in hooks:
            undo.callback(handle.remove)
        tables = {id(each) for each, kind in modules if kind is ModuleKind.RELATIVE_BIAS}
        for owner in owners_of_tables(model).values() if tables else ():
            if id(owner.relative_attention_bias) in tables:
                undo.callback(_repeat_bias(owner, record))
        undo.enter_context(following(descent, record.looked_up))
        yield record


def _repeat_bias(owner: Any, record: Recording) -> Callable[[], None]:
    """Puts `Recording.repeated` behind a module's `compute_bias`; returns how to undo it."""
    compute = owner.compute_bias

    def repeat(*args: Any, **kwargs: Any) -> "torch.Tensor":
        return record.repeated(owner.relative_attention_bias, compute(*args, **kwargs))

    owner.__dict__["compute_bias"] = repeat
    return lambda: owner.__dict__.pop("compute_bias")


class _Hooks:
    """The two forward hooks of one module; what they compute is followed by what they declare."""

    def __init__(self, record: Recording, kind: ModuleKind) -> None:
        self._record = record
        self._kind = kind

    def before(self, module: "torch.nn.Module", _inputs: Any) -> None:
        """Pre-forward hook."""
        import torch

        with torch._C.DisableTorchFunction():
            self._record.before(module, self._kind)
        if self._kind in _TABLES:
            self._record.table = (module, self._kind)

    def after(
        self, module: "torch.nn.Module", inputs: Any, named: Mapping[str, Any], output: Any
    ) -> Any:
        """Forward hook; what it returns replaces the output."""
        import torch

        with torch._C.DisableTorchFunction():
            self._record.restore(id(module))
            if self._kind in _TABLES:
                self._record.table = None
                return output
            if self._kind is ModuleKind.OPACUS:
                return self._record.watch_opacus(module, inputs, named, output)
            return self._record.watch(module, self._kind, inputs[0], output)
