"""CTCL and what its tables compare it with, on Yelp and AG News, at ε = ∞, 4, 2, 1.

    python benchmarks/real_text/ctcl_table.py [--size small|gpu] [--device cuda] [--seeds 1]
        [--datasets yelp,ag_news] [--epsilons inf,4,2,1] [--minutes 60] [--output FOLDER]

Needs the real corpora: DPSYNTH_REAL_DATA, or ../shared/data beside the project. Rows: `ctcl`;
`vanilla` (label-only conditions, started from a generator that was pretrained on the same public
text without conditions, as BART was); `vanilla + resample` (Yu et al. 2024, the histogram's cost
inside ε); `downstream DP-FT` (no synthetic text). Real training text (ε = ∞ of the last row) and
the public generator without private text stand above and below. Every number is measured on
held-out real text; finished parts are kept in FOLDER and not repeated.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ctcl_runs import (
    Base,
    Cohort,
    Results,
    Run,
    Size,
    downstream_scores,
    embedded,
    fine_tuned,
    label_cells,
    public_base,
    quiet,
    resampled,
    say,
    scores,
    settings_of,
    sized,
    table,
    topic_histogram,
    write,
)

METHODS = ("ctcl", "vanilla", "vanilla + resample", "downstream DP-FT")
METRICS = ("next_word_accuracy", "accuracy", "mauve")
STARS = {str(n): text for n, text in enumerate(("one", "two", "three", "four", "five"), 1)}
DATASETS = {
    "yelp": ("yelp_reviews.parquet", "stars", "review"),
    "ag_news": ("ag_news.parquet", "topic", "news"),
}


def main() -> None:
    arguments = parse()
    quiet()
    data = Path(arguments.data)
    if not data.is_dir():
        print(f"skipped: no real corpora at {data}")
        return
    size = sized(arguments.size, device=arguments.device, steps=arguments.steps,
                 batch=arguments.batch, rows=arguments.rows,
                 generator_tokens=arguments.generator_tokens)  # fmt: skip
    documents = public_documents(data, arguments.public_documents)
    base = public_base(documents, size, Path(arguments.output))
    settings = settings_of(
        size, public_documents=documents.height, private_records=arguments.private_records
    )
    results = Results(Path(arguments.output) / "ctcl_table.json", settings, arguments.minutes)
    for seed in range(arguments.seeds):
        for name in arguments.datasets.split(","):
            cohort = load_cohort(name, data, base, arguments.private_records, seed)
            for epsilon in map(float, arguments.epsilons.split(",")):
                measure(results, cohort, base, size, epsilon, seed)
    text = report(results, arguments)
    (Path(arguments.output) / "ctcl_table.md").write_text(text)
    print(text)


def measure(
    results: Results, cohort: Cohort, base: Base, size: Size, epsilon: float, seed: int
) -> None:
    """All methods on one cohort at one ε; each part is kept once it is done."""
    prefix = f"{cohort.name} seed {seed}"
    results.unit(f"{prefix} public only", lambda: public_only(cohort, base, size, seed))
    at = f"{prefix} ε={epsilon:g}"
    results.unit(f"{at} ctcl", lambda: ctcl(cohort, base, size, epsilon, seed))
    for name, keep in (("vanilla", False), ("vanilla + resample", True)):
        results.unit(
            f"{at} {name}",
            lambda keep=keep: vanilla(cohort, base, size, epsilon, seed, resample=keep),
        )
    results.unit(f"{at} downstream DP-FT", lambda: downstream_scores(cohort, size, epsilon, seed))


def ctcl(cohort: Cohort, base: Base, size: Size, epsilon: float, seed: int) -> dict:
    known = cohort.conditions(base, keywords=True)
    histogram = topic_histogram(cohort, base, size, epsilon)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(cohort=cohort, size=size, epsilon=epsilon, histogram=True, seed=seed)
        generator = fine_tuned(run, base.conditional, known, Path(folder))
        rows = write(generator, known, histogram.sample_cells(size.rows, seed), size, seed)
    return scores(rows, cohort, base, size, seed)


def vanilla(
    cohort: Cohort, base: Base, size: Size, epsilon: float, seed: int, *, resample: bool
) -> dict:
    """With resampling, twice the rows are written, of which half are kept."""
    known = cohort.conditions(base, keywords=False)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(cohort=cohort, size=size, epsilon=epsilon, histogram=resample, seed=seed)
        generator = fine_tuned(run, base.unconditional, known, Path(folder))
        count = 2 * size.rows if resample else size.rows
        rows = write(generator, known, label_cells(known, count), size, seed)
    if resample:
        histogram = topic_histogram(cohort, base, size, epsilon)
        rows = resampled(rows, cohort, base, histogram, size.rows, seed)
    return scores(rows, cohort, base, size, seed)


def public_only(cohort: Cohort, base: Base, size: Size, seed: int) -> dict:
    """The public conditional generator with labels and no private text at all."""
    from dpsynth_assets.models.conditional_generator import load_conditional_generator

    known = cohort.conditions(base, keywords=False)
    generator = load_conditional_generator(base.conditional, device=size.generator.device)
    rows = write(generator, known, label_cells(known, size.rows), size, seed)
    return scores(rows, cohort, base, size, seed)


def report(results: Results, arguments) -> str:
    """One table a dataset and metric, mean over seeds, and what each method loses from ∞ to 1."""
    epsilons = [float(value) for value in arguments.epsilons.split(",")]
    lines = []
    for dataset in arguments.datasets.split(","):
        for metric in METRICS:
            rows = []
            for method in METHODS:
                found = [mean(results, dataset, f"ε={e:g} {method}", metric) for e in epsilons]
                ends = found[0], found[-1]
                lost = None if None in ends else ends[0] - ends[1]
                rows.append([method, *found, lost])
            floor = mean(results, dataset, "public only", metric)
            rows.append(["public text only", *[floor] * len(epsilons), None])
            header = [f"{dataset}: {metric}", *[f"ε = {e:g}" for e in epsilons], "lost"]
            lines.append(table(header, rows))
    return "\n".join(lines)


def mean(results: Results, dataset: str, name: str, metric: str) -> float | None:
    """Mean over the seeds that are done; None where none is."""
    found = [
        values[metric]
        for unit, values in results.units.items()
        if unit.startswith(f"{dataset} seed ") and unit.endswith(name) and metric in values
        and unit.split(" ", 3)[3] == name
    ]  # fmt: skip
    return float(np.mean(found)) if found else None


def load_cohort(name: str, data: Path, base: Base, limit: int, seed: int) -> Cohort:
    """Splits a corpus into four fifths to train on and a fifth to test on."""
    file, label, kind = DATASETS[name]
    frame = pl.read_parquet(data / file).select(
        pl.col("text"), pl.col(label).cast(pl.String).alias("label")
    )
    frame = frame.filter(pl.col("text").str.len_chars() > 0).sample(
        n=min(limit, frame.height), shuffle=True, seed=100 + seed
    )
    cut = frame.height * 4 // 5
    say(f"embedding {frame.height} records of {name}")
    whole = embedded(base.embedder, frame["text"].to_list(), frame["label"].to_list())
    labels = tuple(sorted(set(whole.labels)))
    texts = tuple(f"{STARS[value]} star review" if value in STARS else value for value in labels)
    return Cohort(
        name=name,
        train=whole.take(range(cut)),
        test=whole.take(range(cut, frame.height)),
        labels=labels,
        label_texts=texts,
        document_type=kind,
    )


def public_documents(data: Path, limit: int) -> pl.DataFrame:
    """Encyclopedia, book and news text, as many of each as there are, up to the limit."""
    parts = [
        pl.read_parquet(data / "wikipedia_movies.parquet").select(
            pl.col("extract").alias("text"), pl.lit("encyclopedia").alias("document_type")
        ),
        pl.read_parquet(data / "wikitext2.parquet").select(
            "text", pl.lit("encyclopedia").alias("document_type")
        ),
        pl.read_parquet(data / "brown.parquet").select(
            "text", pl.lit("book").alias("document_type")
        ),
        pl.read_parquet(data / "abc_news.parquet").select(
            "text", pl.lit("news").alias("document_type")
        ),
    ]
    whole = [part.drop_nulls().filter(pl.col("text").str.len_chars() > 40) for part in parts]
    share = max(1, limit // len(whole))
    return pl.concat(
        [part.sample(n=min(share, part.height), shuffle=True, seed=0) for part in whole]
    ).sample(fraction=1.0, shuffle=True, seed=1)


def parse():
    here = Path(__file__).resolve()
    default = os.environ.get("DPSYNTH_REAL_DATA", here.parents[3] / "shared" / "data")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=str(default))
    parser.add_argument("--size", default="small", choices=("tiny", "small", "gpu"))
    parser.add_argument("--device", default=None, help="torch device; the size's own if not given")
    parser.add_argument("--datasets", default="yelp,ag_news")
    parser.add_argument("--epsilons", default="inf,4,2,1")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0, help="no new part starts after this")
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--generator-tokens", type=int, default=None, help="public pretraining")
    parser.add_argument("--private-records", type=int, default=10**9)
    parser.add_argument("--public-documents", type=int, default=8000)
    parser.add_argument("--output", default=".ctcl-bench")
    return parser.parse_args()


if __name__ == "__main__":
    main()
