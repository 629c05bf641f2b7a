"""Whether a linear classifier and a fine-tuned encoder order corpora in the same way.

    DPSYNTH_REAL_DATA=FOLDER PYTHONPATH=. python benchmarks/classifiers.py ag_news yelp

Corpora of a dataset of the leaderboard: real records, real records of which half have labels drawn
at random, the public model after one real record (ceiling), the public model alone (floor). Each
trains both classifiers, which are tested on the same held-out records. `--to` keeps the corpora,
for `mauve_settings.py`.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dpsynth_assets.benchmark.cohorts import one_real_example, public_only, real_data
from dpsynth_assets.benchmark.running import DatasetBench
from dpsynth_assets.datasets import EncoderSpec
from dpsynth_assets.datasets.benchmark_spec import found_benchmark
from dpsynth_assets.metrics.comparison import compare
from dpsynth_assets.metrics.downstream import ACCURACY, ENCODER_ACCURACY, ENCODER_ON_CORPUS
from dpsynth_assets.metrics.evaluation import EvaluationSettings
from dpsynth_assets.metrics.metric import ScoredSide, Sides
from dpsynth_assets.models.text_embedder import TextEmbedder

LEADERBOARD = Path(__file__).parent / "leaderboard" / "defs.yaml"
MEASURES = (ACCURACY, ENCODER_ACCURACY, ENCODER_ON_CORPUS)


def main() -> None:
    arguments = parse()
    found = {name: scored(name, arguments) for name in arguments.datasets}
    if arguments.json:
        json.dump(found, sys.stdout, indent=1)


def scored(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Scores of every corpus of a dataset, and pairs that the classifiers order in two ways."""
    with tempfile.TemporaryDirectory() as scratch:
        bench = DatasetBench(found_benchmark(LEADERBOARD), name, Path(scratch))
        made = dict(corpora(bench, arguments))
        held_out = bench.cohort.held_out.head(arguments.held_out)
    embedder, texts = TextEmbedder(), held_out["text"].to_list()
    real = ScoredSide.of(held_out, embedder.embed(texts))
    encoder = EncoderSpec(
        epochs=arguments.epochs, runs=arguments.runs, learning_rates=(2e-4,), max_tokens=64
    )
    settings = EvaluationSettings(max_rows=arguments.rows, encoder=encoder)
    shown: dict[str, Any] = {}
    estimates: dict[str, dict[str, Any]] = {metric.name: {} for metric in MEASURES}
    for corpus, rows in made.items():
        own = rows["text"].to_list()
        labels = rows["label"].to_list()
        side = ScoredSide(features=embedder.embed(own), texts=own, labels=labels, name=corpus)
        sides = Sides(corpus=side, held_out=real, settings=settings, labelled=True)
        shown[corpus] = {}
        for metric in MEASURES:
            began = time.process_time()
            score = estimates[metric.name][corpus] = metric.of(sides)
            seconds = round(time.process_time() - began, 1)
            spread = round(score.std, 3)
            shown[corpus][metric.name] = {
                "value": round(score.value, 3), "std": spread, "processor_seconds": seconds,
            }  # fmt: skip
            told = f"{score.value:.3f} ± {spread:.3f} ({seconds:.0f} s)"
            print(f"{name}, {corpus}: {metric.title} {told}", file=sys.stderr)
    turned = list(two_ways(estimates))
    print(f"{name}: ordered in two ways: {turned or 'no pair'}", file=sys.stderr)
    return {"corpora": shown, "ordered_in_two_ways": turned, "encoder": encoder.model_dump()}


def two_ways(estimates: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Pairs whose order differs, and what the intervals of either say."""
    one, other = estimates[ACCURACY.name], estimates[ENCODER_ACCURACY.name]
    for first, second in itertools.combinations(one, 2):
        differences = (each[first].value - each[second].value for each in (one, other))
        if np.prod(np.sign(list(differences))) < 0:
            said = {
                name: compare(name, (first, each[first]), (second, each[second])).verdict
                for name, each in ((ACCURACY.name, one), (ENCODER_ACCURACY.name, other))
            }
            yield {"pair": [first, second], **said}


def corpora(
    bench: DatasetBench, arguments: argparse.Namespace
) -> Iterator[tuple[str, pl.DataFrame]]:
    """Corpora of one number of rows, made once where they are kept."""
    makers = {"real data": real_data, "ceiling": one_real_example, "floor": public_only}
    for name, make in makers.items():
        kept = None if arguments.to is None else Path(arguments.to) / bench.name / f"{name}.parquet"
        if kept is not None and kept.is_file():
            rows = pl.read_parquet(kept)
        else:
            rows = make(bench.cohort, bench.public, arguments.rows, 0)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            rows.write_parquet(kept)
            bench.cohort.held_out.write_parquet(kept.with_name("held out.parquet"))
        yield name, rows
        if name == "real data":
            yield "half of its labels drawn", half_drawn(rows)


def half_drawn(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows, every second one with the label of another row."""
    labels = rows["label"].to_numpy().copy()
    labels[::2] = np.random.default_rng(0).permutation(labels[::2])
    return rows.with_columns(label=pl.Series(labels))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("datasets", nargs="+", help="names of datasets of the leaderboard")
    parser.add_argument("--rows", type=int, default=160)
    parser.add_argument("--held-out", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--to", help="folder that corpora are kept in")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
