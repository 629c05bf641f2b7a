"""Private prediction on real text: a table like Table 3 of Amin et al. 2025, from one command.

    PYTHONPATH=. python benchmarks/real_text/prediction_table.py [--minutes 60] [--device cuda]

Yelp by sentiment and AG News by topic at ε = 10 and 3: the mean of Amin et al. 2024, the same with
two examples a context (Baseline++), clustered batches with mean and with median; beside them real
data, the floor without private data and the ceiling with one real example and no privacy. Movie
records in JSON with and without the public-token test, as Table 4 of Amin et al. 2024. Methods are
the registered ones, run as the product plans them: the ε printed is the ε charged.

Every finished corpus is a line of `results.jsonl` in the work folder; a run that is cut keeps what
it did and goes on from there. Of each ε, seeds run one after another through the whole table.
`--report` renders what is there. `--language-model` takes a folder or hub id, a pretrained model
above all: a model of a million parameters writes fragments, and no corpus of fragments can show
what the papers' orderings are about. The defaults are sized for two cores. On a GPU a larger public
model can be had with --device cuda --width 512 --layers 8 --heads 8 --key-value-heads 2
--feed-forward 1408 --vocabulary 8192 --training-tokens 60000000 --batch-tokens 32768.

Needs the real corpora: DPSYNTH_REAL_DATA, or ../shared/data beside the project.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from prediction_base import public_centers, public_documents, trained_model
from prediction_cells import Bench, Cell, run_cell
from prediction_cohorts import COHORTS
from prediction_report import report

from dpsynth_assets.models.language_model import load_language_model
from dpsynth_assets.models.language_model_training import TrainingSettings
from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.paths import project_root

RESULTS = "results.jsonl"
SEQUENCE_TOKENS = (256, 320)
"""Two records in JSON, or a prompt of two texts and the text that is written, fit into one."""


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    whole = project_root() / ".dpsynth" / "prediction_table"
    parser.add_argument("--work", type=Path, default=whole, help="where everything is kept")
    parser.add_argument("--report", action="store_true", help="only render what is there")
    parser.add_argument("--minutes", type=float, default=60, help="start no corpus after this")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cohorts", nargs="+", choices=list(COHORTS), default=list(COHORTS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[10.0, 3.0])
    parser.add_argument("--batches", type=int, help="most batches of a corpus; default by ε")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of a process")
    parser.add_argument("--device", default="cpu")
    _model_arguments(parser)
    return parser.parse_args(argv)


def _model_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the public language model")
    group.add_argument("--language-model", help="folder or hub id to use instead of training one")
    group.add_argument("--vocabulary", type=int, default=4096)
    group.add_argument("--width", type=int, default=128)
    group.add_argument("--layers", type=int, default=4)
    group.add_argument("--heads", type=int, default=2)
    group.add_argument("--key-value-heads", type=int, default=1)
    group.add_argument("--feed-forward", type=int, default=352)
    group.add_argument("--training-tokens", type=int, default=4_000_000)
    group.add_argument("--batch-tokens", type=int, default=2048)
    group.add_argument("--matrix-learning-rate", type=float, default=0.03)
    group.add_argument("--learning-rate", type=float, default=8e-3)


def training_settings(options: argparse.Namespace) -> TrainingSettings:
    given = {
        name: getattr(options, name) for name in TrainingSettings.model_fields if name in options
    }
    return TrainingSettings(
        **given,
        token_budget=options.training_tokens,
        max_document_tokens=152,
        sequence_tokens=SEQUENCE_TOKENS,
    )


def prepared(options: argparse.Namespace) -> Bench:
    """Public base, language model, centres: made once, read back afterwards."""
    torch.set_num_threads(options.threads)
    data = Path(os.environ.get("DPSYNTH_REAL_DATA") or project_root().parent / "shared" / "data")
    if not data.is_dir():
        raise SystemExit(f"skipped: no real corpora at {data}; set DPSYNTH_REAL_DATA")
    (options.work / "rows").mkdir(parents=True, exist_ok=True)
    settings, embedder = training_settings(options), TextEmbedder()
    documents = public_documents(data)
    if options.language_model is None:
        folder = options.work / "models" / model_name(options)
        model, facts = trained_model(documents, folder, settings, options.device)
        print(json.dumps(facts), flush=True)
    else:
        model = load_language_model(options.language_model, device=options.device)
    return Bench(
        data=data,
        folder=options.work,
        language_model=model,
        embedder=embedder,
        centers=public_centers(documents, embedder, options.work),
        batches=options.batches,
    )


def model_name(options: argparse.Namespace) -> str:
    """Tells models apart; threads and device do not make another model."""
    if options.language_model is not None:
        return Path(options.language_model).name
    settings = training_settings(options).model_dump_json(exclude={"threads", "device"})
    return hashlib.sha256(settings.encode()).hexdigest()[:12]


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """All cells: the first ε before the next, and within it whole tables seed after seed."""
    for epsilon in options.epsilons:
        for seed in range(options.seeds):
            for cohort in (COHORTS[name] for name in options.cohorts):
                if epsilon in cohort.epsilons:
                    for method in cohort.methods:
                        yield Cell(seed, cohort.name, epsilon, method)


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Finished cells; a line that was cut off by a kill is left out."""
    file = folder / RESULTS
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}\n")]


def main() -> None:
    options = arguments()
    if not options.report:
        run_table(options)
    print(report(read_results(options.work)))


def run_table(options: argparse.Namespace) -> None:
    """Runs the cells that are not there yet, until the time is up."""
    deadline = time.time() + 60 * options.minutes
    bench = prepared(options)
    settings = {"model": model_name(options), "batches": options.batches}
    done = {
        tuple(result["cell"])
        for result in read_results(options.work)
        if result["settings"] == settings
    }
    left = [cell for cell in cells(options) if astuple(cell) not in done]
    for result in _results(options, bench, left, deadline):
        line = json.dumps({**result, "settings": settings, "device": _device(options)})
        with (options.work / RESULTS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)


def _device(options: argparse.Namespace) -> str:
    return torch.cuda.get_device_name() if options.device.startswith("cuda") else "cpu"


def _results(
    options: argparse.Namespace, bench: Bench, left: Sequence[Cell], deadline: float
) -> Iterator[dict[str, Any]]:
    """Results as they come, from this process or from several."""
    if options.processes == 1:
        yield from (run_cell(bench, cell) for cell in left if time.time() < deadline)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        options.processes, mp_context=context, initializer=_open, initargs=(options, deadline)
    ) as pool:
        for future in as_completed([pool.submit(_in_worker, cell) for cell in left]):
            if (result := future.result()) is not None:
                yield result


_worker: dict[str, Any] = {}


def _open(options: argparse.Namespace, deadline: float) -> None:
    _worker.update(bench=prepared(options), deadline=deadline)


def _in_worker(cell: Cell) -> dict[str, Any] | None:
    return run_cell(_worker["bench"], cell) if time.time() < _worker["deadline"] else None


if __name__ == "__main__":
    main()
