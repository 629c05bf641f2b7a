"""Private decoding on a GPU at the shapes of Gemma 2 2B, against the bytes it must move.

    python benchmarks/gpu_decoding.py --out results.json       [--tiny] runs anywhere, in seconds

Weights are random: speed does not depend on them. One batch of s prompts is read once; then every
aggregation decodes the same number of tokens, captured as CUDA graphs and not. A step is a pass of
the model over s rows (and over the public prompt, where the aggregation compares with one), the
aggregation on the device, and the transfer of one token to the host. The floor is weights, keys,
values and logits over the measured bandwidth of a plain copy. Needs PyTorch, transformers, NumPy;
without OpenDP the public-token test draws its noise from NumPy, which costs about the same.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpsynth_assets.models.decoding import PackedContexts
from dpsynth_assets.privacy import sparse_vector
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism
from dpsynth_assets.privacy.median import MedianTokenMechanism
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest, draw_public_tokens
from dpsynth_assets.privacy.token_meter import PrivateTokenMeter
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism
from dpsynth_assets.privacy.units import NeighboringRelation

GEMMA_2_2B = {
    "vocab_size": 256_000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
}
TINY = GEMMA_2_2B | {
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
}
LOGIT_SPREAD = 3.0  # standard deviation of logits over tokens, as a trained model's
RELATION = NeighboringRelation.ADD_REMOVE
ONE_BATCH = np.zeros(1, dtype=np.int64)

Selector = Callable[[torch.Tensor, torch.Tensor | None], int]


def main() -> None:
    arguments = parse()
    started = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    results = {"machine": machine(device), "settings": vars(arguments), "variants": []}
    results["noise"] = noise_source()
    results["copy_gb_per_s"] = round(copy_bandwidth(device) / 1e9, 1)
    show(results)
    model, seconds = timed(lambda: random_model(arguments, device), device)
    results["weights_gb"] = round(weight_bytes(model) / 1e9, 3)
    show({"weights_gb": results["weights_gb"], "seconds_to_build": round(seconds, 1)})
    for captured in (True, False):
        if captured and device.type != "cuda":
            continue
        try:
            results["variants"] += measure_all(model, arguments, captured, started, results)
        except Exception as error:  # noqa: BLE001 - the other setting may still run
            results["variants"].append(failure("contexts", captured, error))
            show(results["variants"][-1])
        release(device)
    table(results["variants"])
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(results, indent=1, default=str) + "\n")


def measure_all(model, arguments, captured: bool, started: float, results: dict) -> list[dict]:
    """Measures every aggregation on the same cached prompts."""
    contexts, seconds = timed(lambda: private_contexts(model, arguments, captured), model.device)
    public = public_contexts(model, arguments, captured)
    rows = arguments.contexts
    prefill = rows * arguments.prompt / seconds
    show({"cuda_graphs": captured, "prefill_s": round(seconds, 2), "prompt_tokens_per_s": prefill})
    measured = []
    for name, (make, compares) in AGGREGATIONS.items():
        if time.monotonic() - started > arguments.seconds:
            measured.append({"name": name, "cuda_graphs": captured, "error": "out of time"})
            continue
        try:
            timings = decode(contexts, public if compares else None, make(arguments), arguments)
            floor = floor_ms(model, arguments, results["copy_gb_per_s"])
            measured.append(
                {"name": name, "cuda_graphs": captured, **summary(timings, floor, arguments)}
            )
            measured[-1]["graphs_refused"] = getattr(contexts._passes, "refused", None)
            measured[-1]["prefill_s"] = round(seconds, 2)
        except Exception as error:  # noqa: BLE001 - one failure must not cost the rest
            measured.append(failure(name, captured, error))
        show(measured[-1])
    return measured


def decode(contexts, public, select: Selector, arguments) -> dict[str, list[float]]:
    """Decodes one document; returns milliseconds of each part of each step."""
    device = contexts._device
    rows = torch.zeros(len(contexts), dtype=torch.long)
    one = torch.zeros(1, dtype=torch.long)
    parts: dict[str, list[float]] = {"pass": [], "public": [], "choice": [], "step": []}
    token = 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for step in range(arguments.tokens + arguments.warm_up):
        marks = [mark(device)]
        begun = time.perf_counter()
        written = min(step, arguments.tokens - 1)
        logits = contexts.next_logits(rows + token, rows + written)
        marks.append(mark(device))
        compared = None if public is None else public.next_logits(one + token, one + written)
        marks.append(mark(device))
        token = select(logits, compared)
        marks.append(mark(device))
        if device.type == "cuda":
            torch.cuda.synchronize()
        ended = time.perf_counter()
        if step >= arguments.warm_up:
            for name, first, last in (("pass", 0, 1), ("public", 1, 2), ("choice", 2, 3)):
                parts[name].append(elapsed_ms(marks[first], marks[last]))
            parts["step"].append(1e3 * (ended - begun))
    return parts


def summary(parts: dict[str, list[float]], floor: float, arguments) -> dict:
    """Medians over steps; `share` is the aggregation's part of the model's passes."""
    median = {name: statistics.median(values) for name, values in parts.items()}
    passes = median["pass"] + median["public"]
    report = {f"{name}_ms": round(value, 3) for name, value in median.items()}
    report["choice_share_of_passes"] = round(median["choice"] / passes, 4)
    report["choice_share_of_step"] = round(median["choice"] / median["step"], 4)
    report["tokens_per_s"] = round(1e3 / median["step"], 2)
    report["row_tokens_per_s"] = round(1e3 * arguments.contexts / median["step"], 1)
    report["floor_ms"] = round(floor, 3)
    report["step_over_floor"] = round(median["step"] / floor, 3)
    report["pass_over_floor"] = round(median["pass"] / floor, 3)
    if torch.cuda.is_available():
        report["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        report["reserved_gib"] = round(torch.cuda.memory_reserved() / 2**30, 2)
    return report


def floor_ms(model, arguments, copy_gb_per_s: float) -> float:
    """Bytes that one step over s rows cannot avoid, over the bandwidth of a copy."""
    config = model.config
    context = arguments.prompt + arguments.tokens / 2
    entry = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    cached = arguments.contexts * context * entry * model.dtype.itemsize
    logits = 2 * arguments.contexts * config.vocab_size * 4  # written once, read once
    return 1e3 * (weight_bytes(model) + cached + logits) / (1e9 * copy_gb_per_s)


# --- aggregations ---------------------------------------------------------------------------------


def settings(arguments) -> dict[str, Any]:
    return {
        "batch": BatchTerms(expected_batch_size=arguments.contexts, relation=RELATION),
        "temperature": 1.5,
    }


def inputs(arguments) -> tuple[torch.Tensor, PrivateTokenMeter]:
    steps = arguments.tokens + arguments.warm_up
    return torch.zeros(arguments.contexts, dtype=torch.long), PrivateTokenMeter(steps, 1)


def nothing(arguments) -> Selector:
    """The passes alone: the next token is always the same."""
    del arguments
    return lambda _, __: 3


def mean(arguments) -> Selector:
    mechanism = MeanTokenMechanism(clip_bound=arguments.clip, **settings(arguments))
    owner, meter = inputs(arguments)
    return lambda logits, _: int(mechanism.select(logits, owner, ONE_BATCH, meter)[0])


def median(arguments) -> Selector:
    mechanism = MedianTokenMechanism(clip_bound=arguments.clip, temperature=1.5, relation=RELATION)
    owner, meter = inputs(arguments)
    return lambda logits, _: int(mechanism.select(logits, owner, ONE_BATCH, meter)[0][0])


def public_test(arguments) -> Selector:
    """The public-token test, the public draw and, every time, the private draw as well."""
    mechanism = MeanTokenMechanism(clip_bound=arguments.clip, **settings(arguments))
    owner, meter = inputs(arguments)
    test = PublicTokenTest(
        batch=settings(arguments)["batch"], noise_scale=0.2, threshold=-2.0
    ).open(meter)

    def select(logits: torch.Tensor, public: torch.Tensor | None) -> int:
        private = test.needs_private_token(logits, public, owner, ONE_BATCH)
        token = draw_public_tokens(public, 1.5)
        if private.any():
            token = mechanism.select(logits, owner, ONE_BATCH, meter)
        return int(token[0])

    return select


def differences(arguments) -> Selector:
    mechanism = DifferenceTokenMechanism(clip_bound=1.0, top_k=100, **settings(arguments))
    owner, meter = inputs(arguments)
    return lambda logits, public: int(mechanism.select(logits, public, owner, ONE_BATCH, meter)[0])


AGGREGATIONS: dict[str, tuple[Callable[[Any], Selector], bool]] = {
    "passes alone": (nothing, False),
    "mean": (mean, False),
    "median": (median, False),
    "public-token test": (public_test, True),
    "difference clipping": (differences, True),
}
"""Maker of the selector, and whether it compares with a public prompt."""


# --- model and contexts ---------------------------------------------------------------------------


def random_model(arguments, device: torch.device):
    from transformers import AutoModelForCausalLM, Gemma2Config

    torch.manual_seed(0)
    config = Gemma2Config(**(TINY if arguments.tiny else GEMMA_2_2B))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model = model.to(device).eval()
    with torch.no_grad():
        model.lm_head.weight.normal_(0, LOGIT_SPREAD / config.hidden_size**0.5)
    return model


def private_contexts(model, arguments, captured: bool) -> PackedContexts:
    draw = np.random.default_rng(0)
    size = (arguments.contexts, arguments.prompt)
    return contexts_of(model, draw.integers(3, 2000, size).tolist(), arguments, captured)


def public_contexts(model, arguments, captured: bool) -> PackedContexts:
    return contexts_of(model, [list(range(3, 43))], arguments, captured)


def contexts_of(model, prompts: list[list[int]], arguments, captured: bool) -> PackedContexts:
    return PackedContexts(
        model,
        prompts,
        prompt_columns=max(map(len, prompts)),
        max_new_tokens=arguments.tokens,
        pad_token_id=0,
        cuda_graphs=captured,
    )


def weight_bytes(model) -> int:
    """Bytes of all distinct weights: the input embedding is the output layer's."""
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


# --- measuring ------------------------------------------------------------------------------------


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second, read and written, of a plain copy."""
    size = (1 << 31) if device.type == "cuda" else (1 << 26)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    seconds = min(timed(lambda: target.copy_(source), device)[1] for _ in range(8))
    return 2 * size / seconds


def timed(function: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    synchronize(device)
    begun = time.perf_counter()
    result = function()
    synchronize(device)
    return result, time.perf_counter() - begun


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def mark(device: torch.device) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def elapsed_ms(first: Any, last: Any) -> float:
    return 1e3 * (last - first) if isinstance(first, float) else first.elapsed_time(last)


def noise_source() -> str:
    """OpenDP where it is installed; NumPy otherwise, for timing only."""
    try:
        import opendp  # noqa: F401
    except ImportError:
        draw = np.random.default_rng()
        sparse_vector.discrete_laplace = lambda values, scale: [
            value + round(draw.laplace(0.0, scale)) for value in values
        ]
        return "numpy"
    return "opendp"


def machine(device: torch.device) -> dict[str, str]:
    import transformers

    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    return {"device": name, "torch": torch.__version__, "transformers": transformers.__version__}


def release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def failure(name: str, captured: bool, error: Exception) -> dict:
    message = f"{type(error).__name__}: {str(error)[:300]}"
    return {"name": name, "cuda_graphs": captured, "error": message}


def show(values: dict) -> None:
    print(json.dumps(values, default=str), flush=True)


def table(variants: list[dict]) -> None:
    print(f"{'':22s}graphs   ms/step  tokens/s  pass ms  public  choice  share  step/floor   GiB")
    for row in variants:
        head = f"{row['name']:22s}{'yes' if row['cuda_graphs'] else 'no':6s}"
        if "error" in row:
            print(f"{head} {row['error'][:90]}")
            continue
        print(
            f"{head}{row['step_ms']:10.2f}{row['tokens_per_s']:10.1f}{row['pass_ms']:9.2f}"
            f"{row['public_ms']:8.2f}{row['choice_ms']:8.2f}"
            f"{row['choice_share_of_passes']:7.1%}{row['step_over_floor']:12.2f}"
            f"{row.get('peak_gib', float('nan')):6.1f}"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a small model, for a smoke test")
    parser.add_argument("--contexts", type=int, default=256, help="s, rows of the batch")
    parser.add_argument("--prompt", type=int, default=500, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=40, help="measured steps")
    parser.add_argument("--warm-up", type=int, default=4, help="steps before measuring")
    parser.add_argument("--clip", type=float, default=10.0, help="bound on clipped logits")
    parser.add_argument("--seconds", type=float, default=180.0, help="start nothing after this")
    parser.add_argument("--out", default="", help="file of the results, JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
