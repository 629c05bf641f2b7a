"""How far company moves a row's logits: what `logit_slack` is charged for.

The same contexts decode the same tokens alone, among others, at other places and beside changed
neighbours; the largest move of a logit of theirs is told. A measured move is no bound.
"""

import numpy as np

from benchmarks.on_a_gpu.parts import Tell

_NAMES = ("width", "layers", "heads", "groups", "feed_forward", "vocabulary")
SHAPES = {
    "smollm2": (576, 30, 9, 3, 1536, 49152),
    "llama 1b": (2048, 16, 32, 8, 8192, 128256),
    "tiny": (64, 2, 4, 2, 128, 512),
}


def measure(device: str, tell: Tell, *, tiny: bool) -> None:
    """Moves for a small and a larger shape, in float32 and, on a card, bfloat16."""
    names = ["tiny"] if tiny else ["smollm2", "llama 1b"]
    for name in names:
        for dtype in ("float32",) if device == "cpu" else ("float32", "bfloat16"):
            tell(shape=name, dtype=dtype, **moves(name, dtype, device, tiny=tiny))


def moves(name: str, dtype: str, device: str, *, tiny: bool) -> dict[str, float]:
    """Largest move for each kind of company, in logits; the spread of logits beside it."""
    import torch

    from dpsynth_assets.models.transformers_decoder.decoder import TransformersDecoder

    model = random_llama(dict(zip(_NAMES, SHAPES[name], strict=True)), dtype, device)
    columns, steps, watched = (12, 3, 4) if tiny else (96, 6, 16)
    sizes = (16, 32) if tiny else (16, 64, 256)
    draw = np.random.default_rng(0)
    prompts = [
        draw.integers(3, 500, draw.integers(columns // 2, columns + 1)).tolist()
        for _ in range(2 * max(sizes))
    ]
    own, others, changed = prompts[:watched], prompts[watched : max(sizes)], prompts[max(sizes) :]
    decoder = TransformersDecoder(model)

    def logits(rows: list[list[int]], first: int) -> torch.Tensor:
        contexts = decoder.open(rows, prompt_columns=columns, max_new_tokens=steps + 1)
        found = []
        for step in range(steps):
            tokens = torch.full((len(rows),), 7 + step, dtype=torch.long)
            found.append(
                contexts.next_logits(tokens, torch.full_like(tokens, step))[first:][
                    :watched
                ].clone()
            )
        return torch.stack(found)

    alone = logits(own, 0)
    found = {"spread": float(alone.std())}
    for size in sizes[1:]:
        rest = others[: size - watched]
        moved = (logits([*own, *rest], 0) - alone).abs().max()
        last = (logits([*rest, *own], len(rest)) - alone).abs().max()
        found[f"rows_{size}"] = float(max(moved, last))
    rest = max(sizes) - watched
    first, second = (logits([*own, *each[:rest]], 0) for each in (others, changed))
    found["changed_neighbours"] = float((first - second).abs().max())
    found["one_neighbour_fewer"] = float(
        (first - logits([*own, *others[: rest - 1]], 0)).abs().max()
    )
    return found


def random_llama(shape: dict, dtype: str, device: str):
    """A Llama of random weights whose logits are spread out as a trained model's."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    from benchmarks.decoding import spread_out

    config = LlamaConfig(
        vocab_size=shape["vocabulary"],
        hidden_size=shape["width"],
        intermediate_size=shape["feed_forward"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["groups"],
        max_position_embeddings=2048,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    return spread_out(model.eval(), 3.0)
