"""Hooks that keep the factors of per-example gradients during one forward and backward pass.

While a booked module runs, its own parameters ask for no gradient, so that autograd computes none
of theirs; a parameter that something else reads directly still gets one, and gives that away.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpsynth_assets.privacy.per_example.arithmetic import Products
from dpsynth_assets.privacy.per_example.descent import Descent, following
from dpsynth_assets.privacy.per_example.opacus_layers import call_of
from dpsynth_assets.privacy.per_example.support import ModuleKind, is_look_up, owners_of_tables
from dpsynth_assets.privacy.per_example.uses import Factors, ModuleUse, book

if TYPE_CHECKING:
    import torch


@dataclass
class Recording:
    """Every call of a booked module during one forward pass of B examples.

    Attributes:
        examples: B.
        products: Arithmetic.
        descent: What comes from the batch.
        uses: The calls so far.
        flags: Parameters of running modules, and whether they ask for gradients otherwise.
        table: The embedding that is running.
        index: What was last looked up in a table of relative positions.
    """

    examples: int = field(repr=False)
    products: Products
    descent: Descent = field(repr=False)
    uses: list[ModuleUse] = field(default_factory=list, repr=False)
    flags: "dict[int, list[tuple[torch.nn.Parameter, bool]]]" = field(
        default_factory=dict, repr=False
    )
    table: "tuple[Any, ModuleKind] | None" = None
    index: "torch.Tensor | None" = field(default=None, repr=False)

    def before(self, module: "torch.nn.Module", kind: ModuleKind) -> None:
        """Stops the module's own parameters from asking for gradients.

        Those of a layer that is left to Opacus are all that are inside of it.
        """
        own = list(module.parameters(recurse=kind is ModuleKind.OPACUS))
        self.flags[id(module)] = [(each, each.requires_grad) for each in own]
        for each in own:
            each.requires_grad_(False)

    def restore(self, module: "torch.nn.Module") -> None:
        """Undoes `before`."""
        for each, flag in self.flags.pop(id(module), ()):
            each.requires_grad_(flag)

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
            TypeError: If it is neither: a (T, T) index is not B rows of T, whatever B is.
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
        hooks = [model.register_forward_pre_hook(descent.begin, with_kwargs=True)]
        for module, kind in modules:
            own = _Hooks(record, kind)
            hooks.append(module.register_forward_pre_hook(own.before))
            hooks.append(module.register_forward_hook(own.after, with_kwargs=True))
            undo.callback(record.restore, module)
        for handle in hooks:
            undo.callback(handle.remove)
        tables = {id(each) for each, kind in modules if kind is ModuleKind.RELATIVE_BIAS}
        for owner in owners_of_tables(model).values():
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
    """The two forward hooks of one module."""

    def __init__(self, record: Recording, kind: ModuleKind) -> None:
        self._record = record
        self._kind = kind

    def before(self, module: "torch.nn.Module", _inputs: Any) -> None:
        """Pre-forward hook."""
        self._record.before(module, self._kind)
        if self._kind in _TABLES:
            self._record.table = (module, self._kind)

    def after(
        self, module: "torch.nn.Module", inputs: Any, named: Mapping[str, Any], output: Any
    ) -> Any:
        """Forward hook; what it returns replaces the output."""
        self._record.restore(module)
        if self._kind in _TABLES:
            self._record.table = None
            return output
        if self._kind is ModuleKind.OPACUS:
            return self._record.watch_opacus(module, inputs, named, output)
        return self._record.watch(module, self._kind, inputs[0], output)
