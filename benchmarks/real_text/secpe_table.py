"""SecPE beside Aug-PE on Yelp by category and rating: the paper's Table 5 in small.

    PYTHONPATH=. python benchmarks/real_text/secpe_table.py [--tiny | --small] [--work FOLDER]
        [--ratios 2 10 50] [--minutes 60] [--language-model FOLDER] [--report]

Secrets are words near a quantile of the vocabulary (SecPE, section 4.2). For each r/p four corpora:
Aug-PE at the μ that the paper compares with, which protects a secret in ONE record; Aug-PE at μ/m,
which protects a secret in m records; SecPE with noise and sampling AS PRINTED, which is NO
guarantee (its column says what r/p it really attains); SecPE as the product runs it. Beside them
real text, Aug-PE with its least noise and SecPE without any. Scores: accuracy on real held-out
reviews of classifiers of category and of rating trained on the corpus, and the mean over labels of
what they recognise (three in four of these reviews are of restaurants: who knows no other category
is right three times in four); next-word accuracy of a small causal model trained on the corpus;
Fréchet distance of embeddings and distance of lengths to those reviews. ε is the guarantee for one
record at δ = 1e-6, where there is one.

Without --language-model one is trained on public corpora first, in minutes on a processor. It
writes fragments: differences between methods are what to read, not levels. Every finished corpus is
a line of `results.jsonl`; a run that is cut goes on from there. `--small` takes some twenty minutes
on two cores. Needs the real corpora: DPSYNTH_REAL_DATA, or ../shared/data beside the project.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from prediction_base import public_documents, trained_model
from secpe_cells import (
    PRIOR,
    SIZES,
    Bench,
    Corpus,
    aug_pe,
    aug_pe_with_least_noise,
    real_reviews,
    secpe,
    secpe_as_printed,
    secpe_without_noise,
)

from dpsynth_assets.models.language_model import load_language_model
from dpsynth_assets.paths import project_root
from dpsynth_assets.privacy.secret_protection import gaussian_budget

RESULTS = "results.jsonl"
COLUMNS = {
    "asked": ("r/p asked", ".3g"),
    "attained": ("attained in m records", ".3g"),
    "epsilon": ("ε of a record", ".3g"),
    "category": ("category", ".3f"),
    "category_balanced": ("balanced", ".3f"),
    "rating": ("rating", ".3f"),
    "rating_balanced": ("balanced", ".3f"),
    "next_word": ("next word", ".3f"),
    "frechet": ("FID", ".3f"),
    "length": ("length distance (words)", ".1f"),
    "processor_seconds": ("processor s", ".0f"),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = parser.add_mutually_exclusive_group()
    for size in SIZES:
        sizes.add_argument(f"--{size}", dest="size", action="store_const", const=size)
    parser.add_argument("--work", type=Path, default=project_root() / ".dpsynth" / "secpe_table")
    parser.add_argument("--ratios", nargs="+", type=float, default=[2.0, 10.0, 50.0])
    parser.add_argument("--minutes", type=float, default=60, help="start no corpus after this")
    parser.add_argument("--language-model", help="folder or hub id to use instead of training one")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--report", action="store_true", help="only render what is there")
    parser.set_defaults(size="small")
    return parser.parse_args()


def cells(ratios: Sequence[float]) -> Iterator[tuple[str, float | None, Callable[[Bench], Corpus]]]:
    """(name, r/p asked, what makes the corpus)."""
    yield "real reviews", None, real_reviews
    yield "Aug-PE, σ = 1 vote", None, aug_pe_with_least_noise
    yield "SecPE, no noise", None, secpe_without_noise
    for ratio in ratios:
        mu = gaussian_budget(PRIOR, ratio * PRIOR)
        yield "Aug-PE, μ of one record", ratio, lambda bench, mu=mu: aug_pe(bench, mu)
        yield "Aug-PE, μ of m records", ratio, lambda bench, mu=mu: aug_pe(bench, mu / bench.cap)
        yield "SecPE", ratio, lambda bench, r=ratio: secpe(bench, r)
    for ratio in ratios:
        yield "SecPE as printed: NO guarantee", ratio, lambda b, r=ratio: secpe_as_printed(b, r)


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Tells runs of different sizes and models apart."""
    return {"size": options.size, "model": options.language_model or "trained here"}


def results_of(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Finished corpora of this size and model; a line that a kill cut off is left out."""
    file = options.work / RESULTS
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("}\n")]
    return [result for result in found if result.get("settings") == settings_of(options)]


def prepared(options: argparse.Namespace) -> Bench:
    """Real reviews, public documents and language model."""
    torch.set_num_threads(options.threads)
    data = Path(os.environ.get("DPSYNTH_REAL_DATA") or project_root().parent / "shared" / "data")
    if not data.is_dir():
        raise SystemExit(f"skipped: no real corpora at {data}; set DPSYNTH_REAL_DATA")
    options.work.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("DPSYNTH_HOME", str(options.work / "home"))
    size = SIZES[options.size]
    prose = public_documents(data)
    if options.language_model is not None:
        model = load_language_model(options.language_model, device="cpu")
    else:
        folder = options.work / f"model-{size.model.token_budget}"
        model, _ = trained_model(prose, folder, size.model, "cpu")
    return Bench(size, data, prose.filter(~prose["group"].str.starts_with("records")), model)


def main() -> None:
    options = arguments()
    if not options.report:
        run_table(options)
    print(table(results_of(options)))


def run_table(options: argparse.Namespace) -> None:
    """Makes and scores the corpora that are not there yet, until the time is up."""
    deadline = time.monotonic() + 60 * options.minutes
    bench = prepared(options)
    print(
        f"{bench.private.records.height} reviews, {len(bench.terms.labels)} labels, "
        f"{len(bench.secrets)} secrets in at most m = {bench.cap} records, p = {PRIOR:g}",
        flush=True,
    )
    done = {(result["corpus"], result["asked"]) for result in results_of(options)}
    for name, asked, make in cells(options.ratios):
        if (name, asked) in done or time.monotonic() > deadline:
            continue
        start = time.process_time()
        corpus = make(bench)
        seconds = time.process_time() - start
        (options.work / "rows").mkdir(exist_ok=True)
        shown = "" if asked is None else f" {asked:g}"
        corpus.rows.write_parquet(options.work / "rows" / f"{name.replace(':', '')}{shown}.parquet")
        line = json.dumps(
            {
                "corpus": name,
                "asked": asked,
                "attained": corpus.attained,
                "epsilon": corpus.epsilon,
                "rows": corpus.rows.height,
                "processor_seconds": round(seconds, 1),
                **bench.score(corpus.rows),
                "settings": settings_of(options),
            }
        )
        with (options.work / RESULTS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Markdown, a line a corpus."""
    head = ["corpus", *(title for title, _ in COLUMNS.values())]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for result in results:
        values = [
            "" if result[name] is None else format(result[name], form)
            for name, (_, form) in COLUMNS.items()
        ]
        lines.append(f"| {' | '.join([result['corpus'], *values])} |")
    return "\n".join(lines) if results else "No results yet."


if __name__ == "__main__":
    main()
