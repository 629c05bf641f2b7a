"""Private decoding beside plain sampling: the same rows, lengths, model and cache in one run.

    python benchmarks/decoding.py [--model FOLDER] [--batches 8] [--contexts 64] [--tokens 64]

Both sides decode the same contexts for the same number of steps from a filled prompt cache. The
private side runs the product's loop: mean of clipped logits, token meter, operating-system
randomness, one token a batch. The plain side draws one token a row from softmax and does nothing
else. Repetitions alternate; medians are compared. The second table sets the stated peak memory of
one private step against the measured peak.
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from dpsynth_assets.methods.private_prediction.loop import (
    Draws,
    GenerationRules,
    generate_documents,
)
from dpsynth_assets.models.decoding import PackedContexts, SamplingRules
from dpsynth_assets.models.decoding.sampling import draw_tokens
from dpsynth_assets.privacy.token_meter import PrivateTokenMeter
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism
from dpsynth_assets.privacy.units import NeighboringRelation

NO_END = -1  # no token ends a document: both sides decode exactly --tokens steps


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    model = load_model(arguments)
    prompts = random_prompts(arguments, model.config.vocab_size)
    private, plain = [], []
    for repetition in range(arguments.repetitions + 1):
        pair = (
            decode_privately(model, prompts, arguments),
            decode_plainly(model, prompts, arguments),
        )
        if repetition:  # the first pair warms up
            private.append(pair[0])
            plain.append(pair[1])
    report_speed(arguments, np.array(private), np.array(plain))
    report_memory(arguments, model.device)


def decode_privately(model, prompts, arguments) -> tuple[float, float]:
    """Returns wall and processor seconds a step, from the first token's end to the last's."""
    mechanism = mean_mechanism(arguments)
    meter = PrivateTokenMeter(arguments.tokens, arguments.batches)
    rules = GenerationRules(
        tokens_per_batch=arguments.tokens,
        max_document_tokens=arguments.tokens,
        min_tokens_for_new_document=1,
        end_token_id=NO_END,
        pad_token_id=0,
        prompt_columns=arguments.prompt,
    )
    ticks = []
    generate_documents(
        model,
        prompts,
        lambda logits, rows, active, _: Draws.all_private(
            mechanism.select(logits, rows, active, meter)
        ),
        rules,
        on_step=lambda *_: ticks.append(now()),
    )
    return per_step(ticks)


def decode_plainly(model, prompts, arguments) -> tuple[float, float]:
    """Returns the same for one independent draw a row."""
    flat = [prompt for batch in prompts for prompt in batch]
    contexts = PackedContexts(
        model,
        flat,
        prompt_columns=arguments.prompt,
        max_new_tokens=arguments.tokens,
        pad_token_id=0,
    )
    generator = torch.Generator(device=model.device).manual_seed(0)
    rules = SamplingRules()
    tokens = torch.zeros(len(flat), dtype=torch.long)
    ticks = []
    for step in range(arguments.tokens):
        logits = contexts.next_logits(tokens, torch.full_like(tokens, step))
        tokens = draw_tokens(logits, rules, generator).cpu()
        ticks.append(now())
    return per_step(ticks)


def report_speed(arguments, private: np.ndarray, plain: np.ndarray) -> None:
    rows = arguments.batches * arguments.contexts
    print(
        f"{rows} rows ({arguments.batches} batches x {arguments.contexts} contexts), "
        f"{arguments.prompt} prompt columns, {arguments.tokens} tokens, "
        f"{arguments.threads} threads, median of {arguments.repetitions}"
    )
    for name, times in (("plain sampling", plain), ("private mean", private)):
        wall, cpu = np.median(times, axis=0)
        speed = f"{1e3 * wall:7.2f} ms/step {1e3 * cpu:7.2f} cpu-ms {rows / wall:8.0f} row-steps/s"
        print(f"{name:16s}{speed}")
    wall, cpu = (statistics.median((private / plain)[:, i]) for i in (0, 1))
    print(f"private / plain  {wall:.3f} wall, {cpu:.3f} processor (goal: at most 1.15)")


def report_memory(arguments, device: torch.device) -> None:
    """Peak of one selection over a large vocabulary, measured against what is stated."""
    rows, vocabulary = arguments.batches * arguments.contexts, arguments.vocabulary
    mechanism = mean_mechanism(arguments)
    logits_bytes = 4 * rows * vocabulary
    stated = logits_bytes + mechanism.peak_extra_bytes(rows, vocabulary, arguments.batches)
    reset_peak(device)
    before = peak_bytes(device)
    logits = torch.randn(rows, vocabulary, device=device)
    batch_of_row = torch.arange(rows, device=device) // arguments.contexts
    meter = PrivateTokenMeter(1, arguments.batches)
    mechanism.select(logits, batch_of_row, np.arange(arguments.batches), meter)
    measured = peak_bytes(device) - before
    print(
        f"peak of one step at V={vocabulary}: logits {logits_bytes / 2**20:.0f} MiB (4 R V bytes), "
        f"stated in all {stated / 2**20:.0f} MiB, measured {measured / 2**20:.0f} MiB"
    )


def mean_mechanism(arguments) -> MeanTokenMechanism:
    return MeanTokenMechanism(
        clip_bound=6.0,
        temperature=1.0,
        expected_batch_size=arguments.contexts,
        relation=NeighboringRelation.ADD_REMOVE,
    )


def load_model(arguments):
    from transformers import AutoModelForCausalLM, LlamaConfig

    if arguments.model:
        return AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def random_prompts(arguments, vocabulary: int) -> list[list[list[int]]]:
    draw = np.random.default_rng(0)
    lengths = draw.integers(
        arguments.prompt // 2, arguments.prompt + 1, (arguments.batches, arguments.contexts)
    )
    return [[draw.integers(3, vocabulary, n).tolist() for n in batch] for batch in lengths]


def now() -> tuple[float, float]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def per_step(ticks: list[tuple[float, float]]) -> tuple[float, float]:
    first, last = ticks[0], ticks[-1]
    return tuple((end - start) / (len(ticks) - 1) for start, end in zip(first, last, strict=True))


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="", help="folder of a causal language model")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--contexts", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--vocabulary", type=int, default=65536, help="of the memory table")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
