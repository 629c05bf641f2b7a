"""Opacus optimizers with noise from operating-system entropy."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dpsynth_assets.privacy.noise import gaussian_like

if TYPE_CHECKING:
    import torch

_NAME = "_generate_noise"


@contextmanager
def secure_opacus_noise() -> Iterator[None]:
    """Makes every Opacus optimizer draw its noise from `gaussian_like` inside the `with` block.

    Opacus 1.6 draws from torch's generator, whose whole output follows from a 64-bit seed that
    scripts fix and print; its own `secure_mode` needs a package that does not exist for current
    PyTorch. A generator or seed given to Opacus has no effect on noise inside the block. Its
    batch sampling is left alone: draw batches with `poisson_sample`.

    Raises:
        RuntimeError: If the installed Opacus draws noise in another way than version 1.6.
    """
    modules = _drawing_modules()
    if not modules:
        raise RuntimeError(
            f"Expected Opacus optimizers that draw noise through {_NAME}, got none. "
            "Install opacus 1.6."
        )
    originals = [(module, getattr(module, _NAME)) for module in modules]
    try:
        for module in modules:
            setattr(module, _NAME, _noise)
        yield
    finally:
        for module, original in originals:
            setattr(module, _NAME, original)


def _drawing_modules() -> list[ModuleType]:
    """Lists the modules that hold a reference to Opacus's noise function."""
    import opacus.optimizers  # noqa: F401  loads the modules that the next line looks through

    loaded = [name for name in sys.modules if name.startswith("opacus.optimizers")]
    return [sys.modules[name] for name in loaded if hasattr(sys.modules[name], _NAME)]


def _noise(std: float, reference: "torch.Tensor", **_ignored: Any) -> "torch.Tensor":
    return gaussian_like(reference, float(std))
