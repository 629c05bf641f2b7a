"""Products of 8-bit activations and 8-bit weights whose sums are exact, and so without an order.

Three kernels compute the same numbers, bit for bit: an int8 product that scales its result on the
way out, the plain int8 product, and a float32 product of integers, cut so that 24 bits hold every
partial sum. The fastest that a machine gets right is taken: processors without VNNI may saturate
16-bit intermediate sums of int8 products.
"""

from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

LIMIT = 127
"""Activations and weights are integers in [-127, 127]."""
ZERO_POINT = 128
"""Activations are stored as bytes with this added."""
EXACT_INTEGERS = 2**24
"""float32 holds every integer up to this one."""
_BLOCK = EXACT_INTEGERS // LIMIT**2
"""Inputs of one float32 product at most: 1,040."""
SMALLEST = 1e-30
"""Replaces a largest magnitude of zero, before a division by it."""

Kernel = Literal["fused", "plain", "float"]
KERNELS: tuple[Kernel, ...] = ("fused", "plain", "float")


class IntegerProduct:
    """y = (q W^T) scaled by output channel, with int8 weights W and 8-bit activations q."""

    def __init__(
        self, integers: "torch.Tensor", scale: "torch.Tensor", kernel: Kernel | None = None
    ) -> None:
        """Lays the weights out as a kernel wants them.

        Args:
            integers: W, (out, in) int8 in [-127, 127].
            scale: (out,) float32, multiplies the sums.
            kernel: What computes the product; None takes the fastest that is exact here.
        """
        import torch

        self._kernel: Kernel = exact_kernel() if kernel is None else kernel
        self._scale = scale
        if self._kernel == "fused":
            self._zeros = torch.zeros(len(integers), dtype=torch.int32)
            self._packed = torch.ops.onednn.qlinear_prepack(integers, None)
        elif self._kernel == "plain":
            self._weight = integers.t().contiguous()  # by rows: faster for few rows
        else:
            blocks = integers.t().float().split(_BLOCK)
            self._blocks = [block.contiguous() for block in blocks]

    def __call__(self, activations: "torch.Tensor") -> "torch.Tensor":
        """Maps uint8 (T, in) to float32 (T, out); row t depends on row t alone."""
        import torch

        if self._kernel == "fused":
            return torch.ops.onednn.qlinear_pointwise(
                activations, 1.0, ZERO_POINT, self._packed, self._scale, self._zeros, None,
                1.0, 0, torch.float32, "none", [], "",
            )  # fmt: skip
        if self._kernel == "plain":
            signed = activations.view(torch.int8) ^ -ZERO_POINT  # the same as subtracting it
            return torch._int_mm(signed, self._weight).float().mul_(self._scale)
        return self._float_sums(activations).float().mul_(self._scale)

    def _float_sums(self, activations: "torch.Tensor") -> "torch.Tensor":
        """Exact sums as int32, from float32 products of at most 1,040 inputs."""
        import torch

        signed = activations.float().sub_(ZERO_POINT)
        parts = signed.split(_BLOCK, dim=1)
        sums = [
            torch.mm(part.contiguous(), block).to(torch.int32)
            for part, block in zip(parts, self._blocks, strict=True)
        ]
        return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0, dtype=torch.int32)


def quantized_weight(
    weight: "torch.Tensor", factor: float = 1.0
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Rounds a weight symmetrically, one scale an output channel.

    Args:
        weight: (out, in) float32.
        factor: Multiplies every output.

    Returns:
        int8 (out, in), and the scales (out,) of a product's sums.
    """
    import torch

    scale = (weight.abs().amax(1) / LIMIT).clamp_min_(SMALLEST)  # (out,)
    return (weight / scale[:, None]).round_().to(torch.int8), scale * factor


def quantized_rows(x: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
    """Rounds each row to integers in [-127, 127]; overwrites `x`.

    Args:
        x: (T, n) float32.

    Returns:
        uint8 (T, n) with 128 added, and the largest magnitude of each row (T, 1).
    """
    import torch

    largest = x.abs().amax(1, keepdim=True).clamp_min_(SMALLEST)
    # 1.5 * 2^23 + 128 leaves the rounded number plus 128 in the lowest byte of the float.
    x.mul_(LIMIT / largest).add_(12_582_912 + ZERO_POINT)
    return x.view(torch.int32).to(torch.uint8), largest


@cache
def exact_kernel() -> Kernel:
    """The fastest kernel that multiplies int8 matrices without saturation on this machine."""
    import torch

    if torch.cpu._is_vnni_supported():
        for kernel in KERNELS[:-1]:
            if _is_exact(kernel):
                return kernel
    return KERNELS[-1]


def _is_exact(kernel: Kernel) -> bool:
    """Compares a kernel with the float32 one, on the largest sums and on random ones."""
    import torch

    generator = torch.Generator().manual_seed(0)
    for rows, inputs, outputs in ((1, 576, 64), (5, 1536, 576), (32, 576, 960), (64, 96, 33)):
        shape = (outputs, inputs)
        extreme = torch.full(shape, -1.0)
        random = torch.randint(-LIMIT, LIMIT + 1, shape, generator=generator).float()
        for weight, lowest in ((extreme, 2 * LIMIT + 1), (random, 1)):
            activations = torch.randint(
                lowest, 2 * LIMIT + 2, (rows, inputs), generator=generator, dtype=torch.uint8
            )
            quantized = quantized_weight(weight)
            try:
                got = IntegerProduct(*quantized, kernel)(activations)
            except RuntimeError:
                return False
            if not torch.equal(got, IntegerProduct(*quantized, "float")(activations)):
                return False
    return True
