"""What CTCL's parts are worth (its Table 5), and quality against the number of rows (Figure 3).

    python benchmarks/ctcl_ablation.py [table5] [figure3] [--size small|medium|gpu|tiny]
        [--epsilon 4] [--device cuda] [--private FILE --column NAME] [--output FOLDER]

Public text plays the private corpus: the grammar's private records by default, or one of FILE's
columns. `table5` fine-tunes three generators at ε = ∞ and at the given ε: vanilla (label-only
conditions, started from public pretraining without conditions), + keywords (the record's topic in
the condition, rows by the released histogram), + pretraining (started from the public generator
that was trained on conditions); and prints what the rows are worth to a downstream model and a
classifier, their MAUVE, and the generator's own perplexity, all on held-out text. `figure3` pays
for one release and writes more and more rows from it: every line after the first is free.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path

import polars as pl
from ctcl_runs import (
    SIZES,
    Base,
    Cohort,
    Results,
    Run,
    Size,
    embedded,
    fine_tuned,
    held_out_pairs,
    label_cells,
    public_base,
    quiet,
    say,
    scores,
    settings_of,
    sized,
    table,
    topic_histogram,
    write,
)
from demo_rows import private_rows, public_rows

from dpsynth_assets.methods.topic_histogram import TopicHistogram
from dpsynth_assets.metrics.mauve import MINIMUM_ROWS
from dpsynth_assets.models.conditional_generator import load_conditional_generator
from dpsynth_assets.models.conditional_generator.training import public_perplexity

STEPS = ("vanilla", "+ keywords", "+ keywords + pretraining")
MEASURES = {
    "downstream perplexity": "next_word_perplexity",
    "next-word accuracy": "next_word_accuracy",
    "accuracy": "accuracy",
    "MAUVE": "mauve",
    "generator perplexity": "generator_perplexity",
}
"""Columns of Table 5: accuracy where there are labels, MAUVE where there are rows enough."""
ROW_SHARES = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)


def main() -> None:
    arguments = parse()
    quiet()
    size = sized(arguments.size, device=arguments.device)
    folder = Path(arguments.output)
    base = public_base(pl.DataFrame(public_rows(arguments.public_documents, seed=0)), size, folder)
    cohort = load_cohort(arguments, base)
    settings = settings_of(size, records=len(cohort.train.texts), cohort=cohort.name)
    results = Results(folder / "ctcl_ablation.json", settings, arguments.minutes)
    text = ""
    if "table5" in arguments.what:
        text += table5(results, cohort, base, size, arguments.epsilon)
    if "figure3" in arguments.what:
        text += figure3(results, cohort, base, size, arguments.epsilon, folder)
    (folder / "ctcl_ablation.md").write_text(text)
    print(text)


def table5(results: Results, cohort: Cohort, base: Base, size: Size, epsilon: float) -> str:
    """One line a step, one column a measure, without noise and at ε."""
    rows = []
    for step in STEPS:
        found = [
            results.unit(
                f"{step} ε={each:g}", lambda step=step, each=each: ablated(
                    cohort, base, size, step, each
                ),
            ) or {}
            for each in (math.inf, epsilon)
        ]  # fmt: skip
        rows.append([step, *([each.get(key) for each in found] for key in MEASURES.values())])
    header = [f"{name}, ε = ∞ / {epsilon:g}" for name in MEASURES]
    return table(["Table 5", *header], rows) + "\n"


def ablated(cohort: Cohort, base: Base, size: Size, step: str, epsilon: float) -> dict:
    """One generator of Table 5, its rows' worth, and its own perplexity on held-out text."""
    keywords, start = "keywords" in step, base.unconditional
    if "pretraining" in step:
        start = base.conditional
    known = cohort.conditions(base, keywords=keywords)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(cohort=cohort, size=size, epsilon=epsilon, histogram=keywords)
        generator = fine_tuned(run, start, known, Path(folder))
        own = public_perplexity(generator, held_out_pairs(cohort, known))
        cells = (
            topic_histogram(cohort, base, size, epsilon).sample_cells(size.rows, 0)
            if keywords
            else label_cells(known, size.rows)
        )
        rows = write(generator, known, cells, size, 0)
    return {"generator_perplexity": own, **scores(rows, cohort, base, size, 0)}


def figure3(
    results: Results, cohort: Cohort, base: Base, size: Size, epsilon: float, folder: Path
) -> str:
    """More rows from one release, each time scored with the same training budget."""
    known = cohort.conditions(base, keywords=True)
    release = folder / f"figure3-{cohort.name}-{epsilon:g}-{size.steps}-{size.batch}"
    counted = release / "topic_histogram.json"
    if not counted.exists():
        run = Run(cohort=cohort, size=size, epsilon=epsilon, histogram=True)
        fine_tuned(run, base.conditional, known, release)
        counted.write_text(json.dumps(topic_histogram(cohort, base, size, epsilon).to_json()))
    histogram = TopicHistogram.from_json(json.loads(counted.read_text()))
    generator = load_conditional_generator(release, device=size.generator.device)
    lines = []
    for count in sorted({max(MINIMUM_ROWS, round(share * size.rows)) for share in ROW_SHARES}):
        found = results.unit(
            f"figure3 ε={epsilon:g} {count} rows", lambda count=count: scores(
                write(generator, known, histogram.sample_cells(count, 0), size, 0),
                cohort, base, size, 0,
            ),
        )  # fmt: skip
        if found is not None:
            keys = ("next_word_accuracy", "next_word_perplexity", "accuracy", "mauve")
            lines.append([count, *[found.get(key) for key in keys]])
    header = ["rows (Figure 3)", "next-word accuracy", "perplexity", "accuracy", "MAUVE"]
    return table(header, lines)


def load_cohort(arguments, base: Base) -> Cohort:
    """Four fifths to train on, a fifth to test on."""
    if arguments.private is None:
        frame = pl.DataFrame(private_rows(arguments.records, seed=1)).select("text", "label")
        name = "demo"
    else:
        name = Path(arguments.private).stem
        frame = pl.read_parquet(arguments.private).select(
            pl.col(arguments.column).alias("text"), pl.lit("").alias("label")
        )
        frame = frame.drop_nulls().sample(
            n=min(arguments.records, frame.height), shuffle=True, seed=0
        )
    say(f"embedding {frame.height} records of {name}")
    whole = embedded(base.embedder, frame["text"].to_list(), frame["label"].to_list())
    cut = frame.height * 4 // 5
    labels = tuple(sorted(set(whole.labels)))
    return Cohort(
        name=name,
        train=whole.take(range(cut)),
        test=whole.take(range(cut, frame.height)),
        labels=labels,
        label_texts=labels,
    )


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["table5", "figure3"])
    parser.add_argument("--size", default="small", choices=tuple(SIZES))
    parser.add_argument("--device", default=None)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--records", type=int, default=4000)
    parser.add_argument("--public-documents", type=int, default=6000)
    parser.add_argument("--private", default=None, help="Parquet file that plays the private side")
    parser.add_argument("--column", default="text")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--output", default=".ctcl-bench")
    return parser.parse_args()


if __name__ == "__main__":
    main()
