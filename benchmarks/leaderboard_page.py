"""Seconds from 1,000 finished cells on disk to the leaderboard's page, pictures included.

    python benchmarks/leaderboard_page.py [--cells 1000]

Cells are made up: five datasets, as many methods and budgets as it takes, four seeds. Every cell
has the scores and resamples of a real one, so files are as large as those of a benchmark that ran.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from dpsynth_assets.benchmark.leaderboard import leaderboard
from dpsynth_assets.benchmark.leaderboard_page import LeaderboardPage, write_leaderboard
from dpsynth_assets.benchmark.running import Place
from dpsynth_assets.metrics.metric import RESAMPLES

DATASETS, BUDGETS, SEEDS = 5, (10.0, 6.0, 3.0, 2.0, 1.0), 4


def main() -> None:
    """Writes cells, then times reading, comparing and writing the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=1000)
    cells = parser.parse_args().cells
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        places = list(written(folder, cells))
        started, own = time.perf_counter(), time.process_time()
        found = [(place, json.loads(file.read_text())) for place, file in places]
        board = leaderboard("made_up", found)
        files = write_leaderboard(LeaderboardPage(board), folder / "page")
        print(
            f"{len(places)} cells, {len(board.standings)} lines: "
            f"{time.perf_counter() - started:.1f} s, {time.process_time() - own:.1f} processor s, "
            f"page of {files['html'].stat().st_size / 1e6:.1f} MB"
        )


def written(folder, cells):
    """Places of made-up cells with their files."""
    methods = round(cells / (DATASETS * len(BUDGETS) * SEEDS))
    random = np.random.default_rng(0)
    for dataset in range(DATASETS):
        for seed in range(SEEDS):
            for line in ("public_only", "one_real_example"):
                yield _cell(folder, random, f"data_{dataset}", line, None, seed)
            for epsilon in BUDGETS:
                for method in range(methods):
                    name = f"method_{method}"
                    yield _cell(folder, random, f"data_{dataset}", name, epsilon, seed)


def _cell(folder, random, dataset, line, epsilon, seed):
    level = {"public_only": 0.2, "one_real_example": 0.7}.get(line, random.uniform(0.3, 0.7))
    scores = {"mauve": level, "energy_distance": 0.08 * (1 - level), "accuracy": level}
    found = {
        **scores,
        "rows": 400,
        "processor_seconds": 500.0,
        "next_word_accuracy": 0.1,
        "epsilon": epsilon,
        "draws": {
            name: (value + 0.01 * random.standard_normal(RESAMPLES)).round(6).tolist()
            for name, value in scores.items()
        },
    }
    place = Place(dataset=dataset, line=line, epsilon=epsilon, records=4000, seed=seed)
    file = folder / f"{dataset}-{line}-{epsilon}-{seed}.json"
    file.write_text(json.dumps(found))
    return place, file


if __name__ == "__main__":
    main()
