"""Logits of an engine's decoder, which no engine tells."""

import torch


def next_logits(engine, prompts, added=None):
    """Logits of each prompt's next token, from the decoder."""
    longest = max(map(len, prompts))
    contexts = engine.decoder.open(prompts, prompt_columns=longest, max_new_tokens=1, added=added)
    start = torch.zeros(len(prompts), dtype=torch.long)
    return contexts.next_logits(start, start).numpy().copy()
