"""DP-Adam beside plain AdamW and Opacus at Llama 3.2 1B's shape: adapters, and all weights.

A step of few records and one of more give the seconds of a record and those of a step whatever its
records. The noise is a number for each weight, drawn on processors from operating-system entropy
while the card works; for all 1.5 billion weights that takes minutes. So zeros take its place here,
it is drawn for a part, and its seconds are told apart.
"""

import time
from functools import partial

from benchmarks import dp_training
from benchmarks.on_a_gpu.parts import Part, Tell

WAYS = (
    "plain",
    "DP-Adam",
    "Opacus hooks",
    "plain, bfloat16",
    "DP-Adam, bfloat16",
    "Opacus hooks, bfloat16",
)
_DRAWN = 1 << 22
"""Numbers whose noise is drawn and timed."""


def parts(*, tiny: bool) -> list[Part]:
    """A part for each way of each model."""
    shape = "llama tiny" if tiny else "llama 1b"
    found = []
    for kind in ("adapters", "all weights"):
        for way in WAYS:
            name = f"{shape}, adapters" if kind == "adapters" else shape
            found.append(Part(f"training, {kind}, {way}", 40, partial(measure, name=name, way=way)))
    larger = partial(measure, name=shape, way="DP-Adam", micro_batch=4 if tiny else 16)
    return [*found, Part("training, all weights, DP-Adam in larger parts", 40, larger)]


def measure(
    device: str, tell: Tell, *, name: str, way: str, micro_batch: int | None = None
) -> None:
    """Records a second, fixed seconds a step, memory at most, and what a step's noise takes."""
    import torch

    from dpsynth_assets.privacy import dp_sgd

    drawn = {"numbers": 0, "calls": 0}
    real = dp_sgd.gaussian_like

    def counted(reference, deviation):
        drawn["numbers"] += reference.numel()
        drawn["calls"] += 1
        return torch.zeros_like(reference) if reference.numel() else real(reference, deviation)

    dp_sgd.gaussian_like = counted
    if micro_batch is not None:
        dp_training.LOADS[name]["micro_batch"] = micro_batch
    loss = dp_training.CountedLoss(dp_training.new_loss(name))
    run = opened(device, name, way, loss)
    size = dp_training.LOADS[name]["logical"]
    run(size, 1)  # what is done the first time costs more
    drawn["numbers"] = 0
    (few, short), (many, long) = (
        counted_seconds(run, loss, device, times * size) for times in (1, 4)
    )
    rate = max(1, many - few) / max(1e-9, long - short)
    tell(examples_a_second=rate, fixed_s_a_step=short - few / rate, **load(name))
    tell(peak_mib=dp_training.peak_bytes(device) / 2**20)
    if drawn["numbers"]:
        started = time.perf_counter()
        real(torch.empty(_DRAWN, dtype=torch.float64), 1.0)
        numbers = drawn["numbers"] / 2
        seconds = (time.perf_counter() - started) * numbers / _DRAWN
        tell(noise_numbers_a_step=numbers, noise_s_a_step_on_one_core=seconds)


def opened(device: str, name: str, way: str, loss):
    """What runs steps of a way: (records of a step, steps)."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    dp_training.warm_libraries(way)
    with torch.device(device):
        model = dp_training.new_model(dp_training.SHAPES[name])
    sizes = dp_training.LOADS[name]
    examples = dp_training.random_examples(sizes, dp_training.SHAPES[name]["vocabulary"])
    return dp_training.trainer(way, model, examples, loss, sizes)


def counted_seconds(run, loss, device: str, logical: int) -> tuple[int, float]:
    """Examples of one step, and its seconds."""
    loss.examples = 0
    started = time.perf_counter()
    run(logical, 1)
    dp_training.synchronize(device)
    return loss.examples, time.perf_counter() - started


def load(name: str) -> dict[str, int]:
    """Sizes of the batches."""
    return {key: dp_training.LOADS[name][key] for key in ("logical", "micro_batch", "target")}
