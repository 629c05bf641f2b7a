"""Products of 8-bit activations and 8-bit weights whose sums are exact, and so without an order.

Kernels compute the same numbers, bit for bit: an int8 product that scales its result on the way
out, and float32 products of integers, cut so that 24 bits hold every partial sum, with weights
packed once in 16 bits, or as they are. A trial finds the first of them that a processor computes
exactly: without VNNI or a like instruction, int8 products may saturate sums of 16 bits.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Literal

from dpsynth_assets.privacy.cpu import run_alone

if TYPE_CHECKING:
    import torch

LIMIT = 127
"""Activations and weights are integers in [-127, 127]."""
ZERO_POINT = 128
"""Activations are stored as bytes with this added."""
EXACT_INTEGERS = 2**24
"""float32 holds every integer up to this one."""
ROUNDING = 12_582_912 + ZERO_POINT
"""1.5 * 2^23 + 128: a float to which it is added is rounded, plus 128 in its lowest byte."""
SMALLEST = 1e-30
"""Replaces a largest magnitude of zero, before a division by it."""

Kernel = Literal["int8", "float16", "float32"]
Shape = tuple[int, int]
"""(out, in) of a weight."""

_LARGEST_ROWS = (1, 6, 33, 130)
"""Rows of the products whose sums are the largest there are."""
_RANDOM_ROWS = (1, 6, 33)
"""Rows of random products."""


class ExactDecoderError(ValueError):
    """The exact decoder does not compute this model: expected, got, remedy in one line."""


IntegerProduct = Callable[["torch.Tensor"], "torch.Tensor"]
"""y = (q W^T) scaled by output channel, with int8 weights W and 8-bit activations q: maps uint8
(T, in) to float32 (T, out); row t depends on row t alone."""


class Int8Product:
    """oneDNN's int8 product: VNNI and AMX on x86, dot products of bytes on ARM."""

    def __init__(self, integers: "torch.Tensor", scale: "torch.Tensor") -> None:
        """Packs W, (out, in) int8, whose sums are multiplied by scale (out,) float32."""
        import torch

        self._scale = scale
        self._zeros = torch.zeros(len(integers), dtype=torch.int32)
        self._packed = torch.ops.onednn.qlinear_prepack(integers, None)

    def __call__(self, activations: "torch.Tensor") -> "torch.Tensor":
        """See `IntegerProduct`."""
        import torch

        return torch.ops.onednn.qlinear_pointwise(
            activations, 1.0, ZERO_POINT, self._packed, self._scale, self._zeros, None,
            1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip


class FloatProduct:
    """A float32 product of integers, in as many blocks of inputs as exact sums need."""

    def __init__(self, integers: "torch.Tensor", scale: "torch.Tensor") -> None:
        """Takes W, (out, in) int8, whose sums are multiplied by scale (out,) float32."""
        self._scale = scale
        self._width = exact_width(integers)
        blocks = integers.float().split(self._width, dim=1)
        self._blocks = [self._multiply_by(block) for block in blocks]

    @staticmethod
    def _multiply_by(block: "torch.Tensor") -> "Callable[[torch.Tensor], torch.Tensor]":
        return partial(_multiplied, block.t().contiguous())

    def __call__(self, activations: "torch.Tensor") -> "torch.Tensor":
        """See `IntegerProduct`."""
        import torch

        signed = activations.float().sub_(ZERO_POINT)
        if len(self._blocks) == 1:
            return self._blocks[0](signed).mul_(self._scale)
        parts = zip(self._blocks, signed.split(self._width, dim=1), strict=True)
        sums = torch.stack(
            [multiply(part.contiguous()).to(torch.int32) for multiply, part in parts]
        )
        return sums.sum(0, dtype=torch.int32).float().mul_(self._scale)


class HalfProduct(FloatProduct):
    """The same with weights that FBGEMM packs in 16 bits, which hold them exactly: less to read."""

    @staticmethod
    def _multiply_by(block: "torch.Tensor") -> "Callable[[torch.Tensor], torch.Tensor]":
        import torch

        packed = torch.ops.quantized.linear_prepack_fp16(block.contiguous(), None)
        multiply = torch.ops.quantized.linear_dynamic_fp16
        return lambda rows: multiply(rows, packed)


def _multiplied(weight: "torch.Tensor", rows: "torch.Tensor") -> "torch.Tensor":
    return rows @ weight


KERNELS: dict[Kernel, Callable[["torch.Tensor", "torch.Tensor"], IntegerProduct]] = {
    "int8": Int8Product,
    "float16": HalfProduct,
    "float32": FloatProduct,
}
"""From the fastest on, at the shapes of language models (`benchmarks/exact_decoder.py`)."""


def exact_width(integers: "torch.Tensor") -> int:
    """Inputs of a float32 product at most, so that no sum of W's products with q exceeds 2^24.

    Args:
        integers: W, (out, in) int8.
    """
    import torch

    magnitudes, inputs = integers.abs(), integers.shape[1]
    parts = 1
    while True:
        width = -(-inputs // parts)
        sums = [part.sum(1, dtype=torch.int64).max() for part in magnitudes.split(width, dim=1)]
        if LIMIT * int(max(sums)) <= EXACT_INTEGERS:
            return width
        parts += 1


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
    """Rounds each row to integers in [-127, 127].

    Args:
        x: (T, n) float32.

    Returns:
        uint8 (T, n) with 128 added, and the largest magnitude of each row (T, 1).
    """
    import torch

    largest = x.abs().amax(1, keepdim=True).clamp_min_(SMALLEST)
    rounded = (x * (LIMIT / largest)).add_(ROUNDING)
    return rounded.view(torch.int32).to(torch.uint8), largest


def fastest_kernel(shapes: Iterable[Shape]) -> Kernel:
    """The first kernel, fastest first, that this processor computes exactly; tried once a process.

    Which one it is changes no bit of a result.

    Args:
        shapes: Of the weights that it is to multiply with.

    Raises:
        ExactDecoderError: This processor computes no kernel exactly.
    """
    (kernel,) = run_alone([partial(_fastest, tuple(sorted(set(shapes))))], 1)
    return kernel


@cache
def _fastest(shapes: tuple[Shape, ...]) -> Kernel:
    for kernel in KERNELS:
        if all(is_exact(kernel, shape) for shape in shapes):
            return kernel
    raise ExactDecoderError(
        "Expected a processor that multiplies small integers exactly, got wrong sums, or none, "
        f"from all of {', '.join(KERNELS)}; unset variables that lower the "
        "precision of float32 (DNNL_DEFAULT_FPMATH_MODE), or write decoder: transformers."
    )


def is_exact(kernel: Kernel, shape: Shape) -> bool:
    """Whether a kernel's sums are right: at their largest, where 16 bits saturate, and at random.

    Must run where PyTorch uses one thread.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    scale = torch.rand(shape[0], generator=generator) + 0.5
    try:
        product = KERNELS[kernel](torch.full(shape, -LIMIT, dtype=torch.int8), scale)
        largest = torch.tensor(-(LIMIT**2) * shape[1]).float() * scale
        for rows in _LARGEST_ROWS:
            got = product(torch.full((rows, shape[1]), ZERO_POINT + LIMIT, dtype=torch.uint8))
            if not torch.equal(got, largest.expand(rows, -1)):
                return False
        integers = _random(shape, generator)
        product, exact = KERNELS[kernel](integers, scale), integers.t().double()
        for rows in _RANDOM_ROWS:
            drawn = _random((rows, shape[1]), generator)
            sums = (drawn.double() @ exact).float() * scale
            if not torch.equal(product((drawn.int() + ZERO_POINT).to(torch.uint8)), sums):
                return False
    except (RuntimeError, AttributeError):  # An operation that this build of PyTorch lacks.
        return False
    return True


def _random(shape: tuple[int, int], generator: "torch.Generator") -> "torch.Tensor":
    import torch

    return torch.randint(-LIMIT, LIMIT + 1, shape, generator=generator, dtype=torch.int8)


def token_packs(lengths: Sequence[int], tokens_per_pack: int) -> Iterator[list[int]]:
    """Yields consecutive rows of at most this many tokens, or one row; skips rows without any."""
    pack: list[int] = []
    total = 0
    for row, length in enumerate(lengths):
        if pack and (not length or total + length > tokens_per_pack):
            yield pack
            pack, total = [], 0
        if length:
            pack.append(row)
            total += length
    if pack:
        yield pack
