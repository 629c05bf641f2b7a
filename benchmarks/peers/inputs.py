"""Writes what both sides read: a tiny random model with a chat template, and private texts.

Only the speed counts, so weights are random: 4 layers, 128 wide, 8,192 tokens. The end token has
logit 0 where others have standard deviation 3, so that documents do not end early.
"""

import json
from pathlib import Path

from common import BATCH, DOCUMENTS, MODEL, WORK

VOCABULARY = 8192
CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def main() -> None:
    (WORK / "texts.json").write_text(json.dumps(private_texts(DOCUMENTS * BATCH)))
    if not (MODEL / "config.json").exists():
        write_tokenizer()
        write_model()


def private_texts(count: int) -> list[str]:
    """Messages of the demo's private mailbox, about sixty words each."""
    tickets = Path(__file__).parents[2] / "data" / "demo" / "private_tickets.jsonl"
    lines = tickets.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines[:count]]


def write_tokenizer() -> None:
    """Byte pairs of demo messages and our documentation: instructions are English too."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel()
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<begin>", "<end>"], initial_alphabet=alphabet
    )
    manuals = [path.read_text(encoding="utf-8") for path in sorted(Path("docs").glob("*.md"))]
    bpe.train_from_iterator([*private_texts(2000), *manuals], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<begin>", eos_token="<end>", pad_token="<end>"
    )
    fast.chat_template = CHAT
    fast.save_pretrained(MODEL)


def write_model() -> None:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.lm_head.weight.normal_(0, 3 / config.hidden_size**0.5)
        model.lm_head.weight[1] = 0.0
    model.save_pretrained(MODEL)


if __name__ == "__main__":
    main()
