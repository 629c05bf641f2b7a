"""Small transformers of random weights, and what their clipped sums are compared with."""

import torch
import transformers

VOCABULARY = 48
TOKENS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
NARROW = {"hidden_size": 16, "num_hidden_layers": 2, **TOKENS}
ATTENTION = {
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
}
RELATIVE = {
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 6,
    "dropout_rate": 0.0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
CONFIGS = {
    "Bart": {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
        "max_position_embeddings": 32,
        "scale_embedding": True,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": None,
        **TOKENS,
    },
    "Llama": NARROW | ATTENTION | {"attention_bias": True},
    "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, **TOKENS},
    "Bert": NARROW | ATTENTION | {"num_hidden_layers": 1, "num_labels": 3},
    "Cohere": NARROW | ATTENTION,
    "Nemotron": NARROW | ATTENTION,
    "Mamba": NARROW | {"state_size": 4},
    **dict.fromkeys(("T5", "MT5", "UMT5"), RELATIVE),
}
HEADS = {
    "GPT2": "LMHeadModel",
    "Bert": "ForSequenceClassification",
    **dict.fromkeys(("Bart", "T5", "MT5", "UMT5"), "ForConditionalGeneration"),
}


def small(name, **changes):
    """A model of this architecture, the same each time."""
    fields = {"vocab_size": VOCABULARY} | CONFIGS[name] | changes
    config = getattr(transformers, f"{name}Config")(**fields)
    torch.manual_seed(0)
    return getattr(transformers, name + HEADS.get(name, "ForCausalLM"))(config).eval()


def clipped_sum(gradients, parts, bound):
    """Flat float64 clipped sum over all parameters."""
    found, rows = gradients.private_clipped_sums(parts, bound)
    assert rows == sum(part.examples for part in parts)
    return torch.cat([each.flatten() for each in found])


def one_at_a_time(model, losses, examples):
    """(B, P) float64 gradients by autograd, of (1,) losses of the model on one row at a time."""
    wide, found = model.double(), []
    trained = [each for each in wide.parameters() if each.requires_grad]
    for row in range(examples):
        total = losses(wide, [row]).sum()
        gradients = torch.autograd.grad(total, trained, allow_unused=True)
        pairs = zip(gradients, trained, strict=True)
        found.append(torch.cat([(0 * p if g is None else g).flatten() for g, p in pairs]))
    model.float()
    return torch.stack(found).detach()
