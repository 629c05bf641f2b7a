"""Aug-PE on Yelp by category and by rating at ε = 1, 2, 4: one table from one command.

    PYTHONPATH=. python benchmarks/real_text/evolution_table.py [--tiny | --small | --full]
        [--epsilons 1 2 4 1000] [--variation prefix | infill] [--seeds 1] [--minutes 60]
        [--work FOLDER] [--language-model FOLDER]

As in Xie et al. 2024 and SecPE: a classifier of categories or ratings and a small causal model are
trained on every corpus and tested on real text (accuracy of the label, of the next word); beside
them FID and energy distance of embeddings, MAUVE and the distance of text lengths. ε is what was
charged at δ = 1e-6, and what it promises to a secret that is in one record and was guessed with
p = 1e-4 stands beside it; asked for a large ε, say 1000, the mechanism adds its least noise (σ = 1
vote). Rows without votes (the first generation alone) show what the votes are worth, real text what
there is to win. Every finished corpus is a line of `results.jsonl`; a run that is cut
goes on from there. Without --language-model a small public model is trained on Brown, ABC news and
WikiText-2 first: it writes fragments of news and prose, so that what the votes select, not how it
reads, is what the table measures.

Needs the real corpora: DPSYNTH_REAL_DATA, or ../shared/data beside the project.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import torch
from evolution_cells import (
    COHORTS,
    RANDOM,
    REAL,
    SIZES,
    Bench,
    label_scores,
    load_cohort,
    rows_file,
    run_cell,
    table,
)
from prediction_base import public_documents, trained_model

from dpsynth_assets.models.language_model import load_language_model
from dpsynth_assets.models.language_model_training import TrainingSettings
from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.paths import project_root

RESULTS = "results.jsonl"
TITLES = {REAL: "real data", RANDOM: "public model, no votes", "aug_pe": "Aug-PE"}
TRAINING_TOKENS = {"tiny": 20_000, "small": 1_200_000, "full": 4_000_000}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    whole = project_root() / ".dpsynth" / "evolution_table"
    sizes = parser.add_mutually_exclusive_group()
    for size in SIZES:
        sizes.add_argument(f"--{size}", dest="size", action="store_const", const=size)
    parser.add_argument("--work", type=Path, default=whole, help="where everything is kept")
    parser.add_argument("--report", action="store_true", help="only render what is there")
    parser.add_argument(
        "--rescore", action="store_true", help="train classifiers on stored rows again"
    )
    parser.add_argument("--minutes", type=float, default=60, help="start no corpus after this")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--cohorts", nargs="+", choices=list(COHORTS), default=list(COHORTS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 2.0, 4.0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--variation", choices=["prefix", "infill"], default="prefix")
    parser.add_argument("--language-model", help="folder or hub id to use instead of training one")
    parser.set_defaults(size="small")
    return parser.parse_args()


def prepared(options: argparse.Namespace) -> tuple[Path, Bench]:
    """Real corpora, public language model and embedder."""
    torch.set_num_threads(options.threads)
    data = Path(os.environ.get("DPSYNTH_REAL_DATA") or project_root().parent / "shared" / "data")
    if not data.is_dir():
        raise SystemExit(f"skipped: no real corpora at {data}; set DPSYNTH_REAL_DATA")
    options.work.mkdir(parents=True, exist_ok=True)
    if options.language_model is not None:
        model = load_language_model(options.language_model, device=options.device)
    else:
        settings = TrainingSettings(
            vocabulary=4096, width=128, layers=4, heads=2, key_value_heads=1, feed_forward=352,
            token_budget=TRAINING_TOKENS[options.size], batch_tokens=2048, sequence_tokens=(256,),
            max_document_tokens=152, threads=options.threads,
        )  # fmt: skip
        folder = options.work / f"model-{options.size}"
        model, facts = trained_model(public_documents(data), folder, settings, options.device)
        print(json.dumps(facts), flush=True)
    embedder = TextEmbedder()
    size = SIZES[options.size]
    return data, Bench(
        size=size,
        language_model=model,
        embedder=embedder,
        folder=options.work,
        variation=options.variation,
    )


def cells(options: argparse.Namespace) -> Iterator[tuple[int, str, float, str]]:
    """All cells: whole tables, seed after seed."""
    for seed in range(options.seeds):
        for cohort in options.cohorts:
            yield seed, cohort, 0.0, REAL
            yield seed, cohort, 0.0, RANDOM
            for epsilon in options.epsilons:
                yield seed, cohort, epsilon, "aug_pe"


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Finished cells; a line that was cut off by a kill is left out."""
    file = folder / RESULTS
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}\n")]


def of_size(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Results of this size and model."""
    wanted = settings_of(options)
    return [result for result in read_results(options.work) if result["settings"] == wanted]


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Tells runs of different sizes and models apart."""
    settings = {"size": options.size, "model": options.language_model or "trained here"}
    other = {} if options.variation == "prefix" else {"variation": options.variation}
    return settings | other


def main() -> None:
    options = arguments()
    if options.rescore:
        rescore(options)
    elif not options.report:
        run_table(options)
    print(table(of_size(options), TITLES))


def rescore(options: argparse.Namespace) -> None:
    """Trains the classifiers of finished cells again, on the rows that were kept."""
    data, bench = prepared(options)
    wanted = settings_of(options)
    lines = read_results(options.work)
    for line in lines:
        if line["settings"] == wanted:
            cohort = load_cohort(line["cell"][1], data, bench.size, bench.embedder, options.work)
            rows = pl.read_parquet(rows_file(bench, line["cell"]))
            features = bench.embedder.embed(rows["text"].to_list())
            line.update(label_scores(cohort, features, rows["label"].to_list(), line["cell"][0]))
            print(json.dumps(line), flush=True)
    whole = "".join(json.dumps(line) + "\n" for line in lines)
    (options.work / RESULTS).write_text(whole, encoding="utf-8")


def run_table(options: argparse.Namespace) -> None:
    """Runs the cells that are not there yet, until the time is up."""
    deadline = time.time() + 60 * options.minutes
    data, bench = prepared(options)
    done = {tuple(result["cell"]) for result in of_size(options)}
    cohorts = {
        name: load_cohort(name, data, bench.size, bench.embedder, options.work)
        for name in options.cohorts
    }
    for seed, name, epsilon, method in cells(options):
        if (seed, name, epsilon, method) in done or time.time() > deadline:
            continue
        result = run_cell(bench, cohorts[name], epsilon, method, seed)
        line = json.dumps({**result, "settings": settings_of(options)})
        with (options.work / RESULTS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)


if __name__ == "__main__":
    main()
