"""DP-Adam beside plain AdamW and Opacus at Llama 3.2 1B's shape: adapters, and all weights.

All weights: a step's noise is a number for each of 1.5 billion weights, drawn on processors from
operating-system entropy. That takes minutes, so it is drawn for a part, and its seconds a step are
told apart from the others.
"""

import time
from functools import partial
from types import SimpleNamespace

from benchmarks import dp_training
from benchmarks.on_a_gpu.parts import Part, Tell

_DRAWN = 1 << 22
"""Numbers whose noise is drawn and timed."""


def parts(*, tiny: bool) -> list[Part]:
    """A part for each way of each model."""
    shape = "llama tiny" if tiny else "llama 1b"
    found = []
    for kind in ("adapters", "all weights"):
        for way in ("plain", "DP-Adam", "plain, bfloat16", "DP-Adam, bfloat16", "Opacus hooks"):
            name = f"{shape}, adapters" if kind == "adapters" else shape
            found.append(Part(f"training, {kind}, {way}", 40, partial(measure, name=name, way=way)))
    return found


def measure(device: str, tell: Tell, *, name: str, way: str) -> None:
    """Examples a second without noise, memory at most, and what the noise of a step takes."""
    import torch

    from dpsynth_assets.privacy import dp_sgd

    drawn = {"numbers": 0, "calls": 0}
    real = dp_sgd.gaussian_like

    def counted(reference, deviation):
        drawn["numbers"] += reference.numel()
        drawn["calls"] += 1
        return torch.zeros_like(reference) if reference.numel() else real(reference, deviation)

    dp_sgd.gaussian_like = counted
    threads = torch.get_num_threads()
    asked = SimpleNamespace(threads=threads, logical=None, device=device)
    found = dp_training.measured(name, way, asked)
    tell(examples_a_second=found["examples_per_second"], peak_mib=found["peak_mib"], **load(name))
    if drawn["numbers"]:
        steps = 1 + dp_training.LOADS[name]["steps"]  # one warms up
        started = time.perf_counter()
        real(torch.empty(_DRAWN, device=device), 1.0)
        rate = _DRAWN / (time.perf_counter() - started)
        numbers = drawn["numbers"] / steps
        tell(noise_numbers_a_step=numbers, noise_s_a_step=numbers / rate)


def load(name: str) -> dict[str, int]:
    """Sizes of the batches."""
    return {key: dp_training.LOADS[name][key] for key in ("logical", "micro_batch", "target")}
