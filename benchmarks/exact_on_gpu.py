"""The exact decoder on a CUDA device: its law, its divergence from float32, its speed.

    python benchmarks/exact_on_gpu.py FOLDER [--rows 256] [--prompt 500] [--tokens 64]

Without a GPU, Triton's interpreter computes the same at a tiny shape:
    TRITON_INTERPRET=1 python benchmarks/exact_on_gpu.py --tiny --rows 3 --prompt 5 --tokens 2
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from dpsynth_assets.models.decoding.protocol import Decoder, Reading
from dpsynth_assets.models.exact_decoder.decoder import calibrated_table
from dpsynth_assets.models.exact_decoder.gpu_decoder import DeviceContexts, DeviceDecoder
from dpsynth_assets.models.exact_decoder.weights import EMBEDDINGS, LlamaShape
from dpsynth_assets.models.transformers_decoder.decoder import TransformersDecoder

BANDWIDTH = 3.35e12
"""Bytes a second of an H100's memory (SXM)."""
COMPARED = 32
"""Rows whose distributions are compared with float32."""
TINY = {
    "vocab_size": 131, "hidden_size": 72, "intermediate_size": 100, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 12,
    "max_position_embeddings": 256, "initializer_range": 0.2, "tie_word_embeddings": False,
}  # fmt: skip


def measure(
    model: str | Path | Mapping[str, Any],
    rows: int = 256,
    prompt: int = 500,
    tokens: int = 64,
    device: str = "cuda",
    *,
    prompts: Sequence[Sequence[int]] | None = None,
    calibration: Sequence[Sequence[int]] | None = None,
    compared_dtypes: Sequence[str] = ("float32", "bfloat16"),
) -> dict[str, Any]:
    """Measures the exact decoder on a device.

    Args:
        model: Folder in the transformers format, or settings of a `LlamaConfig` with random
            weights.
        rows: Contexts at a time.
        prompt: Tokens of a prompt at most; random prompts have all lengths up to it.
        tokens: Steps that are compared and timed.
        device: A CUDA device; cpu needs TRITON_INTERPRET=1.
        prompts: At least `rows` + 1 token sequences, cut to `prompt` tokens; None: random tokens.
        calibration: Public texts as token ids; None: some other random prompts.
        compared_dtypes: Number types of transformers whose steps are timed beside.

    Returns:
        `invariant` ({check: whether all bits are equal}), `divergence` (mean KL in nats a token,
        share of equal first tokens), `seconds_to_read`, `milliseconds_a_step` ({who: ms}),
        `bytes_a_step`, `bound_milliseconds`, `kernels` (microseconds a step by kernel).
    """
    plain = opened(model)
    vocabulary = plain.config.vocab_size
    generator = torch.Generator().manual_seed(0)
    texts = [list(each)[:prompt] for each in prompts or random_texts(rows + 1, prompt, vocabulary)]
    public = calibration or random_texts(4, min(prompt, 160), vocabulary, seed=1)
    shape, table = LlamaShape.of(plain.config), plain.state_dict()
    with torch.inference_mode():
        quantized = calibrated_table(shape, table, public)
    exact = DeviceDecoder(shape, table[EMBEDDINGS], quantized, device)
    written = torch.randint(vocabulary, (tokens, len(texts)), generator=generator)
    told: dict[str, Any] = {"device": exact.facts, "rows": rows, "prompt": prompt, "tokens": tokens}
    told["invariant"] = invariance(exact, texts, rows, prompt, written)
    plain = plain.to(device)
    told["divergence"] = divergence(exact, plain, texts[: min(rows, COMPARED)], prompt, written)
    decoders: dict[str, Decoder] = {"exact": exact}
    told["seconds_to_read"], told["milliseconds_a_step"] = {}, {}
    for dtype in compared_dtypes:
        if device != "cpu" or dtype == "float32":
            decoders[dtype] = TransformersDecoder(plain.to(getattr(torch, dtype)))
            timed(decoders.pop(dtype), dtype, texts[:rows], prompt, written, told)
    contexts = timed(exact, "exact", texts[:rows], prompt, written, told)
    told["bytes_a_step"] = sum(bytes_of(exact, rows, texts[:rows], tokens).values())
    told["bytes"] = bytes_of(exact, rows, texts[:rows], tokens)
    told["bound_milliseconds"] = told["bytes_a_step"] / BANDWIDTH * 1e3
    told["kernels"] = kernels(contexts, written, rows) if device != "cpu" else {}
    return told


def opened(model: str | Path | Mapping[str, Any]) -> Any:
    """The transformers model in float32 on the processor."""
    if isinstance(model, Mapping):
        torch.manual_seed(0)
        own = AutoModelForCausalLM.from_config(LlamaConfig(**model), dtype=torch.float32)
    else:
        own = AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32, local_files_only=True
        )
    return own.eval().requires_grad_(False)


def random_texts(number: int, longest: int, vocabulary: int, *, seed: int = 0) -> list[list[int]]:
    """Token sequences of 1..longest ids; the first is the longest."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (number,), generator=generator).tolist()
    lengths[0] = longest
    return [torch.randint(vocabulary, (n,), generator=generator).tolist() for n in lengths]


def decoded(decoder, texts, prompt, written, steps, **options) -> torch.Tensor:
    """Logits of some steps (steps, R, V) on the processor, after the prompts were read."""
    reading = Reading(prompt, len(written))
    contexts = DeviceContexts(decoder, texts, reading, **options)
    own = []
    for step in range(steps):
        generated = torch.full((len(texts),), step)
        own.append(contexts.next_logits(written[step], generated).cpu().clone())
    return torch.stack(own)


def equal_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.view(torch.int32), right.view(torch.int32))


def invariance(decoder, texts, rows, prompt, written) -> dict[str, bool]:
    """Bits of the first rows among others, fewer, in another order, with changed neighbours."""
    steps = min(3, len(written))
    together = decoded(decoder, texts[:rows], prompt, written[:, :rows], steps)
    checks = {}
    for fewer in sorted({min(rows, n) for n in (1, 16, 64)}):
        own = decoded(decoder, texts[:fewer], prompt, written[:, :fewer], steps)
        checks[f"{fewer} of {rows} rows"] = equal_bits(own, together[:, :fewer])
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(1))
    mixed = [texts[index] for index in order.tolist()]
    own = decoded(decoder, mixed, prompt, written[:, order], steps)
    checks["another order"] = equal_bits(own, together[:, order])
    changed = [texts[0], *(texts[-1] for _ in range(rows - 1))]
    own = decoded(decoder, changed, prompt, written[:, :rows], steps)
    checks["changed neighbours"] = equal_bits(own[:, 0], together[:, 0])
    few, cut = texts[: min(rows, 16)], max(1, prompt // 3)
    own = decoded(decoder, few, prompt, written[:, : len(few)], steps, tokens_per_pack=cut)
    checks["prompts cut into other passes"] = equal_bits(own, together[:, : len(few)])
    own = token_by_token(decoder, texts[0], min(prompt, 150))
    checks["one token at a time"] = equal_bits(*own)
    checks["nothing is constant"] = not equal_bits(together[0], together[-1])
    return checks


def token_by_token(decoder, text, length) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits after a text that a prefill read, and after one that steps read."""
    text, nothing = text[:length], torch.zeros(1, dtype=torch.long)
    whole = decoder.open([text], prompt_columns=length, max_new_tokens=1)
    logits = whole.next_logits(nothing, nothing).cpu().clone()
    steps = decoder.open([text[:1]], prompt_columns=1, max_new_tokens=length)
    for place, token in enumerate(text):
        own = steps.next_logits(torch.tensor([token]), torch.tensor([place]))
    return logits, own.cpu().clone()


@torch.no_grad()
def divergence(decoder, plain, texts, prompt, written) -> dict[str, float]:
    """Mean KL(float32 || exact) of next-token distributions, over rows and steps."""
    steps = len(written)
    own = decoded(decoder, texts, prompt, written[:, : len(texts)], steps)
    divergences, agreed = [], []
    for row, text in enumerate(texts):
        ids = torch.tensor([[*text, *written[1:, row].tolist()]], device=plain.device)
        expected = plain(ids).logits[0, -steps:].float().log_softmax(-1)
        got = own[:, row].to(plain.device).log_softmax(-1)
        divergences.append((expected.exp() * (expected - got)).sum(-1).mean().item())
        agreed.append((expected.argmax(-1) == got.argmax(-1)).float().mean().item())
    mean = sum(divergences) / len(divergences)
    return {"kl_nats": mean, "same_first": sum(agreed) / len(agreed)}


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(decoder, name, texts, prompt, written, told) -> Any:
    """Reads the prompts and takes all steps; each step's logits are waited for once at the end."""
    wait()
    started = time.perf_counter()
    contexts = decoder.open(texts, prompt_columns=prompt, max_new_tokens=len(written))
    wait()
    told["seconds_to_read"][name] = time.perf_counter() - started
    written = written[:, : len(texts)].to(decoder.device)
    generated = [torch.full_like(written[0], step) for step in range(len(written))]
    seconds = []
    for _ in range(3):  # The first time, graphs are captured.
        wait()
        started = time.perf_counter()
        for tokens, count in zip(written, generated, strict=True):
            contexts.next_logits(tokens, count)
        wait()
        seconds.append((time.perf_counter() - started) / len(written))
    told["milliseconds_a_step"][name] = min(seconds) * 1e3
    passes = getattr(contexts, "_captured", None)
    told.setdefault("not_captured", {})[name] = getattr(passes, "refused", "no graph")
    return contexts


def bytes_of(decoder, rows, texts, tokens) -> dict[str, int]:
    """Bytes that a step at the middle of a document moves at least."""
    shape, own = decoder.shape, decoder.device_weights
    products = [own.vocabulary]
    for layer in own.layers:
        products += [
            layer.query_key_value, layer.attention_output, layer.gate_and_up, layer.down
        ]  # fmt: skip
    seen = sum(map(len, texts)) + rows * tokens // 2
    return {
        "weights": sum(each.integers.numel() for each in products),
        "cache": seen * shape.layers * 2 * shape.groups * (shape.depth + 4),
        "sums": rows * sum(each.stride for each in products) * 4 * 2,
        "logits": rows * shape.vocabulary * 4,
    }


def kernels(contexts, written, rows) -> dict[str, float]:
    """Microseconds a step by kernel, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    steps = min(8, len(written))
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for step in range(steps):
            contexts.next_logits(written[step, :rows], torch.full((rows,), step))
        wait()
    spent = {each.key: each.self_device_time_total / steps for each in profiled.key_averages()}
    longest = sorted(spent.items(), key=lambda item: -item[1])[:16]
    return {name[:60]: round(microseconds, 1) for name, microseconds in longest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--tiny", action="store_true")
    for name, default in (("rows", 256), ("prompt", 500), ("tokens", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    own = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    told = measure(TINY if own.tiny else own.folder, own.rows, own.prompt, own.tokens, device)
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
