"""The Python of the README runs as it stands there, and pays from a ledger."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dpsynth_assets.privacy.ledger import Ledger

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)

pytestmark = pytest.mark.slow


def test_the_python_of_the_readme_runs(tmp_path):
    (program,) = BLOCK.findall((ROOT / "README.md").read_text())
    home = tmp_path / "home"
    environment = os.environ | {
        "DPSYNTH_HOME": str(home),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    environment.pop("DPSYNTH_LEDGER_URL", None)
    made = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert made.returncode == 0, made.stderr[-3000:]
    assert "text" in made.stdout
    ledger = home / "ledger" / "ledger.sqlite"
    entries = Ledger(f"sqlite:///{ledger}").entries()
    assert {entry.kind for entry in entries} >= {"reserve", "commit"}
