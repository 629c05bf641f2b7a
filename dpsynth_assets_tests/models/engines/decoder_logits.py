"""Logits of an engine's decoder, which no engine tells."""

import torch


def next_logits(engine, prompts, added=None):
    """Logits of each prompt's next token, from the decoder."""
    longest = max(map(len, prompts))
    room = {"prompt_columns": longest, "max_new_tokens": 1}
    contexts = engine.decoder.open(prompts, added=added or {}, **room)
    start = torch.zeros(len(prompts), dtype=torch.long)
    return contexts.next_logits(start, start).numpy().copy()
