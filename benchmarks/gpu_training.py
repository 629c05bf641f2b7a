"""DP-Adam beside plain AdamW on a GPU: BART-base, logical batch 4096, sequences of 512 tokens.

    python benchmarks/gpu_training.py [--out FILE] [--micro-batch 32] [--seconds 220] [--tiny]

Random weights and random tokens; both sides run the product's own loop (`fine_tune`,
`fine_tune_privately`) with the same model, examples, micro-batches and optimizer, for one logical
step or a few. A variant that would not fit into the time left gets a smaller logical batch, which
its line says. Peak memory is what the allocator handed out at most during the step. One JSON
document is printed and written to --out. `--tiny` is a smoke run on a processor.
"""

import argparse
import json
import platform
import time
import traceback
from pathlib import Path

import numpy as np
import torch
from transformers import BartConfig, BartForConditionalGeneration

from dpsynth_assets.models.fine_tuning import (
    FineTuningSettings,
    PlainSampling,
    SequenceToSequenceLoss,
    TokenExample,
    fine_tune,
    fine_tune_privately,
)
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.noise import gaussian_like
from dpsynth_assets.privacy.per_example import (
    GRADIENT_SLACK,
    LossOfPart,
    PerExampleGradients,
    Products,
    most_in_company,
)
from dpsynth_assets.privacy.units import NeighboringRelation

VARIANTS = {
    "plain bfloat16": {"private": False, "autocast": True},
    "DP-Adam bfloat16": {"private": True, "autocast": True},
    "plain float32": {"private": False, "autocast": False},
    "DP-Adam float32": {"private": True, "autocast": False},
    "DP-Adam float32, float64 sums": {
        "private": True,
        "autocast": False,
        "products": Products.FLOAT64,
    },
}
LOSS = SequenceToSequenceLoss(pad_token_id=1, start_token_id=2)
CLIP_BOUND = 1.0


class CountedLoss:
    """The loss, counting the examples it is asked for."""

    def __init__(self) -> None:
        self.examples = 0

    def __call__(self, model, examples):
        """Counts and passes on."""
        self.examples += len(examples)
        return LOSS(model, examples)

    def length(self, example) -> int:
        """As the loss."""
        return LOSS.length(example)


def main() -> None:
    arguments = parse()
    deadline = time.monotonic() + arguments.seconds
    report = {"machine": machine(arguments), "arguments": vars(arguments) | {"out": None}}
    report["agreement"] = attempt(agreement, arguments.device)
    report["noise"] = attempt(noise_speed)
    report["variants"] = {}
    chosen = [name for name in VARIANTS if not arguments.only or name in arguments.only]
    for done, name in enumerate(chosen):
        left = (deadline - time.monotonic()) / (len(chosen) - done)
        found = attempt(measure, arguments, VARIANTS[name], left)
        report["variants"][name] = found
        print(f"{name}: {json.dumps(found)}", flush=True)
        write(arguments, report)
    report["ratios"] = ratios(report["variants"])
    write(arguments, report)
    print(json.dumps(report, indent=2))


def attempt(function, *arguments) -> dict:
    """Runs one part; an error is its result, and the other parts go on."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001  a benchmark reports what failed
        lines = traceback.format_exc().strip().splitlines()
        return {"error": f"{type(error).__name__}: {str(error)[:300]}", "where": lines[-8:]}
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def measure(arguments, variant: dict, seconds: float) -> dict:
    """Warms up with one micro-batch, sets the logical batch by it, and times whole steps."""
    torch.manual_seed(0)
    model = new_model(arguments).to(arguments.device)
    rows = min(arguments.logical, max(64, 8 * arguments.micro_batch))
    step_seconds(arguments, model, variant, arguments.micro_batch, steps=1)  # allocator, kernels
    trial, count, _ = step_seconds(arguments, model, variant, rows, steps=1)
    extra = step_seconds(arguments, model, variant, 1, steps=1)[0]  # noise and optimizer alone
    a_row = max(trial - extra, 1e-6) / max(1, count)
    affordable = int((0.6 * seconds - extra) / a_row)
    logical = max(rows, min(arguments.logical, affordable))
    wall, examples, peak = step_seconds(arguments, model, variant, logical, arguments.steps)
    return {
        "logical_batch": logical,
        "steps": arguments.steps,
        "examples": examples,
        "seconds": round(wall, 3),
        "examples_per_second": round(examples / wall, 2),
        "tokens_per_second": round(examples * (arguments.source + arguments.target) / wall),
        "peak_gib": None if peak is None else round(peak / 2**30, 3),
        "step_of_one_example_seconds": round(extra, 3),
        "parameters": sum(each.numel() for each in model.parameters()),
    }


def step_seconds(arguments, model, variant, logical, steps) -> tuple[float, int, int | None]:
    """Returns seconds and examples of `steps` logical steps, and peak bytes of the device."""
    loss = CountedLoss()
    settings = FineTuningSettings(
        learning_rate=1e-5,
        micro_batch=arguments.micro_batch,
        autocast=variant["autocast"],
        products=variant.get("products", Products.NATIVE),
    )
    examples = random_examples(arguments, 2 * logical)
    synchronize(arguments.device)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    if variant["private"]:
        fine_tune_privately(model, examples, loss, mechanism(logical, steps), settings)
    else:
        sampling = PlainSampling(steps=steps, batch_size=logical)
        fine_tune(model, examples, loss, sampling, settings)
    synchronize(arguments.device)
    wall = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    return wall, loss.examples, peak


def mechanism(logical: int, steps: int) -> DpSgdMechanism:
    return DpSgdMechanism(
        l2_bound=CLIP_BOUND,
        noise_multiplier=1.0,
        sampling_probability=0.5,
        steps=steps,
        expected_batch_size=logical,
        relation=NeighboringRelation.ADD_REMOVE,
        most_in_company=most_in_company(logical, GRADIENT_SLACK),
        gradient_slack=GRADIENT_SLACK,  # Speed alone is measured: bfloat16 needs far more.
    )


def random_examples(arguments, count: int) -> list[TokenExample]:
    generator = np.random.default_rng(0)
    tokens = generator.integers(3, arguments.vocabulary, (count, arguments.source))
    targets = generator.integers(3, arguments.vocabulary, (count, arguments.target))
    return [TokenExample(*pair) for pair in zip(tokens, targets.tolist(), strict=True)]


def new_model(arguments) -> BartForConditionalGeneration:
    """BART-base's shape, or a tiny one."""
    width, layers, heads = (64, 2, 2) if arguments.tiny else (768, 6, 12)
    config = BartConfig(
        vocab_size=arguments.vocabulary,
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        max_position_embeddings=1024,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
    )
    return BartForConditionalGeneration(config)


def agreement(device: str) -> dict:
    """Largest error of a clipped sum on this device against micro-batches of one on a processor.

    Relative to the norm of the sum; the clip margin itself is about 0.008 in native arithmetic.
    """
    small = argparse.Namespace(tiny=True, vocabulary=512, source=12, target=20)
    torch.manual_seed(0)
    model, examples = new_model(small).double().eval(), random_examples(small, 8)
    expected, norms = one_by_one(model, examples)
    found = {"norms": [round(each, 3) for each in norms[:3]]}
    model = model.float().to(device)
    for name, variant in VARIANTS.items():
        if variant["private"]:
            products = variant.get("products", Products.NATIVE)
            found[name] = sum_error(model, examples, expected, products, variant["autocast"])
    return found


def one_by_one(model, examples) -> tuple[torch.Tensor, list[float]]:
    """The clipped sum and norms by autograd, one example at a time, in float64."""
    total, norms = 0.0, []
    for example in examples:
        model.zero_grad()
        LOSS(model, [example]).sum().backward()
        flat = torch.cat([each.grad.flatten() for each in model.parameters()])
        norms.append(float(flat.norm()))
        total = total + flat * min(1.0, CLIP_BOUND / norms[-1])
    model.zero_grad()
    return total, norms


def sum_error(model, examples, expected, products, autocast: bool) -> float:
    device = next(model.parameters()).device.type

    def losses(model):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            return LOSS(model, examples)

    clipper = PerExampleGradients(model, products)
    parts = [LossOfPart(len(examples), losses)]
    sums, _ = clipper.private_clipped_sums(parts, CLIP_BOUND)
    flat = torch.cat([each.flatten() for each in sums]).cpu()
    return float((flat - expected).norm() / expected.norm())


def noise_speed() -> dict:
    numbers = torch.empty(1 << 21, dtype=torch.float64)
    start = time.perf_counter()
    gaussian_like(numbers, 1.0)
    elapsed = time.perf_counter() - start
    return {"nanoseconds_a_number": round(1e9 * elapsed / numbers.numel(), 1)}


def ratios(variants: dict) -> dict:
    """Private over plain, for the goals: at least 0.6 in speed, at most 1.3 in peak memory."""
    found = {}
    for name, result in variants.items():
        plain = variants.get("plain bfloat16" if "bfloat16" in name else "plain float32", {})
        if not name.startswith("DP-Adam") or "error" in result or "error" in plain or not plain:
            continue
        speed = result["examples_per_second"] / plain["examples_per_second"]
        found[name] = {"speed": round(speed, 3)}
        if result["peak_gib"] and plain["peak_gib"]:
            found[name]["peak_memory"] = round(result["peak_gib"] / plain["peak_gib"], 3)
    return found


def machine(arguments) -> dict:
    found = {"python": platform.python_version(), "torch": torch.__version__}
    if arguments.device == "cuda":
        found["device"] = torch.cuda.get_device_name()
    return found | {"threads": torch.get_num_threads()}


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def write(arguments, report: dict) -> None:
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--logical", type=int, default=4096)
    parser.add_argument("--micro-batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1, help="timed logical steps")
    parser.add_argument("--source", type=int, default=64, help="tokens of the condition")
    parser.add_argument("--target", type=int, default=512, help="tokens to learn")
    parser.add_argument("--vocabulary", type=int, default=50265)
    parser.add_argument("--seconds", type=float, default=220.0, help="for everything")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="*", default=[], choices=list(VARIANTS))
    parser.add_argument("--tiny", action="store_true", help="smoke run on a processor")
    arguments = parser.parse_args()
    if arguments.tiny:
        tiny = {"logical": 16, "micro_batch": 4, "source": 8, "target": 24, "vocabulary": 512}
        arguments = argparse.Namespace(**(vars(arguments) | tiny))
        arguments.seconds = min(arguments.seconds, 60.0)
    return arguments


if __name__ == "__main__":
    main()
