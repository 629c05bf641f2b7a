"""Root-mean-square norms on a CUDA device, by one program a row instead of nine kernels.

A decoding step of 26 layers has a hundred norms of a few hundred rows: what takes long is starting
their kernels. A row's arithmetic follows from the row alone. Where gradients are asked for, the
model's own code computes.
"""
# ruff: noqa: ANN001, ANN202, N803  a kernel's arguments have no types, constants capitals

from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from weakref import ref

if TYPE_CHECKING:
    import torch

_TRIED_ROWS = 3
_WIDEST = 1 << 14


def fuse_norms(model: Any) -> None:
    """Gives a model's norms on a CUDA device the fused kernel, once; leaves other layers alone.

    A norm is taken for what its class says, and is left alone where the kernel differs from it by
    more than rounding on random rows.
    """
    if find_spec("triton") is None:
        return
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm") and "forward" not in vars(module):
            add = _added_to_weight(module)
            if add is not None:
                module.forward = partial(_forward, ref(module), add)  # no cycle holds weights


def _added_to_weight(module: Any) -> int | None:
    """Whether a norm scales by its weight (0) or by one more (1, Gemma); None: by neither."""
    import torch

    weight = getattr(module, "weight", None)
    if weight is None or not weight.is_cuda or weight.dim() != 1 or len(weight) > _WIDEST:
        return None
    if _epsilon(module) is None:
        return None
    rows = torch.randn(_TRIED_ROWS, len(weight), device=weight.device, dtype=weight.dtype)
    with torch.no_grad():
        expected = module(rows).float()
        most = 8 * torch.finfo(weight.dtype).eps * expected.abs().max().clamp_min(1.0)
        for add in (0, 1):
            try:
                found = normalized(rows, weight, _epsilon(module), add).float()
            except Exception:  # noqa: BLE001  no compiler here: the model's own code computes
                return None
            if (found - expected).abs().max() <= most:
                return add
    return None


def _epsilon(module: Any) -> float | None:
    found: float | None = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return found


def _forward(module_of: Any, add: int, rows: "torch.Tensor") -> "torch.Tensor":
    import torch

    module = module_of()
    if torch.is_grad_enabled() or not rows.is_cuda or rows.dtype != module.weight.dtype:
        own: torch.Tensor = type(module).forward(module, rows)
        return own
    return normalized(rows, module.weight, _epsilon(module), add)


def normalized(
    rows: "torch.Tensor", weight: "torch.Tensor", epsilon: float | None, add: int
) -> "torch.Tensor":
    """Divides rows (…, d) by their root mean square and scales them by weight + add, (d,)."""
    import torch
    import triton

    rows = rows.contiguous()
    out, width = torch.empty_like(rows), rows.shape[-1]
    grid = (rows.numel() // width,)
    with torch.cuda.device_of(rows):  # Triton launches on the current device.
        _kernel()[grid](
            rows, weight, out, epsilon, WIDTH=width, BLOCK=triton.next_power_of_2(width), ADD=add
        )
    return out


@cache
def _kernel() -> Any:
    """Defined at the first use: triton comes with builds of PyTorch for CUDA only."""
    import triton
    import triton.language as tl

    @triton.jit
    def normalize(  # type: ignore[no-untyped-def]
        rows, weight, out, epsilon, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr
    ):
        place = tl.arange(0, BLOCK)
        first, inside = tl.program_id(0).to(tl.int64) * WIDTH, place < WIDTH
        stored = tl.load(rows + first + place, mask=inside, other=0.0)
        row = stored.to(tl.float32)
        row = row * (1 / tl.sqrt(tl.sum(row * row, 0) / WIDTH + epsilon))
        scale = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
        if ADD:  # a constant: one branch is compiled
            row *= ADD + scale
        else:
            row = row.to(stored.dtype).to(tl.float32) * scale
        tl.store(out + first + place, row.to(stored.dtype), mask=inside)

    return normalize
