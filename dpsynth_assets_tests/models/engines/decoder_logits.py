"""What an engine's decoder computes, which no engine tells."""

from contextlib import contextmanager

import torch

from dpsynth_assets.models.transformers_decoder.residual_stream import decoder_layers


@contextmanager
def observed(model, layer=0):
    """Rows and columns of what enters a decoder layer, one a pass."""
    shapes = []
    hook = decoder_layers(model)[layer].register_forward_pre_hook(
        lambda _module, inputs: shapes.append(tuple(inputs[0].shape[:2]))
    )
    yield shapes
    hook.remove()


def next_logits(engine, prompts, added=None):
    """Logits of each prompt's next token, from the decoder."""
    longest = max(map(len, prompts))
    room = {"prompt_columns": longest, "max_new_tokens": 1}
    contexts = engine.decoder.open(prompts, added=added or {}, **room)
    start = torch.zeros(len(prompts), dtype=torch.long)
    return contexts.next_logits(start, start).numpy().copy()
