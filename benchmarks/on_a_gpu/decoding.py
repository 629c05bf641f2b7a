"""Private prediction at the papers' scale: s = 256 contexts of 500 tokens, Gemma 2 2B's shape.

A step stands beside a floor: bytes that it cannot avoid (weights, cache, logits once written and
once read) over the bandwidth of a plain copy.
"""

import time
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np

from benchmarks import decoding
from benchmarks.on_a_gpu.parts import Tell


def measure(device: str, tell: Tell, *, tiny: bool) -> None:
    """Seconds of reading and of a step for each mechanism, and the peak of memory."""
    import torch

    asked = settings(tiny=tiny)
    model = decoding.load_model(asked, logit_spread=3.0)
    prompts = decoding.random_prompts(asked, model.config.vocab_size)
    tell(parameters=model.num_parameters(), dtype=str(model.dtype), rows=asked.contexts)
    bandwidth = None if device == "cpu" else decoding.copy_bandwidth(model.device)
    if bandwidth is not None:
        torch.cuda.empty_cache()
    decoding.reset_peak(model.device)
    tell(**memory(model, prompts[0], asked))
    tell(**reading(model, prompts[0], asked))
    for name, make, compares, agree in decoding.CHOICES:
        if name == "median, agreeing rows" or (
            name == "public-token test" and not find_spec("opendp")
        ):
            continue  # the test's noise is OpenDP's
        steps = decoding.choice_times(model, prompts, asked, make, compares, agree)
        choice, passes = np.median(steps, axis=0)
        found = {"mechanism": name, "choice_ms": 1e3 * choice, "passes_ms": 1e3 * passes}
        if bandwidth is not None:
            bound = decoding.floor_bytes(model, asked) / bandwidth
            found |= {"bound_ms": 1e3 * bound, "of_bound": (choice + passes) / bound}
        found["context_tokens_a_second"] = asked.contexts / (choice + passes)
        tell(**found)
    tell(peak_bytes=decoding.peak_bytes(model.device))
    if device != "cpu":
        tell(kernels_ms_a_step=longest_kernels(model, prompts[0], asked))


def reading(model, prompts, asked: SimpleNamespace) -> dict[str, float]:
    """Seconds of reading all prompts, and tokens a second."""
    begun = decoding.now()[0]
    contexts = decoding.TransformersDecoder(model).open(
        prompts, prompt_columns=asked.prompt, max_new_tokens=asked.tokens
    )
    seconds = decoding.now()[0] - begun
    del contexts
    return {"reading_s": seconds, "read_tokens_a_second": sum(map(len, prompts)) / seconds}


def longest_kernels(model, prompts, asked: SimpleNamespace) -> dict[str, float]:
    """Milliseconds a step of the ten kernels that take longest, passes alone."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    contexts = decoding.TransformersDecoder(model).open(
        prompts, prompt_columns=asked.prompt, max_new_tokens=asked.tokens
    )
    tokens = torch.full((len(prompts),), 5)
    for step in range(2):
        contexts.next_logits(tokens, torch.full_like(tokens, step))
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for step in range(2, 6):
            contexts.next_logits(tokens, torch.full_like(tokens, step))
        torch.cuda.synchronize()
    found = sorted(profiled.key_averages(), key=lambda each: -each.self_device_time_total)
    return {each.key[:60]: each.self_device_time_total / 4000 for each in found[:10]}


def memory(model, prompts, asked: SimpleNamespace) -> dict[str, int]:
    """What contexts and three steps take beside the weights, and what the plan says of it."""
    import torch

    from dpsynth_assets.models.transformers_decoder.memory import peak_bytes

    device = model.device
    if device.type == "cuda":
        torch.cuda.empty_cache()
    decoding.reset_peak(device)
    before = decoding.peak_bytes(device)
    contexts = decoding.TransformersDecoder(model).open(
        prompts, prompt_columns=asked.prompt, max_new_tokens=asked.tokens
    )
    tokens = torch.full((len(prompts),), 5)
    for step in range(3):
        contexts.next_logits(tokens, torch.full_like(tokens, step))
    sizes = (model.config, len(prompts), asked.prompt, asked.tokens, model.dtype)
    found = {
        "taken_bytes": decoding.peak_bytes(device) - before,
        "predicted_bytes": peak_bytes(*sizes, device_type=device.type),
    }
    if device.type == "cuda":
        found["reserved_bytes"] = torch.cuda.max_memory_reserved() - before
    return found


def settings(*, tiny: bool) -> SimpleNamespace:
    """Arguments of benchmarks/decoding.py."""
    shape, contexts, prompt, tokens = (
        ("gemma-tiny", 4, 12, 4) if tiny else ("gemma-2-2b", 256, 500, 32)
    )
    return SimpleNamespace(
        model="", shape=shape, batches=1, contexts=contexts, prompt=prompt, tokens=tokens,
        threads=2, started=time.monotonic(),
    )  # fmt: skip
