"""How MAUVE, and the order of corpora by it, changes with its embedder, scaling and clusters.

    PYTHONPATH=. python benchmarks/mauve_settings.py --real FILE --corpora FILE FILE ...

Files are Parquet with a column `text`. One setting is changed at a time. `same order` is the share
of pairs of corpora that stand in the same order as by the defaults.

**Source** Amin et al. 2025, table 6 (embedders); EPSVec, Figure 7 (scaling, clusters).
"""

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from dpsynth_assets.datasets import TextEmbedderSpec
from dpsynth_assets.metrics.embedding_distances import MINIMUM_ROWS, MauveSettings, mauve_score
from dpsynth_assets.models.text_embedder import TextEmbedder

CHANGES = {"scaling_factor": (0.9, 2.0, 10.0), "rows_per_cluster": (5, 20, 40)}


def main() -> None:
    arguments = parse()
    texts = {path.stem: pl.read_parquet(path)["text"].to_list() for path in arguments.corpora}
    real = pl.read_parquet(arguments.real)["text"].to_list()
    rows = min(arguments.rows, len(real), *map(len, texts.values()))
    if rows < MINIMUM_ROWS:
        raise SystemExit(f"Expected {MINIMUM_ROWS} rows of every file or more, got {rows}.")
    lines = []
    for name, settings in asked(arguments.embedders, arguments.tokens):
        declared = settings.embedder or TextEmbedderSpec()
        embedder = TextEmbedder(declared.model, declared.max_tokens)
        features = embedder.embed(real[:rows], public=True)
        scores = {
            corpus: mauve_score(features, embedder.embed(own[:rows], public=True), settings).value
            for corpus, own in texts.items()
        }
        lines.append({"setting": name, "rows": rows, "scores": scores})
        lines[-1]["same_order"] = same_order(lines[0]["scores"], scores)
        if not arguments.json:
            told = ", ".join(f"{corpus} {score:.3f}" for corpus, score in scores.items())
            print(f"{name}: {told}; same order {lines[-1]['same_order']:.2f}")
    if arguments.json:
        print(json.dumps(lines, indent=1))


def asked(embedders: list[str], tokens: list[int]) -> Iterator[tuple[str, MauveSettings]]:
    """The defaults, then each other value of each setting."""
    yield "defaults", MauveSettings()
    for field, values in CHANGES.items():
        for value in values:
            yield f"{field} {value}", MauveSettings(**{field: value})
    own = [TextEmbedderSpec(max_tokens=most) for most in tokens]
    for each in [*own, *(TextEmbedderSpec(model=model) for model in embedders)]:
        name = f"{each.model or 'all-MiniLM-L6-v2'}, {each.max_tokens} tokens"
        yield name, MauveSettings(embedder=each)


def same_order(first: dict[str, float], second: dict[str, float]) -> float:
    """Share of pairs of corpora in the same order by both; 1 without a pair."""
    pairs = list(itertools.combinations(first, 2))
    alike = [(first[a] - first[b]) * (second[a] - second[b]) > 0 for a, b in pairs]
    return float(np.mean(alike)) if alike else 1.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", type=Path, required=True)
    parser.add_argument("--corpora", type=Path, nargs="+", required=True)
    parser.add_argument("--embedders", nargs="*", default=[], help="sentence-transformers models")
    parser.add_argument("--tokens", type=int, nargs="*", default=[16, 32])
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
