"""A small causal model, whose next-word accuracy after training measures a corpus.

Vocabulary, size, start and training budget are public constants, the same for every corpus, so that
what differs between two models is the text they read.

**Source** CTCL, section 4.1.3, after Xie et al. 2024: causal models of the 10M class with BERT's
vocabulary, linear decay. Theirs start from BERT's pretrained weights; ours starts from MiniLM's
word embeddings, reduced to its width, and learns the rest from the corpus.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.datasets.evaluation_section import NextWordSettings
from dpsynth_assets.models.language_model import IGNORED, batches_by_length, padded, token_losses
from dpsynth_assets.models.text_embedder import packaged_model

if TYPE_CHECKING:
    import torch

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
        """
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

    def embeddings(self, width: int) -> np.ndarray:
        """Reads public embeddings of the pieces, reduced to their first principal components.

        Args:
            width: d; at most 384 components, the rest stays zero.

        Returns:
            float32 (V, d), with a standard deviation of one over all entries.
        """
        from safetensors import safe_open

        with safe_open(str(packaged_model() / "model.safetensors"), "numpy") as file:
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


@lru_cache(maxsize=1)
def _all_pieces() -> tuple[str, ...]:
    """BERT's vocabulary by row of its embedding table."""
    return tuple((packaged_model() / "vocab.txt").read_text(encoding="utf-8").splitlines())


def _rows(vocabulary: int) -> tuple[int, ...]:
    """Rows of the pieces taken: the special ones we use, then the others in BERT's order."""
    everything = _all_pieces()
    special = [everything.index(piece) for piece in _SPECIAL]
    others = [row for row, piece in enumerate(everything) if not _is_reserved(piece)]
    return (*special, *others[: vocabulary - len(special)])


def _is_reserved(piece: str) -> bool:
    return piece.startswith("[") and piece.endswith("]") and len(piece) > 2


SETTINGS_FILE = "next_word_settings.json"


@dataclass(frozen=True)
class NextWordScores:
    """Scores of a model's predictions of real text.

    Attributes:
        accuracy: Share of tokens that were the most likely one.
        perplexity: e to the mean loss of a token, in nats; tokens outside the vocabulary left out.
        tokens: Tokens predicted.
    """

    accuracy: float
    perplexity: float
    tokens: int


def new_next_word_model(settings: NextWordSettings) -> Any:
    """Builds the start that every corpus gets: a Llama with MiniLM's embeddings, tied."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    pieces = PublicWordPieces(settings.vocabulary)
    scale = settings.width**-0.5
    config = LlamaConfig(
        vocab_size=len(pieces),
        hidden_size=settings.width,
        intermediate_size=settings.feed_forward,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=settings.max_document_tokens + 2,
        tie_word_embeddings=True,
        initializer_range=0.5 * scale,
        bos_token_id=pieces.begin_token_id,
        eos_token_id=pieces.end_token_id,
        pad_token_id=pieces.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model: Any = LlamaForCausalLM(config)
    start = torch.from_numpy(pieces.embeddings(settings.width)) * (0.5 * scale)
    model.get_input_embeddings().weight.data.copy_(start)
    return model.to(settings.device)


def encode_texts(texts: Sequence[str], settings: NextWordSettings) -> list[np.ndarray]:
    """Encodes texts that have words; each begins and ends with its own token."""
    pieces = PublicWordPieces(settings.vocabulary)
    encoded = pieces.encode(texts, settings.max_document_tokens)
    return [document for document in encoded if len(document) > 2]


def train_next_word_model(model: Any, texts: Sequence[str], settings: NextWordSettings) -> None:
    """Spends the token budget on a corpus, in whole passes as far as they go.

    Raises:
        ValueError: If no text has a word.
    """
    import torch

    documents = encode_texts(texts, settings)
    if not documents:
        raise ValueError("Expected at least one text with a word to train on, got none.")
    optimizers, tokens = _optimizers(model, settings), 0
    with _threads(settings.threads):
        model.train()
        for batch in _batches(documents, settings):
            share = tokens / settings.token_budget
            losses, counted = _losses(model, batch)
            (losses.sum() / counted).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            _step(optimizers, _schedule(share, settings.warmup_share))
            tokens += counted
        model.eval()


def score_next_words(
    model: Any, texts: Sequence[str], settings: NextWordSettings
) -> NextWordScores:
    """Predicts every token of the first `score_texts` texts that have words.

    Raises:
        ValueError: If no text has a word.
    """
    import torch

    documents = sorted(encode_texts(texts[: settings.score_texts], settings), key=len)
    if not documents:
        raise ValueError("Expected at least one text with a word to test on, got none.")
    hits = known = tokens = 0
    loss = 0.0
    model.eval()
    with torch.inference_mode(), _threads(settings.threads):
        for start in range(0, len(documents), 64):
            counts = _score(model, _batch(documents[start : start + 64], settings))
            hits, known, tokens = hits + counts[0], known + counts[1], tokens + counts[2]
            loss += counts[3]
    perplexity = math.exp(min(loss / known, 700.0)) if known else math.inf
    return NextWordScores(accuracy=hits / tokens, perplexity=perplexity, tokens=tokens)


def next_word_targets(rows: "torch.Tensor") -> "torch.Tensor":
    """The token after each position, [B, T - 1]; `IGNORED` after the end of a document."""
    targets = rows[:, 1:]
    return targets.masked_fill(targets == PublicWordPieces.pad_token_id, IGNORED)


def _score(model: Any, rows: "torch.Tensor") -> tuple[int, int, int, float]:
    """Counts hits, known tokens, tokens, and the loss of known tokens; ends are not counted."""
    from torch.nn.functional import cross_entropy

    logits = model(input_ids=rows[:, :-1], use_cache=False).logits.float()
    targets = next_word_targets(rows)
    words = (targets != IGNORED) & (targets != PublicWordPieces.end_token_id)
    known = words & (targets != PublicWordPieces.unknown_token_id)
    loss = cross_entropy(logits[known], targets[known], reduction="sum")
    hits = (logits.argmax(dim=-1) == targets) & known
    return int(hits.sum()), int(known.sum()), int(words.sum()), float(loss)


def _losses(model: Any, rows: "torch.Tensor") -> tuple["torch.Tensor", int]:
    """Cross-entropy of every target, and how many there are."""
    targets = next_word_targets(rows)
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return token_losses(logits, targets), int((targets != IGNORED).sum())


def _batch(documents: Sequence[np.ndarray], settings: NextWordSettings) -> "torch.Tensor":
    return padded(documents, PublicWordPieces.pad_token_id).to(settings.device)


def _batches(
    documents: Sequence[np.ndarray], settings: NextWordSettings
) -> Iterator["torch.Tensor"]:
    """Yields batches of about `batch_tokens` tokens until the budget is spent."""
    draw, left = np.random.default_rng(settings.seed), settings.token_budget
    lengths = [len(document) for document in documents]
    size = max(1, round(settings.batch_tokens / np.mean(lengths)))
    while left > 0:
        for rows in batches_by_length(lengths, size, draw):
            batch = [documents[row] for row in rows]
            yield _batch(batch, settings)
            left -= sum(len(document) - 1 for document in batch)
            if left <= 0:
                return


def _optimizers(model: Any, settings: NextWordSettings) -> list[Any]:
    """Muon for the matrices inside the layers, AdamW for embeddings and norms."""
    import torch

    inner = [p for name, p in model.named_parameters() if p.dim() == 2 and ".layers." in name]
    chosen = {id(parameter) for parameter in inner}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    adam = torch.optim.AdamW(
        rest,
        lr=settings.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=settings.weight_decay,
        fused=True,
    )
    muon = torch.optim.Muon(inner, lr=settings.matrix_learning_rate, weight_decay=0.0)
    return [muon, adam]


def _step(optimizers: Sequence[Any], factor: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("base", group["lr"]) * factor
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _schedule(share: float, warmup_share: float) -> float:
    """Linear warm-up, then linear decay towards zero."""
    if share < warmup_share:
        return 0.1 + 0.9 * share / warmup_share
    return max(0.01, (1.0 - share) / (1.0 - warmup_share))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def save_next_word_model(model: Any, settings: NextWordSettings, folder: Path) -> None:
    """Writes weights (safetensors) and settings to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    text = settings.model_dump_json(indent=2)
    (folder / SETTINGS_FILE).write_text(text + "\n", encoding="utf-8")


def load_next_word_model(folder: Path) -> tuple[Any, NextWordSettings]:
    """Reads what `save_next_word_model` wrote."""
    from transformers import LlamaForCausalLM

    text = (folder / SETTINGS_FILE).read_text(encoding="utf-8")
    settings = NextWordSettings.model_validate_json(text).model_copy(update={"device": "cpu"})
    model: Any = LlamaForCausalLM.from_pretrained(folder)
    return model.eval(), settings
