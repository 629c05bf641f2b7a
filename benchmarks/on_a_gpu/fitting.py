"""The table of docs/gpus.md: rows that fit a card, and steps a second by a fitted model.

    PYTHONPATH=. python benchmarks/on_a_gpu/fitting.py

Shapes are those of the models' published configurations; nothing is downloaded. A step takes 1.7
times the bytes of weights, cache and logits over the bandwidth of an H100's copy, and .12 ms a
layer at least, as Gemma 2 2B's and SmolLM2's shapes did (h100.jsonl).
"""

import torch
from transformers import LlamaConfig

from dpsynth_assets.models.transformers_decoder.memory import peak_bytes

ROWS, PROMPT, TOKENS = 256, 500, 64
BANDWIDTH, OF_BOUND, SECONDS_A_LAYER = 2.97e12, 1.7, 0.12e-3
SHARE, BESIDES = 0.95, 0.6e9
CARDS = (24, 80)
MODELS = {  # parameters; layers, heads, groups, width of a head, stream, inner, vocabulary
    "HuggingFaceTB/SmolLM2-135M": (0.135e9, 30, 9, 3, 64, 576, 1536, 49152),
    "google/gemma-3-1b-pt": (1.0e9, 26, 4, 1, 256, 1152, 6912, 262144),
    "meta-llama/Llama-3.2-1B": (1.236e9, 16, 32, 8, 64, 2048, 8192, 128256),
    "Qwen/Qwen3-0.6B-Base": (0.596e9, 28, 16, 8, 128, 1024, 3072, 151936),
    "google/gemma-2-2b": (2.614e9, 26, 8, 4, 256, 2304, 9216, 256000),
    "google/gemma-3-4b-pt": (4.3e9, 34, 8, 4, 256, 2560, 10240, 262208),
    "HuggingFaceTB/SmolLM2-1.7B": (1.711e9, 24, 32, 32, 64, 2048, 8192, 49152),
    "mistralai/Mistral-7B-v0.3": (7.248e9, 32, 32, 8, 128, 4096, 14336, 32768),
}


def main() -> None:
    for name, (
        parameters,
        layers,
        heads,
        groups,
        head,
        stream,
        inner,
        vocabulary,
    ) in MODELS.items():
        config = LlamaConfig(
            num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=groups,
            head_dim=head, hidden_size=stream, intermediate_size=inner, vocab_size=vocabulary,
        )  # fmt: skip
        if "gemma-2-" in name:  # its scores and logits are capped, which takes memory
            config.attn_logit_softcapping, config.final_logit_softcapping = 50.0, 30.0
        weights, token = 2 * parameters, 4 * layers * groups * head
        fitting = [
            rows_of(config, SHARE * (0.99 * gib * 2**30 - weights - BESIDES)) for gib in CARDS
        ]
        moved = weights + ROWS * (PROMPT + TOKENS / 2) * token + 2 * ROWS * vocabulary * 4
        seconds = max(OF_BOUND * moved / BANDWIDTH, SECONDS_A_LAYER * layers)
        print(
            f"| `{name}` | {weights / 1e9:.1f} GB | {token / 1e3:.0f} kB | "
            f"{' | '.join(f'{rows:,}' for rows in fitting)} | {float(f'{1 / seconds:.2g}'):.0f} |"
        )


def rows_of(config: LlamaConfig, room: float) -> int:
    rows = 0
    while peak_bytes(config, rows + 16, PROMPT, TOKENS, torch.bfloat16) <= room:
        rows += 16
    return rows


if __name__ == "__main__":
    main()
