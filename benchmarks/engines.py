"""Engines side by side on an embedded-size model: steering, throughput, hidden states.

    python benchmarks/engines.py [--model FOLDER] [--rows 64] [--tokens 64]
    VLLM=.venv-vllm/bin/python python benchmarks/engines.py     # vLLM beside it (make test-vllm)

Each engine runs in a process of its own on one thread. A shared machine's clock says little, so
processor time is compared: calls of `generate` alternate between steered and unsteered, and so do
single passes; medians count. Pooled hidden states of 500 documents: rows that passed through the
model (one a document, and filler), and memory beyond it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

ENGINES = ("transformers", "vllm")


def main() -> None:
    arguments = parse()
    if arguments.engine:
        print(json.dumps(measure(arguments)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        model = arguments.model or random_model(Path(scratch) / "model", arguments)
        pythons = {"transformers": sys.executable, "vllm": os.environ.get("VLLM", sys.executable)}
        figures = {kind: in_own_process(pythons[kind], kind, model) for kind in ENGINES}
    for kind, figure in figures.items():
        print(f"== {kind}")
        for name, value in (figure or {"not run": "vllm is not importable; see above"}).items():
            print(f"  {name:44s}{value}")
    ours, theirs = figures["transformers"], figures["vllm"]
    if theirs:
        name = "rows a processor second"
        print(f"vllm / transformers, {name}: {theirs[name] / ours[name]:.2f}")


def in_own_process(python: str, kind: str, model: str) -> dict | None:
    quiet = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    command = [python, __file__, *sys.argv[1:], "--engine", kind, "--model", str(model)]
    done = subprocess.run(
        command,
        env=os.environ | quiet,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def measure(arguments) -> dict:
    import numpy as np
    import torch

    from dpsynth_assets.models.language_model import load_language_model

    torch.set_num_threads(1)
    language_model = load_language_model(arguments.model, device="cpu")
    engine = open_engine(arguments, language_model)
    draw = np.random.default_rng(0)
    last = engine.layers - 1
    vectors = {layer: draw.standard_normal(engine.width) for layer in (last - 1, last)}
    vectors = {layer: vector / np.linalg.norm(vector) for layer, vector in vectors.items()}
    prompts = draw.integers(3, language_model.vocabulary_size, (arguments.rows, arguments.prompt))
    figures = states(engine, language_model, draw, arguments)  # first: later memory is reused
    figures |= generation(engine, prompts.tolist(), vectors, arguments)
    if arguments.engine == "transformers":
        figures |= steps(language_model, prompts.tolist(), vectors, arguments)
    engine.close()
    return figures


def open_engine(arguments, language_model):
    if arguments.engine == "vllm":
        from dpsynth_assets.models.engines.vllm_engine import VllmEngine

        return VllmEngine(language_model, batch_rows=arguments.rows, cache_gib=0.5)
    from dpsynth_assets.models.engines.transformers_engine import TransformersEngine

    return TransformersEngine(language_model, batch_rows=arguments.rows)


def generation(engine, prompts, vectors, arguments) -> dict:
    """Drawn texts of the same length on every side: the end token is out of reach."""
    from dpsynth_assets.models.engines import Sampling

    sampling = Sampling(temperature=1.0, max_new_tokens=arguments.tokens)
    written: list[int] = []

    def plain() -> None:
        written.append(sum(len(g.token_ids) for g in engine.generate(prompts, sampling)))

    def steered() -> None:
        with engine.steered(vectors, 1.0) as view:
            written.append(sum(len(g.token_ids) for g in view.generate(prompts, sampling)))

    seconds: dict = {plain: [], steered: []}
    for repetition in range(arguments.repetitions + 1):
        for run in (plain, steered) if repetition % 2 else (steered, plain):
            start, wall = time.process_time(), time.perf_counter()
            run()
            if repetition:  # the first pair warms up
                per_token = (time.process_time() - start) / written[-1]
                seconds[run].append((per_token, (time.perf_counter() - wall) / written[-1]))
    cpu = {run: statistics.median(c for c, _ in values) for run, values in seconds.items()}
    wall = statistics.median(w for _, w in seconds[plain])
    tokens = statistics.mean(written) / len(prompts)
    return {
        "rows": len(prompts),
        "mean new tokens": round(tokens, 1),
        "steered / unsteered processor time a token": round(cpu[steered] / cpu[plain], 3),
        "tokens a processor second": round(1 / cpu[plain]),
        "rows a processor second": round(1 / cpu[plain] / tokens, 2),
        "rows a second by the wall clock": round(1 / wall / tokens, 2),
    }


def steps(language_model, prompts, vectors, arguments) -> dict:
    """Single decoding passes, steered and unsteered in turn: what the hooks alone cost."""
    import torch

    from dpsynth_assets.models.decoding import PackedContexts
    from dpsynth_assets.models.engines.residual_stream import adding_to_stream

    contexts = PackedContexts(
        language_model.model,
        prompts,
        prompt_columns=arguments.prompt,
        max_new_tokens=arguments.tokens,
        pad_token_id=language_model.pad_token_id,
    )
    added = {layer: torch.from_numpy(vector).float() for layer, vector in vectors.items()}
    tokens = torch.zeros(len(prompts), dtype=torch.long)
    seconds: dict = {"unsteered": [], "steered": []}
    for step in range(arguments.passes):
        for name, extra in (("unsteered", {}), ("steered", added)):
            with adding_to_stream(language_model.model, extra):
                start = time.process_time()
                contexts.next_logits(tokens, tokens + step % arguments.tokens)
                seconds[name].append(time.process_time() - start)
    cpu = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "processor ms a pass of all rows": round(1e3 * cpu["unsteered"], 2),
        "steered / unsteered pass": round(cpu["steered"] / cpu["unsteered"], 3),
    }


def states(engine, language_model, draw, arguments) -> dict:
    lengths = draw.integers(40, 241, arguments.documents)
    texts = [draw.integers(3, language_model.vocabulary_size, n).tolist() for n in lengths]
    layers = [engine.layers - 2, engine.layers - 1]
    engine.hidden_states(texts[:4], layers)  # warms up
    figures = {"documents": len(texts), "their tokens": int(lengths.sum())}
    passed = []
    if arguments.engine == "transformers":
        from dpsynth_assets.models.engines.residual_stream import decoder_layers

        decoder_layers(language_model.model)[0].register_forward_pre_hook(
            lambda _module, inputs: passed.append(tuple(inputs[0].shape[:2]))
        )
    before, start = reset_peak(), time.process_time()
    engine.hidden_states(texts, layers)
    figures["documents a processor second"] = round(len(texts) / (time.process_time() - start), 1)
    figures["peak MiB beyond what was held before"] = round(memory_mib("VmHWM") - before, 1)
    if passed:
        figures["passes"] = len(passed)
        figures["rows that passed, filler included"] = sum(rows for rows, _ in passed)
        figures["tokens that passed / own tokens"] = round(
            sum(rows * columns for rows, columns in passed) / int(lengths.sum()), 3
        )
    return figures


def reset_peak() -> float:
    """Forgets the peak of resident memory; returns what is resident, in MiB."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return memory_mib("VmRSS")


def memory_mib(field: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def random_model(folder: Path, arguments) -> str:
    """The demo's shape (1.26M parameters) with random weights and a byte tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    from dpsynth_assets.models.byte_tokenizer import train_tokenizer

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=arguments.width,
        intermediate_size=arguments.width * 5 // 2,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.width // 32,
        num_key_value_heads=max(1, arguments.width // 64),
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.lm_head.weight[1] = 0  # the end token is as likely as any other of 2,048
    model.save_pretrained(folder)
    train_tokenizer(["a b c"], 300, folder)
    return str(folder)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="", choices=["", *ENGINES], help=argparse.SUPPRESS)
    parser.add_argument("--model", default="", help="folder of a causal language model")
    parser.add_argument("--width", type=int, default=128, help="of the random model")
    parser.add_argument("--layers", type=int, default=4, help="of the random model")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--documents", type=int, default=500)
    parser.add_argument("--repetitions", type=int, default=11)
    parser.add_argument("--passes", type=int, default=200, help="of each kind, in turn")
    return parser.parse_args()


if __name__ == "__main__":
    main()
