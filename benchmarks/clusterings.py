"""Sizes and V-measures of k-means, DP k-means and public centres (Amin et al. 2025, Table 2).

    PYTHONPATH=. python benchmarks/clusterings.py [ag_news yelp demo] [--records 5000] [--seeds 3]

Real text lies where DPSYNTH_REAL_DATA says, or in ../shared/data; a corpus that is not there is
passed over. All of it is public, so that private clusterings cost nothing here. Agreement is with
non-private k-means, as in the paper, and with the corpus's labels. DP k-means comes twice: random
hyperplanes (Chang and Kamath 2021), and the principal directions of the public embeddings.
"""

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from dp_kmeans.agreement import private_kmeans, score_clusterings
from dp_kmeans.noisy_kmeans import (
    fit_noisy_kmeans,
    principal_view,
    random_view,
)

from dpsynth_assets.clustering import fit_centers, nearest_center
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.methods.shared_histograms import ClusterCounting, assign_clusters
from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.paths import project_root
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.histogram import NoisyHistogram

DELTA = 1e-6
EPSILONS = (0.1, 1.0, 10.0)
HISTOGRAM_EPSILON = 0.1
KEPT_SHARE = 5
"""The paper keeps 100 of 500 centres."""

MAX_TOKENS = 128
REFERENCE = "k-means"
PUBLIC_TEXTS = (
    ("wikipedia_movies", "extract", 1500),
    ("brown", "text", 1500),
    ("abc_news", "text", 1500),
)
DEMO_PUBLIC_TEXTS = 4500


@dataclass(frozen=True)
class Corpus:
    """Texts with labels that stand for private records, and public texts."""

    texts: list[str]
    labels: list[str]
    public: list[str]


def real_data() -> Path:
    return Path(os.environ.get("DPSYNTH_REAL_DATA", project_root().parent / "shared" / "data"))


def column(name: str, text: str, rows: int | None = None) -> list[str]:
    values = pl.read_parquet(real_data() / f"{name}.parquet")[text].drop_nulls()
    kept = values if rows is None else values.sample(min(rows, len(values)), seed=0)
    return [value for value in kept.to_list() if value.strip()]


def real(name: str, label: str) -> Corpus:
    table = pl.read_parquet(real_data() / f"{name}.parquet")
    public = [text for part in PUBLIC_TEXTS for text in column(*part)]
    return Corpus(table["text"].to_list(), table[label].cast(pl.String).to_list(), public)


def demo() -> Corpus:
    folder = project_root() / "data" / "demo"
    tickets = pl.read_ndjson(folder / "private_tickets.jsonl")
    public = pl.read_parquet(folder / "public.parquet")["text"].head(DEMO_PUBLIC_TEXTS)
    return Corpus(tickets["text"].to_list(), tickets["label"].to_list(), public.to_list())


CORPORA = {
    "ag_news": lambda: real("ag_news", "topic"),
    "yelp": lambda: real("yelp_reviews", "category"),
    "demo": demo,
}


def rebalanced(embeddings: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Nearest of the centres whose noisy count is among the largest, labels left aside."""
    rows = len(embeddings)
    names = [str(row) for row in range(rows)]
    records = pl.DataFrame(
        {"record_id": names, "unit_id": names, "text": names, "label": [""] * rows}
    )
    noise = NoisyHistogram(
        noise="laplace",
        scale=2.0 / HISTOGRAM_EPSILON,  # two histograms, ε/2 each
        relation=NeighboringRelation.ADD_REMOVE,
        max_records_per_unit=1,
    )
    counting = ClusterCounting(
        histogram=noise, labels=("",), clusters_per_label=max(1, len(centers) // KEPT_SHARE)
    )
    release = counting.release(PrivateInputs(records=records, embeddings=embeddings), centers)
    labels = np.zeros(rows, dtype=np.int64)
    return assign_clusters(embeddings, labels, centers, release.value.centers)


def clusterings(
    embeddings: np.ndarray, public: np.ndarray, clusters: int, seed: int
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Name, ε and (N,) clusters of each way."""
    reference = private_kmeans(embeddings, clusters=clusters, seed=seed)
    assert reference is not None, "Expected at least two records."
    yield REFERENCE, "inf", reference
    views = {
        "DP k-means, random directions": random_view(embeddings.shape[1], clusters, seed=seed),
        "DP k-means, public directions": principal_view(public, clusters),
    }
    for name, view in views.items():
        for epsilon in EPSILONS:
            found = fit_noisy_kmeans(
                embeddings, view, clusters=clusters, epsilon=epsilon, delta=DELTA, seed=seed
            )
            yield f"{name}, ε={epsilon:g}", f"{epsilon:g}", found.value.assign(embeddings)
    centers = fit_centers(public, clusters=clusters, seed=seed)
    yield "public centres", "0", nearest_center(embeddings, centers).astype(np.int64)
    yield "public centres, rebalanced", f"{HISTOGRAM_EPSILON:g}", rebalanced(embeddings, centers)


def print_table(name: str, corpus: Corpus, clusters: int, seeds: int) -> None:
    began = time.process_time()
    embedder = TextEmbedder(max_tokens=MAX_TOKENS)
    embeddings, public = embedder.embed(corpus.texts), embedder.embed(corpus.public)
    embedded = time.process_time() - began
    rows: dict[str, list[tuple[float, ...]]] = {}
    epsilons = {}
    for seed in range(seeds):
        made = list(clusterings(embeddings, public, clusters, seed))
        epsilons |= {way: epsilon for way, epsilon, _ in made}
        assigned = {way: found for way, _, found in made}
        for scores in score_clusterings(assigned, corpus.labels, reference=REFERENCE):
            agreements = [scores.with_reference, scores.with_labels]
            measures = [0.0 if each is None else each.v_measure for each in agreements]
            sizes = (scores.clusters, scores.usable_clusters, scores.largest_share)
            rows.setdefault(scores.name, []).append((*sizes, *measures))
    print(
        f"\n{name}: {len(embeddings)} records, {len(set(corpus.labels))} labels, {len(public)} "
        f"public texts, k = {clusters}, {seeds} seeds; {embedded:.0f} CPU-s to embed, "
        f"{time.process_time() - began - embedded:.0f} CPU-s to cluster\n"
    )
    print("| clustering | ε | clusters | of 100 or more | largest | V, k-means | V, labels |")
    print("|---|---|---|---|---|---|---|")
    for way, values in rows.items():
        found, usable, largest, reference, labels = np.mean(values, axis=0)
        spread = np.std(values, axis=0)
        print(
            f"| {way} | {epsilons[way]} | {found:.0f} | {usable:.0f} | {largest:.0%} | "
            f"{reference:.2f} ± {spread[3]:.2f} | {labels:.2f} ± {spread[4]:.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpora", nargs="*", help=f"among {', '.join(CORPORA)}; all without any")
    parser.add_argument("--records", type=int, default=5000, help="most records, the first ones")
    parser.add_argument("--clusters", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    if unknown := set(arguments.corpora) - set(CORPORA):
        parser.error(f"Expected corpora among {', '.join(CORPORA)}, got {', '.join(unknown)}.")
    for name in arguments.corpora or CORPORA:
        try:
            corpus = CORPORA[name]()
        except FileNotFoundError:
            print(f"{name}: skipped, no {real_data()}")
            continue
        kept = Corpus(
            corpus.texts[: arguments.records], corpus.labels[: arguments.records], corpus.public
        )
        print_table(name, kept, arguments.clusters, arguments.seeds)


if __name__ == "__main__":
    main()
