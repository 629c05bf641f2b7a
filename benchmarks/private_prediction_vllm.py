"""Contexts of private prediction in vLLM beside our two decoders: time of a step, and rounding.

    .venv-vllm/bin/python benchmarks/private_prediction_vllm.py [--model FOLDER] [--rows 64]

All decode the same random prompts, which share a beginning, in one process on one thread, in turn:
vLLM and transformers in float32, the exact decoder in 8-bit integers (Llama-shaped models alone).
Processor time of reading the prompts with the first step, of a step of the private contexts, and of
one with public contexts beside them, which are read in a step of their own and change places with
the private ones in vLLM's batch each time; each beside the exact decoder's.
Then how far one row's logits move when the other rows change, in number, length and text, and the
row's own place: what `logit_slack` has to cover (natural-log units).
"""

import argparse
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> None:
    arguments = parse()
    if importlib.util.find_spec("vllm") is None:
        print("vllm is not importable here: run this in .venv-vllm (make test-vllm)")
        return
    with tempfile.TemporaryDirectory() as scratch:
        measure(arguments, arguments.model or random_model(Path(scratch)))


def random_model(folder: Path) -> Path:
    """Writes a small model with random weights and any tokenizer."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048, hidden_size=128, intermediate_size=344, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=512,
        initializer_range=0.1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    letters = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="b", pad_token="a").save_pretrained(
        folder
    )
    return folder


def measure(arguments: argparse.Namespace, folder: Path | str) -> None:
    from dpsynth_assets.models.decoding import open_decoder
    from dpsynth_assets.models.language_model import load_language_model
    from dpsynth_assets.models.vllm_decoder.decoder import VllmDecoder

    language_model = load_language_model(folder, dtype=arguments.dtype)
    decoders = {
        "exact": open_decoder("exact", language_model),
        "transformers": open_decoder("transformers", language_model),
        "vllm": VllmDecoder(
            language_model, cache_gib=arguments.cache_gib, most_rows=2 * arguments.rows + 64
        ),
    }

    def opened(kind: str, prompts: list, columns: int, public: bool = False) -> Any:
        return decoders[kind].open(
            prompts,
            prompt_columns=columns,
            max_new_tokens=arguments.steps + 1,
            public_prefixes=[shared_tokens(arguments, language_model.vocabulary_size)],
            public=public,
        )

    vocabulary = language_model.vocabulary_size
    times(arguments, opened, vocabulary)
    moves(arguments, opened, vocabulary)
    decoders["vllm"].close()


KINDS = ("exact", "transformers", "vllm")


def times(arguments: argparse.Namespace, opened: Callable[..., Any], vocabulary: int) -> None:
    prompts = prompts_of(arguments.rows, arguments, vocabulary, seed=0)
    columns = max(map(len, prompts))
    own, beside, spent = {}, {}, {}
    for kind in KINDS:
        start = time.process_time()
        own[kind] = opened(kind, prompts, columns)
        one_step(own[kind], 0)
        spent["reading, first step", kind] = [time.process_time() - start]
        beside[kind] = opened(kind, prompts[:8], columns, public=True)
        one_step(beside[kind], 0)
    worst = 0.0
    for step in range(1, arguments.steps):
        logits = {}
        for kind in KINDS:
            public = step % 2 == 1
            start = time.process_time()
            if public:
                one_step(beside[kind], (step + 1) // 2)
            logits[kind] = one_step(own[kind], step)
            what = "step, 8 public rows beside" if public else "step"
            spent.setdefault((what, kind), []).append(time.process_time() - start)
        worst = max(worst, float((logits["transformers"] - logits["vllm"]).abs().max()))
    print(f"{arguments.rows} rows of up to {columns} tokens, processor milliseconds (median)")
    for (what, kind), seconds in sorted(spent.items()):
        least = statistics.median(spent[what, "exact"])
        each = statistics.median(seconds)
        print(f"  {what:30}{kind:14}{1000 * each:9.1f}{each / least:7.2f} of exact")
    print(f"  largest difference of a logit, transformers to vllm {worst:.2g}")


def moves(arguments: argparse.Namespace, opened: Callable[..., Any], vocabulary: int) -> None:
    (row,) = prompts_of(1, arguments, vocabulary, seed=1)
    for kind in KINDS:
        found = []
        for seed in range(arguments.trials):
            others = prompts_of(
                seed * arguments.rows // arguments.trials, arguments, vocabulary, 2 + seed
            )
            place = seed % (len(others) + 1)
            prompts = [*others[:place], row, *others[place:]]
            contexts = opened(kind, prompts, arguments.prompt + 1)
            found.append([one_step(contexts, step)[place].clone() for step in range(8)])
            del contexts
        moved = max(
            float((one - other).abs().max())
            for number, trial in enumerate(found)
            for before in found[:number]
            for one, other in zip(trial, before, strict=True)
        )
        print(f"{kind}: a row's logits moved by at most {moved:.2g} over {len(found)} companies")


def one_step(contexts: Any, step: int) -> Any:
    import torch

    written = torch.full((len(contexts),), step)
    return contexts.next_logits(written + 11, written)


def prompts_of(rows: int, arguments: argparse.Namespace, vocabulary: int, seed: int) -> list:
    import numpy as np

    draw = np.random.default_rng(seed)
    shared = shared_tokens(arguments, vocabulary)
    return [
        shared + draw.integers(20, vocabulary - 20, draw.integers(1, own)).tolist()
        for own in [arguments.prompt - arguments.shared] * rows
    ]


def shared_tokens(arguments: argparse.Namespace, vocabulary: int) -> list[int]:
    """What every prompt begins with; public, and read once."""
    import numpy as np

    draw = np.random.default_rng(99)
    return draw.integers(20, vocabulary - 20, arguments.shared).tolist()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", help="folder; none: a small one with random weights")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=160)
    parser.add_argument("--shared", type=int, default=40)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--cache-gib", type=float, default=2.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
