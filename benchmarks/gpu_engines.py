"""Steered beside unsteered decoding and hidden-state extraction at Llama-3.1-8B's shapes.

    python benchmarks/gpu_engines.py --out gpu_engines.json      # one CUDA device, under 3 minutes
    python benchmarks/gpu_engines.py --tiny --out tiny.json      # the same code on a processor

Weights are random (bfloat16), so no download is needed; speed does not depend on their values. Runs
with python, torch, transformers and numpy alone. Every comparison alternates its two sides and
takes medians. `engine` is whole calls of the product's transformers engine, which captures decoding
passes as CUDA graphs; `step` is one decoding pass, launched kernel by kernel and as a graph.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dpsynth_assets.models.decoding import PackedContexts
from dpsynth_assets.models.engines.protocol import Provenance, Sampling
from dpsynth_assets.models.engines.residual_stream import adding_to_stream, decoder_layers
from dpsynth_assets.models.engines.transformers_engine import TransformersEngine

STEERED_SHARE = (18 / 32, 22 / 32)  # layers 18 to 21 of 32, as in the paper
TEMPERATURE = 1.6
STRENGTH = 1.4


def main() -> None:
    arguments = parse()
    started = time.perf_counter()
    language_model = random_language_model(arguments)
    engine = TransformersEngine(language_model, batch_rows=arguments.rows)
    vectors = random_vectors(engine)
    report = {
        "device": device_name(language_model),
        "torch": torch.__version__,
        "transformers": __import__("transformers").__version__,
        "parameters": sum(p.numel() for p in language_model.model.parameters()),
        "rows": arguments.rows,
        "prompt_tokens": arguments.prompt,
        "new_tokens": arguments.tokens,
        "repetitions": arguments.repetitions,
        "steered_layers": sorted(vectors),
        "engine_equal_prompts": compare_generation(engine, vectors, arguments, equal=True),
        "engine_different_prompts": compare_generation(engine, vectors, arguments, equal=False),
        "hidden_states": hidden_states(engine, sorted(vectors), arguments),
        "step": compare_steps(language_model.model, vectors, arguments),
    }
    report["seconds"] = round(time.perf_counter() - started, 1)
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.out:
        Path(arguments.out).write_text(text + "\n", encoding="utf-8")


def random_language_model(arguments) -> SimpleNamespace:
    """What the engine asks of a language model, without a tokenizer."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    shape = (
        {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "vocab_size": 512}
        if arguments.tiny
        else {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": arguments.layers,
            "vocab_size": 128256,
        }
    )
    heads = (4, 2) if arguments.tiny else (32, 8)
    config = LlamaConfig(
        **shape,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        max_position_embeddings=8192,
        tie_word_embeddings=False,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return SimpleNamespace(
        model=model.eval().requires_grad_(False),
        config=config,
        device=device,
        name="random",
        begin_token_id=0,
        pad_token_id=0,
        vocabulary_size=config.vocab_size,
        end_token_id=config.vocab_size,  # never drawn: every row writes to its limit
        tokenizer=SimpleNamespace(eos_token_id=None),
        encode=lambda text: [ord(character) for character in text],
        decode=lambda _ids: "",
    )


def random_vectors(engine) -> dict[int, np.ndarray]:
    first, last = (round(share * engine.layers) for share in STEERED_SHARE)
    draw = np.random.default_rng(1)
    vectors = {layer: draw.standard_normal(engine.width) for layer in range(first, last)}
    return {layer: vector / np.linalg.norm(vector) for layer, vector in vectors.items()}


def compare_generation(engine, vectors, arguments, *, equal: bool) -> dict:
    """Whole calls of `generate`, prompts and drawing included."""
    prompts = random_prompts(engine.language_model, arguments, equal=equal)
    sampling = Sampling(temperature=TEMPERATURE, max_new_tokens=arguments.tokens)

    def steered() -> list:
        with engine.steered(vectors, STRENGTH) as view:
            return view.generate(prompts, sampling)

    sides = {"unsteered": lambda: engine.generate(prompts, sampling), "steered": steered}
    seconds = alternate(sides, arguments.repetitions)
    tokens = arguments.rows * arguments.tokens
    return {
        **{f"{name}_tokens_per_second": round(tokens / seconds[name], 1) for name in sides},
        "steered_over_unsteered_time": round(seconds["steered"] / seconds["unsteered"], 4),
    }


def compare_steps(model, vectors, arguments) -> dict:
    """One decoding step alone: kernels launched one by one, and replayed as a CUDA graph."""
    result = {}
    for kind in ("eager", "graph"):
        if kind == "graph" and not torch.cuda.is_available():
            return result | {"graph": "needs a CUDA device"}
        runners = {
            f"{kind}_unsteered": step_runner(model, arguments, {}, kind == "graph"),
            f"{kind}_steered": step_runner(
                model, arguments, tensors(model, vectors), kind == "graph"
            ),
        }
        result |= milliseconds(runners, arguments)
    return result


def milliseconds(runners, arguments) -> dict:
    repeated = {
        name: lambda run=run: [run() for _ in range(arguments.steps)]
        for name, run in runners.items()
    }
    seconds = alternate(repeated, arguments.repetitions)
    names = list(runners)
    figures = {f"{n}_ms": round(1e3 * seconds[n] / arguments.steps, 4) for n in names}
    rates = {
        f"{n}_tokens_per_second": round(arguments.rows * arguments.steps / seconds[n])
        for n in names
    }
    kind = names[0].partition("_")[0]
    ratio = {f"{kind}_steered_over_unsteered": round(seconds[names[1]] / seconds[names[0]], 4)}
    return figures | rates | ratio


def step_runner(model, arguments, vectors, cuda_graphs: bool):
    """One step for all rows; a graph is captured by the first, with the steering in it."""
    prompt = random_prompts(SimpleNamespace(vocabulary_size=model.config.vocab_size), arguments)[0]
    contexts = PackedContexts(
        model,
        [prompt],
        prompt_columns=len(prompt),
        max_new_tokens=arguments.tokens,
        pad_token_id=0,
        rows_per_prefill=1,
        cuda_graphs=cuda_graphs,
    )
    contexts.keep(torch.zeros(arguments.rows, dtype=torch.long))
    tokens = torch.zeros(arguments.rows, dtype=torch.long, device=model.device)
    half = torch.full((arguments.rows,), arguments.tokens // 2)

    def run() -> torch.Tensor:
        with adding_to_stream(model, vectors):
            return contexts.next_logits(tokens, half).argmax(-1)

    return run


def hidden_states(engine, layers, arguments) -> dict:
    """Texts a second, rows that passed through the model, and memory beyond the weights."""
    draw = np.random.default_rng(2)
    lengths = draw.integers(arguments.document // 2, arguments.document + 1, arguments.documents)
    texts = [draw.integers(1, engine.language_model.vocabulary_size, n).tolist() for n in lengths]
    passes: list[int] = []
    count = lambda _module, inputs: passes.append(len(inputs[0]))  # noqa: E731
    hook = decoder_layers(engine.language_model.model)[0].register_forward_pre_hook(count)
    shared = {"provenance": Provenance.PUBLIC}
    engine.hidden_states(texts[:8], layers, **shared)  # warms up
    alone = clock(lambda: engine.hidden_states(texts, layers))
    passes.clear()
    before = reset_peak()
    seconds = clock(lambda: engine.hidden_states(texts, layers, **shared))
    hook.remove()
    return {
        "documents": len(texts),
        "tokens": int(lengths.sum()),
        "seconds": round(seconds, 3),
        "documents_per_second": round(len(texts) / seconds, 1),
        "private_documents_per_second": round(len(texts) / alone, 1),
        "passes": len(passes),
        "rows_with_filler": sum(passes),
        "peak_mib_beyond_weights": None if before is None else round(peak() - before, 1),
    }


def random_prompts(language_model, arguments, *, equal: bool = True) -> list[list[int]]:
    draw = np.random.default_rng(0)
    size = (1 if equal else arguments.rows, arguments.prompt)
    prompts = draw.integers(1, language_model.vocabulary_size, size).tolist()
    return prompts * arguments.rows if equal else prompts


def tensors(model, vectors) -> dict:
    return {
        layer: torch.tensor(STRENGTH * vector, device=model.device, dtype=model.dtype)
        for layer, vector in vectors.items()
    }


def alternate(sides, repetitions: int) -> dict[str, float]:
    """Median seconds of each side; the first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for repetition in range(repetitions + 1):
        for name, run in sides.items():
            taken = clock(run)
            if repetition:
                seconds[name].append(taken)
    return {name: statistics.median(values) for name, values in seconds.items()}


def clock(run) -> float:
    synchronize()
    start = time.perf_counter() if torch.cuda.is_available() else time.process_time()
    run()
    synchronize()
    end = time.perf_counter() if torch.cuda.is_available() else time.process_time()
    return end - start


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def reset_peak() -> float | None:
    if not torch.cuda.is_available():
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated() / 2**20


def peak() -> float:
    return torch.cuda.max_memory_allocated() / 2**20


def device_name(language_model) -> str:
    cuda = language_model.device == "cuda"
    return torch.cuda.get_device_name() if cuda else "cpu (processor seconds)"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="small shapes, for a processor")
    parser.add_argument("--out", default="", help="JSON file")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--document", type=int, default=256)
    parser.add_argument("--documents", type=int, default=500)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.prompt, arguments.tokens, arguments.steps = 32, 24, 8
        arguments.document, arguments.documents = 48, 40
    return arguments


if __name__ == "__main__":
    main()
