"""The benchmark of growth runs every stage, and its model finds the line that times lie on."""

import json
import subprocess
import sys

import growth
import numpy as np
import pytest
from growth import STAGES, fitted, slope

from dpsynth_assets.paths import project_root


def test_the_model_finds_the_line_and_the_slope():
    n = np.array([1e4, 1e5, 1e6])
    a, b = fitted(n, 0.5 + 3e-6 * n)
    assert (a, b) == pytest.approx((0.5, 3e-6))
    assert slope(n, 7e-6 * n) == pytest.approx(1.0)


class NoChildren:
    """What is watched where a stage has no workers, and no process of its own to end with."""

    def largest(self):
        return 0


@pytest.fixture
def _started(monkeypatch):
    """The first stage gets a process of its own; this one does the others, which costs no start."""
    begun, start = [], subprocess.run

    def run(command, **options):
        begun.append(command)
        if len(begun) == 1:
            return start(command, cwd=project_root(), **options)
        with monkeypatch.context() as patch:
            patch.setattr(growth, "Children", NoChildren)
            patch.setattr(sys, "argv", command[1:])
            row = growth.one_stage(growth.arguments())
        return subprocess.CompletedProcess(command, 0, stdout=json.dumps(row))

    monkeypatch.setenv("PYTHONPATH", str(project_root()))
    monkeypatch.setattr(growth.subprocess, "run", run)


@pytest.mark.slow
@pytest.mark.usefixtures("_started")
def test_every_stage_runs_and_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(growth, "SHARED", growth.SHARED[:2])  # The first prepares the second.
    command = ["growth.py", "--records", "300", "600", "--embed", "--parts", "2", "--pairs", "600"]
    command += ["--folder", str(tmp_path), "--json", str(tmp_path / "figures.json")]
    monkeypatch.setattr(sys, "argv", command)
    growth.main()
    rows = json.loads((tmp_path / "figures.json").read_text())
    assert {(row["n"], row["stage"]) for row in rows} == {
        (n, s) for n in (300, 600) for s in STAGES
    }
    assert all(row["peak_bytes"] > 0 for row in rows)
    assert [row["workers"] for row in rows if row["paired"]] == [1, 2] * 2
    assert "| all but embed |" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
