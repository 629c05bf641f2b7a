"""Untrained models of four architectures, and pairs as their tokens."""

import pytest


def encoded(generator, conditions, documents, condition_tokens=None, document_tokens=None):
    """Pads pairs into one batch, as training does."""
    encoder = generator.encoder
    return encoder.pad(
        encoder.condition_ids(conditions, condition_tokens or generator.max_condition_tokens),
        encoder.document_ids(documents, document_tokens or generator.max_document_tokens),
    )


@pytest.fixture(scope="session")
def random_models(toy_generator_folder, tmp_path_factory):
    """Folders of untrained models of four architectures that share the tiny tokenizer."""
    import torch
    from transformers import (
        AutoTokenizer,
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        T5Config,
        T5ForConditionalGeneration,
    )

    tokenizer = AutoTokenizer.from_pretrained(toy_generator_folder)
    ids = {
        "vocab_size": len(tokenizer), "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    torch.manual_seed(0)
    models = {
        "t5": T5ForConditionalGeneration(T5Config(
            d_model=32, d_kv=16, d_ff=48, num_layers=1, num_decoder_layers=2, num_heads=2,
            decoder_start_token_id=tokenizer.pad_token_id, dropout_rate=0.0, **ids,
        )),
        "gpt2": GPT2LMHeadModel(GPT2Config(
            n_embd=32, n_layer=2, n_head=2, n_positions=128, **ids,
        )),
        "llama": LlamaForCausalLM(LlamaConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=128, **ids,
        )),
    }  # fmt: skip
    folders = {}
    for name, model in models.items():
        folders[name] = tmp_path_factory.mktemp("random") / name
        model.save_pretrained(folders[name])
        tokenizer.save_pretrained(folders[name])
    return folders
