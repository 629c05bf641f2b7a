"""Private decoding beside plain sampling: the same rows, lengths, model and cache in one run.

    python benchmarks/decoding.py [--parts choices] [--width 128] [--layers 4] [--threads 2]
    python benchmarks/decoding.py --parts choices --shape gemma-2-2b --batches 1 --contexts 256 \
        --prompt 500 --tokens 40                                     # one CUDA device

Both sides decode the same contexts for the same number of steps from a filled prompt cache. The
private side runs the product's loop: mean of clipped logits, token meter, operating-system
randomness, one token a batch. The plain side draws one token a row from softmax and does nothing
else. Repetitions alternate; medians are compared. The next table says for every way of choosing
tokens what the choice costs beside the rest of a step, in processor time, with logits as spread out
as a trained model's: the contexts of a batch disagree as independent ones do, which leaves the
median nearly all columns to sort, or agree on which fifth of the vocabulary is likely. The last
line reads prompts of which a public part is shared. The first line sets the stated peak memory of
one private step against the measured peak. On a GPU times are of the clock and passes are CUDA
graphs; a step stands beside a floor: the bytes that it cannot avoid (weights in bfloat16, cache,
logits once written and once read) over the bandwidth of a plain copy.
"""

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dpsynth_assets.methods.private_prediction.aggregates import MeanTokens, TokensBehindTest
from dpsynth_assets.methods.private_prediction.loop import (
    Draws,
    GenerationRules,
    TokenSelector,
    generate_documents,
)
from dpsynth_assets.models.decoding.token_draws import draw_tokens
from dpsynth_assets.models.engines.protocol import Sampling
from dpsynth_assets.models.transformers_decoder.decoder import TransformersDecoder
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.median import MedianTokenMechanism
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism, NextLogits, PrivateTokenMeter

NO_END = -1  # no token ends a document: both sides decode exactly --tokens steps


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    for part in PARTS:  # memory first: later it would reuse what others freed
        if part in arguments.parts:
            PARTS[part](arguments)


def report_speed(arguments) -> None:
    """Decodes privately and plainly by turns."""
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
    print_speed(arguments, np.array(private), np.array(plain))


def decode_privately(model, prompts, arguments) -> tuple[float, float]:
    """Returns wall and processor seconds a step, from the first token's end to the last's."""
    ticks = []
    generate_documents(
        TransformersDecoder(model),
        prompts,
        mean_selector(arguments),
        loop_rules(arguments),
        on_step=lambda *_: ticks.append(now()),
    )
    return per_step(ticks)


def loop_rules(arguments) -> GenerationRules:
    return GenerationRules(
        tokens_per_batch=arguments.tokens,
        max_document_tokens=arguments.tokens,
        min_tokens_for_new_document=1,
        end_token_id=NO_END,
        pad_token_id=0,
        prompt_columns=arguments.prompt,
        max_tokens_per_batch=arguments.tokens,
    )


def decode_plainly(model, prompts, arguments) -> tuple[float, float]:
    """Returns the same for one independent draw a row."""
    flat = [prompt for batch in prompts for prompt in batch]
    contexts = TransformersDecoder(model).open(
        flat, prompt_columns=arguments.prompt, max_new_tokens=arguments.tokens
    )
    generator = torch.Generator(device=model.device).manual_seed(0)
    rules = Sampling()
    tokens = torch.zeros(len(flat), dtype=torch.long)
    ticks = []
    for step in range(arguments.tokens):
        logits = contexts.next_logits(tokens, torch.full_like(tokens, step))
        uniform = torch.rand(len(logits), generator=generator, device=model.device)
        tokens = draw_tokens(logits, uniform, rules).cpu()
        ticks.append(now())
    return per_step(ticks)


def print_speed(arguments, private: np.ndarray, plain: np.ndarray) -> None:
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


def report_choices(arguments) -> None:
    """What choosing tokens costs, as a share of the rest of the step: the model's passes."""
    vocabulary = arguments.choice_vocabulary
    model = load_model(arguments, vocabulary, logit_spread=3.0)
    prompts = random_prompts(arguments, model.config.vocab_size)
    print(
        f"choice of tokens, {arguments.batches} x {arguments.contexts} contexts, "
        f"V={model.config.vocab_size}, {model.config.num_hidden_layers} layers "
        f"{model.config.hidden_size} wide, {arguments.threads} threads:"
    )
    for name, make, compares, agree in CHOICES:
        steps = [
            choice_times(model, prompts, arguments, make, compares, agree)
            for _ in range(arguments.choice_repetitions)
        ]
        choice, rest = np.median(np.concatenate(steps), axis=0)
        print(
            f"  {name:24s}{1e3 * choice:7.2f} ms a step, {1e3 * rest:7.2f} for the passes: "
            f"{choice / rest:.1%}{beside_floor(model, arguments, choice + rest)}"
        )


def beside_floor(model, arguments, seconds: float) -> str:
    """A step beside what its bytes alone take, on a GPU; nothing on a processor."""
    if model.device.type == "cpu":
        return ""
    floor = floor_bytes(model, arguments) / copy_bandwidth(model.device)
    peak = torch.cuda.max_memory_allocated() / 2**30
    return f"; step {seconds / floor:.2f} of its floor, peak {peak:.1f} GiB"


def floor_bytes(model, arguments) -> float:
    """Bytes a step cannot avoid: weights, cache, logits once written and once read."""
    config, rows = model.config, arguments.batches * arguments.contexts
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    entry = 2 * config.num_hidden_layers * config.num_key_value_heads * head
    cached = rows * (arguments.prompt + arguments.tokens / 2) * entry * model.dtype.itemsize
    weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    return weights + cached + 2 * rows * config.vocab_size * 4


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second, read and written, of a plain copy."""
    source = torch.zeros(1 << 31, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(8):
        begun = now()[0]
        target.copy_(source)
        seconds.append(now()[0] - begun)
    return 2 * source.numel() / min(seconds)


def report_prefix(arguments) -> None:
    """Processor seconds of reading prompts whose first three quarters are public and shared."""
    model = load_model(arguments)
    draw = np.random.default_rng(1)
    shared = draw.integers(3, 2000, 3 * arguments.prompt // 4).tolist()
    rest = draw.integers(3, 2000, (arguments.contexts, arguments.prompt - len(shared))).tolist()
    seconds = []
    for prefixes in ([], [shared], [], [shared]):  # the first pair warms up
        begun = now()[1]
        TransformersDecoder(model).open(
            [shared + own for own in rest],
            prompt_columns=arguments.prompt,
            max_new_tokens=1,
            public_prefixes=prefixes,
        )
        seconds.append(now()[1] - begun)
    plain, once = seconds[2:]
    print(
        f"reading {len(rest)} prompts of {arguments.prompt} tokens, {len(shared)} of them shared: "
        f"{1e3 * plain:.0f} cpu-ms, with the shared ones read once {1e3 * once:.0f}: "
        f"{plain / once:.1f}x"
    )


def choice_times(model, prompts, arguments, make, compares: bool, agree: bool) -> np.ndarray:
    """Returns (steps, 2) processor seconds: of the choice, and of the rest of each step."""
    select, arrivals, starts, ends = make(arguments), [], [], []
    unlikely = unlikely_tokens(model) if agree else None

    def timed(logits) -> Draws:
        arrivals.append(busy_seconds())
        if unlikely is not None:
            logits.private.add_(unlikely)
        starts.append(busy_seconds())
        draws = select(logits)
        ends.append(busy_seconds())
        return draws

    public = [[1, 2, 3]] * arguments.batches if compares else None
    generate_documents(
        TransformersDecoder(model), prompts, timed, loop_rules(arguments), public_prompts=public
    )
    arrivals, starts, ends = np.array(arrivals), np.array(starts), np.array(ends)
    return np.stack([(ends - starts)[1:], arrivals[1:] - ends[:-1]], axis=1)


def unlikely_tokens(model) -> torch.Tensor:
    """What makes four fifths of the vocabulary unlikely in every context: (V,) to add to logits."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.rand(model.config.vocab_size, generator=generator) < 0.8
    return torch.where(chosen, -12.0, 0.0).to(model.device)


def report_memory(arguments) -> None:
    """Peak of one selection over a large vocabulary, beside the logits themselves."""
    device = load_model(arguments).device
    rows, vocabulary = arguments.batches * arguments.contexts, arguments.vocabulary
    mechanism = mean_mechanism(arguments)
    logits_bytes = 4 * rows * vocabulary
    reset_peak(device)
    before = peak_bytes(device)
    logits = torch.randn(rows, vocabulary, device=device)
    batch_of_row = torch.arange(rows, device=device) // arguments.contexts
    meter = PrivateTokenMeter(1, arguments.batches)
    mechanism.select(NextLogits(logits, batch_of_row, np.arange(arguments.batches)), meter)
    measured = peak_bytes(device) - before
    print(
        f"peak of one step at V={vocabulary}: logits {logits_bytes / 2**20:.0f} MiB (4 R V bytes), "
        f"measured {measured / 2**20:.0f} MiB"
    )


def batch_terms(arguments) -> BatchTerms:
    return BatchTerms(
        expected_batch_size=arguments.contexts, relation=NeighboringRelation.ADD_REMOVE
    )


def mean_mechanism(arguments) -> MeanTokenMechanism:
    return MeanTokenMechanism(batch=batch_terms(arguments), clip_bound=6.0, temperature=1.0)


def meter_of(arguments) -> PrivateTokenMeter:
    return PrivateTokenMeter(arguments.tokens, arguments.batches)


def drawn_by(mechanism, arguments) -> TokenSelector:
    return MeanTokens(tokens=arguments.tokens, mechanism=mechanism).opened(meter_of(arguments))


def mean_selector(arguments) -> TokenSelector:
    return drawn_by(mean_mechanism(arguments), arguments)


def median_selector(arguments):
    mechanism = MedianTokenMechanism(
        clip_bound=6.0, temperature=1.0, relation=NeighboringRelation.ADD_REMOVE
    )
    meter = meter_of(arguments)
    return lambda logits: Draws.all_private(mechanism.select(logits, meter)[0])


def restricted_selector(arguments) -> TokenSelector:
    return drawn_by(replace(mean_mechanism(arguments), public_top_k=1024), arguments)


def difference_selector(arguments) -> TokenSelector:
    mechanism = DifferenceTokenMechanism(
        batch=batch_terms(arguments), clip_bound=1.0, temperature=1.0, top_k=100
    )
    return drawn_by(mechanism, arguments)


def tested_selector(arguments) -> TokenSelector:
    """The public-token test, the public draw and, where the test says so, the mean's draw."""
    behind_test = TokensBehindTest(
        tokens=arguments.tokens,
        mechanism=mean_mechanism(arguments),
        test=PublicTokenTest(batch=batch_terms(arguments), noise_scale=0.2, threshold=0.5),
        public_temperature=1.5,
    )
    return behind_test.opened(meter_of(arguments))


CHOICES = (
    ("mean", mean_selector, False, False),
    ("mean, public top 1,024", restricted_selector, True, False),
    ("median", median_selector, False, False),
    ("median, agreeing rows", median_selector, False, True),
    ("difference clipping", difference_selector, True, False),
    ("public-token test", tested_selector, True, False),
)
"""Name, maker of the selector, whether it compares with a public prompt, whether contexts agree."""


PARTS = {
    "memory": report_memory,
    "speed": report_speed,
    "choices": report_choices,
    "prefix": report_prefix,
}
"""The parts of the report."""


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
SHAPES = {
    "gemma-2-2b": GEMMA_2_2B,
    "gemma-tiny": GEMMA_2_2B
    | {
        "vocab_size": 2048,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
    },
}
"""Random models of a published shape; the tiny one is for a smoke run on a processor."""


def load_model(arguments, vocabulary: int = 2048, logit_spread: float = 0.2):
    from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig

    if arguments.model:
        return AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if arguments.shape:
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        config = Gemma2Config(**SHAPES[arguments.shape])
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        return spread_out(model.eval(), logit_spread).to(device)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=arguments.width,
        intermediate_size=arguments.width * 11 // 4,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.width // 32,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        initializer_range=0.02,
        tie_word_embeddings=True,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    return spread_out(model, logit_spread).to(device)


def spread_out(model, logit_spread: float):
    """Gives logits a standard deviation over tokens, as a trained model's."""
    with torch.no_grad():
        model.lm_head.weight.normal_(0, logit_spread / model.config.hidden_size**0.5)
    return model


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


def busy_seconds() -> float:
    """Processor seconds, or on a GPU seconds of the clock."""
    return now()[0 if torch.cuda.is_available() else 1]


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
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--model", default="", help="folder of a causal language model")
    parser.add_argument("--shape", default="", choices=["", *SHAPES], help="of the random model")
    parser.add_argument("--width", type=int, default=128, help="of the random model")
    parser.add_argument("--layers", type=int, default=4, help="of the random model")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--contexts", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--vocabulary", type=int, default=65536, help="of the memory table")
    parser.add_argument("--choice-vocabulary", type=int, default=8192, help="of the second table")
    parser.add_argument("--choice-repetitions", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
