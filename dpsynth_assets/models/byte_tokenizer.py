"""Trains the byte-level BPE of the embedded language model and saves it for transformers."""

import json
from collections.abc import Iterable
from pathlib import Path

from dpsynth_assets.models.document_format import EMBEDDED
from dpsynth_assets.models.language_model import FORMAT_FILE

BEGIN, PAD = "<begin>", "<pad>"


def train_tokenizer(texts: Iterable[str], vocabulary: int, folder: Path) -> None:
    """Writes a tokenizer and the name of the document format beside it.

    Every digit is a token of its own, so that numbers are copied one digit at a time; any text can
    be written, since all bytes are tokens.

    Args:
        texts: Public documents as they will stand in a prompt, labels included.
        vocabulary: Tokens at most, special tokens and 256 bytes included.
        folder: Receives the files that `AutoTokenizer` reads.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BEGIN, EMBEDDED.end or "", PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=EMBEDDED.end, pad_token=PAD
    ).save_pretrained(folder)
    name = json.dumps({"name": EMBEDDED.name})
    (folder / FORMAT_FILE).write_text(name + "\n", encoding="utf-8")
