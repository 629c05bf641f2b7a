"""Whether the decoder computes the logits of each architecture: packed beside transformers' own.

    python benchmarks/model_equality.py [--dtype bfloat16]

Random models of small configurations; rows of different lengths share a prefix, outgrow the
sliding window where there is one, and begin again. Needs torch, transformers and the package.
"""

import argparse
from typing import Any

import torch

from dpsynth_assets.models.transformers_decoder.opening import compared_logits

_TEXT = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
_WINDOW = {"sliding_window": 16}
_GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 8}
_LAYERS = {"layer_types": ["sliding_attention", "full_attention"] * 2}
_LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
}
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def configurations() -> dict[str, Any]:
    """Small configurations of transformers by name."""
    import transformers as t

    gemma3 = _TEXT | _WINDOW | _GEMMA | _LAYERS
    return {
        "deepseek3": t.DeepseekV3Config(**_TEXT | _LATENT),
        "llama": t.LlamaConfig(**_TEXT),
        "mistral": t.MistralConfig(**_TEXT, **_WINDOW),
        "qwen2": t.Qwen2Config(**_TEXT),
        "qwen3": t.Qwen3Config(**_TEXT, head_dim=8),
        "gemma": t.GemmaConfig(**_TEXT, head_dim=8),
        "gemma2": t.Gemma2Config(**_TEXT, **_WINDOW, **_GEMMA, attn_logit_softcapping=1.0),
        "gemma3 text": t.Gemma3TextConfig(**gemma3),
        "gemma3": t.Gemma3Config(text_config=gemma3, vision_config=_VISION, mm_tokens_per_image=4),
        "olmo3": t.Olmo3Config(**_TEXT, **_WINDOW, **_LAYERS),
        "phi": t.PhiConfig(**_TEXT),
        "phi3": t.Phi3Config(**_TEXT, **_WINDOW),
        "gpt2": t.GPT2Config(**_TEXT),
        "smollm3": t.SmolLM3Config(**_TEXT, no_rope_layers=[1, 1, 1, 0]),
    }


def random_model(config: Any, device: str = "cpu", dtype: str = "float32") -> Any:
    """A model of a configuration with random weights."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    return model.to(device, getattr(torch, dtype)).eval()


def differences(device: str, dtype: str = "float32") -> dict[str, float]:
    """The largest difference of a logit, in standard deviations of logits, by configuration."""
    found = {}
    for name, config in configurations().items():
        packed, own = compared_logits(random_model(config, device, dtype))
        found[name] = float((packed - own).abs().max() / own.std())
    return found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name, apart in differences(device, parser.parse_args().dtype).items():
        print(f"{name:12} {apart:.1e}")


if __name__ == "__main__":
    main()
