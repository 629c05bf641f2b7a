"""What choosing tokens costs beside computing logits: every way of writing, one and two threads.

    python benchmarks/token_draws.py [--folder FOLDER] [--rows 64] [--batch 8] [--steps 8]
        [--threads 1 2] [--ways "nucleus .95" mean] [--json]

SmolLM2 (unpacked from its Python package without a folder) continues the demo's public letters with
the exact decoder; tokens are drawn from its logits in each way, step after step. Public ways draw
one token a row; private ones draw one for each batch of rows, which all read it. Of the steps the
median is told: of the draw, of the decoder's step, of the first as a share of the second (in wall
and in processor seconds, which other work on the machine disturbs less), and how much of the cores'
time of both together passed while the draw left a core idle. `--json` prints one line a
measurement. With `ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
MKL_ENABLE_INSTRUCTIONS=AVX2 FBGEMM_ENABLE_INSTRUCTIONS=AVX2
NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR"` a processor with AVX-512 shows what one
without it takes.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
import torch
from transformers import AutoTokenizer

from dpsynth_assets.methods.private_prediction.aggregates import MeanTokens, TokensBehindTest
from dpsynth_assets.models.decoding.token_draws import draw_tokens, uniforms
from dpsynth_assets.models.engines.protocol import Sampling
from dpsynth_assets.models.exact_decoder.opening import calibration_ids, read_decoder
from dpsynth_assets.models.smollm2 import write_smollm2
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.median import MedianTokenMechanism
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism, NextLogits, PrivateTokenMeter

RELATION = NeighboringRelation.ADD_REMOVE
LETTERS = Path(__file__).parent.parent / "data/demo/public.parquet"
LETTER_TOKENS = 40


def main() -> None:
    arguments = parse()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or unpacked(Path(scratch))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        weights = Path(scratch) / "exact_weights"
        decoder = read_decoder(folder, calibration_ids(tokenizer.encode), weights)
        letters = pl.read_parquet(LETTERS)["text"].sample(arguments.rows + 1, seed=0).to_list()
        prompts = [tokenizer.encode(letter)[:LETTER_TOKENS] for letter in letters]
        for threads in arguments.threads:
            torch.set_num_threads(threads)
            for way in arguments.ways or WAYS:
                told(way, measured(decoder, prompts, WAYS[way], arguments), threads, arguments)


def unpacked(folder: Path) -> Path:
    write_smollm2(folder)
    return folder


def measured(decoder, prompts, make, arguments) -> np.ndarray:
    """(steps, 4) wall and processor seconds of each step, then of each draw."""
    *private, public = prompts
    choose = make(arguments)
    rows, batches = arguments.rows, arguments.rows // arguments.batch
    options = {"prompt_columns": LETTER_TOKENS, "max_new_tokens": arguments.steps + 1}
    contexts = decoder.open(private, **options)
    beside = decoder.open([public[:1]] * batches, **options)
    uniform = torch.from_numpy(uniforms(0, range(rows), arguments.steps + 1))
    tokens, times = torch.zeros(rows, dtype=torch.long), []
    for step in range(arguments.steps + 1):
        of_batches = tokens.view(batches, -1)[:, 0]
        public_logits = beside.next_logits(of_batches, torch.full((batches,), step))
        begun = now()
        logits = contexts.next_logits(tokens, torch.full((rows,), step))
        computed = now()
        drawn = torch.as_tensor(choose(logits, public_logits, uniform[:, step]))
        times.append(np.concatenate([computed - begun, now() - computed]))
        tokens = drawn if len(drawn) == rows else drawn.repeat_interleave(rows // len(drawn))
    return np.array(times[1:])  # the first step warms up


def now() -> np.ndarray:
    return np.array([time.perf_counter(), time.process_time()])


def told(way: str, times: np.ndarray, threads: int, arguments) -> None:
    step, computing, draw, busy = (statistics.median(column) for column in times.T)
    found = {
        "way": way,
        "rows": arguments.rows,
        "threads": threads,
        "draw_ms": round(1e3 * draw, 2),
        "draw_processor_ms": round(1e3 * busy, 2),
        "step_ms": round(1e3 * step, 1),
        "share": round(draw / step, 3),
        "processor_share": round(busy / computing, 3),
        "idle": round(max(0.0, 1 - busy / (threads * draw)) * draw / (step + draw), 3),
        "kernels": torch.backends.cpu.get_cpu_capability(),
    }
    if arguments.json:
        print(json.dumps(found), flush=True)
        return
    print(
        f"{way:26s}{threads} threads: draw {found['draw_ms']:7.2f} ms wall "
        f"{found['draw_processor_ms']:7.2f} processor, step {found['step_ms']:6.1f} ms: "
        f"{found['share']:.1%} wall, {found['processor_share']:.1%} processor, "
        f"idle {found['idle']:.1%}",
        flush=True,
    )


def drawing(**settings):
    """A public way: one token a row."""
    sampling = Sampling(**settings)
    return lambda _: lambda logits, _public, uniform: draw_tokens(logits, uniform, sampling)


def terms(arguments) -> BatchTerms:
    return BatchTerms(expected_batch_size=arguments.batch, relation=RELATION)


def opened(kind, arguments, **parts):
    """A private way, as a method draws its tokens."""
    meter, owners, active = batches_of(arguments)
    select = kind(tokens=arguments.steps + 1, **parts).opened(meter)
    return lambda logits, public, _: select(NextLogits(logits, owners, active, public)).tokens


def mean(arguments, **settings):
    """Softmax of the mean of clipped logits; among the public top k where one is set."""
    return opened(MeanTokens, arguments, mechanism=mean_mechanism(arguments, **settings))


def mean_mechanism(arguments, **settings) -> MeanTokenMechanism:
    return MeanTokenMechanism(batch=terms(arguments), clip_bound=6.0, temperature=1.0, **settings)


def mean_of_top_k(arguments):
    return mean(arguments, public_top_k=1024)


def tested(arguments):
    """The public-token test, the public draw, and the mean's where the test asks for it."""
    return opened(
        TokensBehindTest,
        arguments,
        mechanism=mean_mechanism(arguments),
        test=PublicTokenTest(batch=terms(arguments), noise_scale=0.2, threshold=0.5),
        public_temperature=1.5,
    )


def median(arguments):
    mechanism = MedianTokenMechanism(clip_bound=6.0, temperature=1.0, relation=RELATION)
    meter, owners, active = batches_of(arguments)
    return lambda logits, *_: mechanism.select(NextLogits(logits, owners, active), meter)[0]


def differences(arguments, top_k: int | None = 100):
    """InvisibleInk."""
    mechanism = DifferenceTokenMechanism(
        batch=terms(arguments), clip_bound=1.0, temperature=1.0, top_k=top_k
    )
    return opened(MeanTokens, arguments, mechanism=mechanism)


def differences_of_all(arguments):
    return differences(arguments, top_k=None)


def batches_of(arguments):
    batches = arguments.rows // arguments.batch
    owners = torch.arange(arguments.rows) // arguments.batch
    return PrivateTokenMeter(arguments.steps + 1, batches), owners, np.arange(batches)


WAYS = {
    "all tokens": drawing(),
    "all tokens, at .8": drawing(temperature=0.8),
    "top 50": drawing(top_k=50),
    "top 1,000, nucleus .95": drawing(top_k=1000, top_p=0.95),
    "nucleus .95": drawing(top_p=0.95),
    "nucleus .95, at .8": drawing(temperature=0.8, top_p=0.95),
    "nucleus .9, at .9": drawing(temperature=0.9, top_p=0.9),
    "nucleus .99, at 1.5": drawing(temperature=1.5, top_p=0.99),
    "mean": mean,
    "mean, public top 1,024": mean_of_top_k,
    "mean_svt": tested,
    "median": median,
    "invisible_ink": differences,
    "invisible_ink, all tokens": differences_of_all,
}
"""Makers of what draws tokens from logits (R, V), public logits (G, V) and uniforms (R,)."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8, help="rows of a private batch")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count()])
    parser.add_argument("--ways", nargs="+", choices=WAYS)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
