"""Engines side by side on a small model: steering, throughput, hidden states.

    python benchmarks/engines.py [--model FOLDER] [--rows 64] [--tokens 64]
    VLLM=.venv-vllm/bin/python python benchmarks/engines.py     # vLLM beside it (make test-vllm)
    python benchmarks/engines.py --shape llama-3.1-8b --engines transformers --prompt 512 \
        --tokens 128 --passes 32 --repetitions 3                # one CUDA device

Each engine runs in a process of its own on one thread. A shared machine's clock says little, and
even its processor time changes with what runs beside it: so processor time is compared, and the
engines take turns, one round each, on the same fresh prompts; a ratio is the median of the rounds'
ratios. Three workloads: as many rows as run at once, all of one length (steered and not); four
times as many rows of lengths that differ, so that rows end and others take their places; and, for
scale, `generate` of transformers itself on the first of them. In a round the calls alternate
between steered and unsteered, and so do single passes of the model (steps of vLLM, its scheduler
included), which say best what steering costs.
Pooled hidden states of 500 documents: rows that passed through the model (one a document, and
filler), and memory beyond it. On a GPU seconds are of the clock, and single passes are launched
kernel by kernel and replayed as CUDA graphs.
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
SHAPES = {
    "llama-3.1-8b": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    }
}


def main() -> None:
    arguments = parse()
    if arguments.engine:
        serve(arguments)
        return
    with tempfile.TemporaryDirectory() as scratch:
        model = arguments.model or random_model(Path(scratch) / "model", arguments)
        pythons = {"transformers": sys.executable, "vllm": os.environ.get("VLLM", sys.executable)}
        kinds = arguments.engines
        engines = {kind: in_own_process(pythons[kind], kind, model) for kind in kinds}
        figures = {kind: answer(engine, "once") for kind, engine in engines.items()}
        running = [kind for kind in kinds if figures[kind] is not None]
        rounds: dict = {kind: [] for kind in running}
        for number in range(arguments.repetitions + 1):
            for kind in running if number % 2 else running[::-1]:
                rounds[kind].append(answer(engines[kind], str(number)))
        for engine in engines.values():
            engine.stdin.close()
            engine.wait()
    show(figures, {kind: taken[1:] for kind, taken in rounds.items()})  # the first warms up


def show(figures: dict, rounds: dict) -> None:
    for kind, figure in figures.items():
        print(f"== {kind}")
        if figure is None:
            print("  not run: it is not importable by its python; see above")
            continue
        for name, value in (figure | summary(rounds[kind])).items():
            print(f"  {name:44s}{value}")
    if set(rounds) == set(ENGINES):
        pairs = list(zip(rounds["vllm"], rounds["transformers"], strict=True))
        for name in ("unsteered", "steered", "mixed"):
            ratios = [theirs[name] / ours[name] for ours, theirs in pairs]
            print(f"vllm / transformers engine, {name} rows a processor second: {spread(ratios)}")
        ratios = [theirs["plain"] / ours["unsteered"] for ours, theirs in pairs]
        print(f"vllm / `generate` of transformers, the same: {spread(ratios)}")


def spread(ratios: list[float]) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return f"{middle:.2f} (quartiles {low:.2f} to {high:.2f})"


def summary(rounds: list[dict]) -> dict:
    cpu = statistics.median(each["unsteered"] for each in rounds)
    wall = statistics.median(each["wall"] for each in rounds)
    tokens = statistics.mean(each["tokens"] for each in rounds)
    over = statistics.median(each["steered"] for each in rounds) / cpu
    return {
        "mean new tokens": round(tokens, 1),
        "steered / unsteered processor time a token": round(over, 3),
        "tokens a processor second": round(1 / cpu),
        "rows a processor second": round(1 / cpu / tokens, 2),
        "rows a second by the wall clock": round(1 / wall / tokens, 2),
    }


def in_own_process(python: str, kind: str, model: str) -> subprocess.Popen:
    quiet = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [python, __file__, *sys.argv[1:], "--engine", kind, "--model", str(model)],
        env=os.environ | quiet,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def answer(engine: subprocess.Popen, request: str) -> dict | None:
    """One line asked, one JSON object told; other lines are what libraries print."""
    try:
        engine.stdin.write(request + "\n")
        engine.stdin.flush()
    except BrokenPipeError:
        return None
    for line in engine.stdout:
        if line.startswith("{"):
            return json.loads(line)
    return None


def serve(arguments) -> None:
    """Measures what it is asked for, line by line."""
    import torch

    from dpsynth_assets.models.language_model import load_language_model

    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = "bfloat16" if device == "cuda" else "float32"
    language_model = load_language_model(arguments.model, device=device, dtype=dtype)
    engine = open_engine(arguments, language_model)
    for line in sys.stdin:
        request = line.strip()
        if request == "once":
            told = once(engine, language_model, arguments)
        else:
            told = generation(engine, language_model, int(request), arguments)
        print(json.dumps(told), flush=True)
    engine.close()


def once(engine, language_model, arguments) -> dict:
    """Hidden states first: memory that is used later is not counted to them."""
    import numpy as np

    draw = np.random.default_rng(0)
    figures = states(engine, language_model, draw, arguments)
    if arguments.engine == "transformers":
        figures |= steps(language_model, prompts(language_model, 0, arguments), engine, arguments)
    else:
        figures |= vllm_steps(engine, prompts(language_model, 0, arguments), arguments)
    return figures | {"rows": arguments.rows}


def prompts(language_model, number: int, arguments) -> list[list[int]]:
    """The same for both engines, and new in every round: no prompt cache has them."""
    import numpy as np

    draw = np.random.default_rng(number)
    shape = (arguments.rows, arguments.prompt)
    return draw.integers(3, language_model.vocabulary_size, shape).tolist()


def directions(engine) -> dict:
    import numpy as np

    draw = np.random.default_rng(0)
    last = engine.layers - 1
    vectors = {layer: draw.standard_normal(engine.width) for layer in (last - 1, last)}
    return {layer: vector / np.linalg.norm(vector) for layer, vector in vectors.items()}


def open_engine(arguments, language_model):
    if arguments.engine == "vllm":
        from dpsynth_assets.datasets.public_spec import EngineSpec
        from dpsynth_assets.models.vllm_decoder.engine import VllmEngine

        spec = EngineSpec(kind="vllm", batch_rows=arguments.rows, cache_gib=0.5)
        return VllmEngine(language_model, spec)
    from dpsynth_assets.models.engines.decoder_engine import DecoderEngine

    return DecoderEngine(language_model, batch_rows=arguments.rows)


def generation(engine, language_model, number: int, arguments) -> dict:
    """Drawn texts of the same length on every side: the end token is out of reach."""
    from dpsynth_assets.models.engines.protocol import Sampling

    sampling = Sampling(temperature=1.0, max_new_tokens=arguments.tokens, seed=number)
    vectors = directions(engine)

    def timed(writer, rows) -> dict:
        start, wall = busy_seconds(), time.perf_counter()
        tokens = sum(len(g.token_ids) for g in writer.generate(rows, sampling))
        cpu, wall = busy_seconds() - start, time.perf_counter() - wall
        return {"cpu": cpu / tokens, "wall": wall / tokens, "tokens": tokens / len(rows)}

    def plain() -> dict:
        return timed(engine, prompts(language_model, 2 * number + 1, arguments))

    def steered() -> dict:
        view = engine.steered(vectors)
        return timed(view, prompts(language_model, 2 * number + 2, arguments))

    order = (plain, steered) if number % 2 else (steered, plain)
    taken = {run: run() for run in order}
    others = {"mixed": mixed_lengths(engine, language_model, number, arguments)}
    if arguments.engine == "transformers":
        rows = prompts(language_model, 2 * number + 1, arguments)
        others["plain"] = plain_generate(language_model, rows, arguments)
    return others | {
        "unsteered": taken[plain]["cpu"],
        "steered": taken[steered]["cpu"],
        "wall": taken[plain]["wall"],
        "tokens": taken[plain]["tokens"],
    }


def mixed_lengths(engine, language_model, number: int, arguments) -> float:
    """Processor seconds a token of four times as many rows, whose lengths differ."""
    import numpy as np

    from dpsynth_assets.models.engines.protocol import Sampling

    rows = [
        row
        for part in range(4)
        for row in prompts(language_model, 1000 + 4 * number + part, arguments)
    ]
    draw = np.random.default_rng(number)
    limits = draw.integers(1, 2 * arguments.tokens, len(rows)).tolist()
    sampling = Sampling(temperature=1.0, max_new_tokens=tuple(limits), seed=number)
    start = busy_seconds()
    tokens = sum(len(each.token_ids) for each in engine.generate(rows, sampling))
    return (busy_seconds() - start) / tokens


def plain_generate(language_model, rows: list[list[int]], arguments) -> float:
    """Processor seconds a token of `generate` as transformers has it, all rows in one batch."""
    import torch

    ids = torch.tensor(rows, device=language_model.model.device)
    start = busy_seconds()
    with torch.inference_mode():
        made = language_model.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=arguments.tokens,
            do_sample=True,
            eos_token_id=None,
            pad_token_id=language_model.pad_token_id,
        )
    return (busy_seconds() - start) / (made.shape[1] - ids.shape[1]) / len(rows)


def steps(language_model, rows, engine, arguments) -> dict:
    """Single decoding passes, steered and unsteered in turn: what the hooks alone cost."""
    import torch

    figures: dict = {}
    for graphs in (False, True) if torch.cuda.is_available() else (False,):
        figures |= passes(language_model, rows, directions(engine), arguments, graphs)
    return figures


def passes(language_model, rows, vectors, arguments, graphs: bool) -> dict:
    """Medians of passes that are launched kernel by kernel, or replayed as CUDA graphs."""
    import torch

    from dpsynth_assets.models.decoding.protocol import Reading
    from dpsynth_assets.models.transformers_decoder.decoder import PackedContexts

    model = language_model.model
    sides = {"unsteered": {}, "steered": vectors}
    contexts = {
        name: PackedContexts(  # Each its own: a captured pass has its steering in it.
            model,
            rows,
            Reading(arguments.prompt, arguments.tokens, added=extra),
            cuda_graphs=graphs,
        )
        for name, extra in sides.items()
    }
    tokens = torch.zeros(len(rows), dtype=torch.long)
    seconds: dict = {name: [] for name in sides}
    for step in range(arguments.passes):
        for name in sides:
            start = busy_seconds()
            contexts[name].next_logits(tokens, tokens + step % arguments.tokens)
            seconds[name].append(busy_seconds() - start)
    cpu = {name: statistics.median(values) for name, values in seconds.items()}
    how = ", as a CUDA graph" if graphs else ""
    return {
        f"ms a pass of all rows{how}": round(1e3 * cpu["unsteered"], 2),
        f"steered / unsteered pass{how}": round(cpu["steered"] / cpu["unsteered"], 3),
    }


def vllm_steps(engine, rows, arguments) -> dict:
    """Whole steps of vLLM that decode all rows, scheduler included, steered and not in turn."""
    from vllm import SamplingParams

    core, vectors = engine._llm.llm_engine, directions(engine)
    seconds: dict = {False: [], True: []}
    step, taken = core.step, []

    def timed_step():
        steered = len(taken) % 2 == 1
        if steered:
            engine._call("dpsynth_steer", vectors)
        start = busy_seconds()
        told = step()
        seconds[steered].append(busy_seconds() - start)
        taken.append(steered)
        if steered:
            engine._call("dpsynth_release")
        return told

    core.step = timed_step
    parameters = SamplingParams(
        temperature=0, max_tokens=arguments.tokens, ignore_eos=True, detokenize=False
    )
    try:
        for _ in range(max(1, 2 * arguments.passes // arguments.tokens)):
            engine._run(rows, [parameters.clone() for _ in rows])
    finally:
        core.step = step
        engine._llm.reset_prefix_cache()
    cpu = {steered: statistics.median(values) for steered, values in seconds.items()}
    return {
        "processor ms a step of all rows": round(1e3 * cpu[False], 2),
        "steered / unsteered step": round(cpu[True] / cpu[False], 3),
    }


def states(engine, language_model, draw, arguments) -> dict:
    from dpsynth_assets.models.engines.protocol import Provenance

    lengths = draw.integers(40, 241, arguments.documents)
    texts = [draw.integers(3, language_model.vocabulary_size, n).tolist() for n in lengths]
    layers = [engine.layers - 2, engine.layers - 1]
    shared = {"provenance": Provenance.PUBLIC}
    engine.hidden_states(texts[:4], layers, **shared)  # warms up
    start = busy_seconds()
    engine.hidden_states(texts, layers)
    alone = round(len(texts) / (busy_seconds() - start), 1)
    figures = {"documents": len(texts), "their tokens": int(lengths.sum())}
    figures["private documents a processor second, each alone in its pass"] = alone
    passed = []
    if arguments.engine == "transformers":
        from dpsynth_assets.models.transformers_decoder.residual_stream import decoder_layers

        decoder_layers(language_model.model)[0].register_forward_pre_hook(
            lambda _module, inputs: passed.append(tuple(inputs[0].shape[:2]))
        )
    before, start = reset_peak(), busy_seconds()
    engine.hidden_states(texts, layers, **shared)
    figures["documents a processor second"] = round(len(texts) / (busy_seconds() - start), 1)
    figures["peak MiB beyond what was held before"] = round(peak_mib() - before, 1)
    if passed:
        figures["passes"] = len(passed)
        figures["rows that passed, filler included"] = sum(rows for rows, _ in passed)
        figures["tokens that passed / own tokens"] = round(
            sum(rows * columns for rows, columns in passed) / int(lengths.sum()), 3
        )
    return figures


def reset_peak() -> float:
    """Forgets the peak of memory; returns what is held, in MiB."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 2**20
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return memory_mib("VmRSS")


def peak_mib() -> float:
    """The peak since it was forgotten, in MiB."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return memory_mib("VmHWM")


def busy_seconds() -> float:
    """Processor seconds, or on a GPU seconds of the clock once it is idle."""
    import torch

    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def memory_mib(field: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def random_model(folder: Path, arguments) -> str:
    """The demo's shape (1.26M parameters), or Llama's, with random weights and a byte tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    torch.manual_seed(0)
    shape = SHAPES.get(arguments.shape) or {
        "vocab_size": 2048,
        "hidden_size": arguments.width,
        "intermediate_size": arguments.width * 5 // 2,
        "num_hidden_layers": arguments.layers,
        "num_attention_heads": arguments.width // 32,
        "num_key_value_heads": max(1, arguments.width // 64),
    }
    config = LlamaConfig(
        **shape,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        model.lm_head.weight[1] = 0  # the end token is as likely as any other of 2,048
    model.save_pretrained(folder)
    names = ["<begin>", "<end>", "<pad>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({name: place for place, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<begin>", eos_token="<end>", pad_token="<pad>"
    ).save_pretrained(folder)
    return str(folder)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="", choices=["", *ENGINES], help=argparse.SUPPRESS)
    parser.add_argument("--model", default="", help="folder of a causal language model")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--shape", default="", choices=["", *SHAPES], help="of the random model")
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
