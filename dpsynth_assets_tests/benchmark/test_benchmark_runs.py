"""Cells of a small benchmark: made once, read back, carried over."""

import json

import pytest

from dpsynth_assets.benchmark.leaderboard_page import (
    benchmark_folder,
    export_cells,
    import_cells,
    standing_leaderboard,
)
from dpsynth_assets.benchmark.running import DatasetBench, places
from dpsynth_assets.datasets.benchmark_spec import found_benchmark
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets_tests.benchmark.conftest import attributes, write
from dpsynth_assets_tests.children import dpsynth

pytestmark = pytest.mark.slow


def cells():
    files = (benchmark_folder("tiny") / "cells").glob("*.json")
    return {path.name: path.stat().st_mtime_ns for path in files}


def test_a_cut_run_goes_on_and_its_cells_travel(letters, home, tmp_path):
    few = attributes(letters)["datasets"]["letters"] | {"scored_rows": 12}
    file = write(letters, datasets={"letters": few})
    spec = found_benchmark(file)
    assert "1 of 1 cells" in dpsynth("benchmark", "run", file, "--line", "real_data").output
    made = cells()
    assert "4 of 4 cells" in dpsynth("benchmark", "run", file).output
    assert made.items() <= cells().items()
    bench, cell = DatasetBench(spec, "letters", benchmark_folder("tiny")), list(places(spec))[2]
    found = bench.found(cell)
    assert found["scored_rows"] == 12
    assert standing_leaderboard(spec).facts["rows scored"] == "20, 12 on letters"
    assert (cell.line, found["guarantee"]["epsilon"] <= cell.epsilon) == ("evolved", True)
    assert min(found["tokens_written"], found["processor_seconds"]) > 0
    ledger = home / "ledger" / "ledger.sqlite"
    assert not ledger.exists() or not Ledger(f"sqlite:///{ledger}").entries()
    dpsynth("benchmark", "report", file, code=0)
    content = json.loads((benchmark_folder("tiny") / "leaderboard.json").read_text())
    assert content["missing_cells"] == 0
    assert {each["line"] for each in content["lines"]} == {"evolved", "public_only", "real_data"}

    kept = tmp_path / "cells.jsonl"
    assert export_cells(benchmark_folder("tiny"), kept) == 4
    assert "text" not in json.loads(kept.read_text().splitlines()[0])
    elsewhere = tmp_path / "elsewhere"
    assert import_cells(kept, elsewhere) == 4
    assert import_cells(kept, elsewhere) == 0
    assert standing_leaderboard(spec, elsewhere).to_json()["lines"] == content["lines"]


def test_a_plan_that_other_code_refused_is_tried_again(letters, home):
    settings = {"expected_batch_size": 4, "max_batches": 1}
    methods = [{"name": "mean", "method": "mean_uniform", "settings": settings}]
    changes = {"methods": methods, "references": []}
    spec = found_benchmark(write(letters, grid=[{"epsilons": [0.01], "records": [300]}], **changes))
    (place,) = places(spec)
    folder = benchmark_folder("tiny")
    refused = DatasetBench(spec, "letters", folder).run(place)
    assert "refusal" in refused
    assert DatasetBench(spec, "letters", folder).is_done(place)

    for file in folder.glob("*/*.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "code": "other"}))
    bench = DatasetBench(spec, "letters", folder)
    assert bench.found(place) is not None  # A report still tells it.
    assert not bench.is_done(place)
    assert bench.run(place)["code"] == refused["code"]
    assert bench.is_done(place)


def test_a_wrong_line_is_refused_before_anything_is_made(letters, home):
    found = dpsynth("benchmark", "run", write(letters), "--line", "evolvd", code=2)
    assert "expected one of evolved" in found.output
    assert not (home / "benchmarks").exists()
