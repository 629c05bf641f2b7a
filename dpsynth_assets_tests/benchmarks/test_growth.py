"""The benchmark of growth runs every stage, and its model finds the line that times lie on."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from growth import STAGES, fitted, slope

from dpsynth_assets.paths import project_root


def test_the_model_finds_the_line_and_the_slope():
    n = np.array([1e4, 1e5, 1e6])
    a, b = fitted(n, 0.5 + 3e-6 * n)
    assert (a, b) == pytest.approx((0.5, 3e-6))
    assert slope(n, 7e-6 * n) == pytest.approx(1.0)


@pytest.mark.slow
def test_every_stage_runs_and_is_reported(tmp_path):
    command = [sys.executable, "benchmarks/growth.py", "--records", "300", "600", "--embed"]
    command += ["--parts", "2", "--pairs", "600", "--folder", str(tmp_path)]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "figures.json")],
        cwd=project_root(),
        env=os.environ | {"PYTHONPATH": str(project_root())},
        check=True,
        capture_output=True,
        text=True,
    )
    rows = json.loads((tmp_path / "figures.json").read_text())
    assert {(row["n"], row["stage"]) for row in rows} == {
        (n, s) for n in (300, 600) for s in STAGES
    }
    assert all(row["peak_bytes"] > 0 for row in rows)
    assert all(row["worker_peak_bytes"] > 0 for row in rows if row["workers"] == 2)
    assert "| all but embed |" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
