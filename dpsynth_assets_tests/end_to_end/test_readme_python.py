"""The Python of the README runs as it stands there, and pays from a ledger."""

import re
from pathlib import Path

import pytest

from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets_tests.children import python
from dpsynth_assets_tests.prepared import keep_smollm2

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)

pytestmark = pytest.mark.slow


def test_the_python_of_the_readme_runs(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.delenv("DPSYNTH_LEDGER_URL", raising=False)
    (program,) = BLOCK.findall((ROOT / "README.md").read_text())
    home = tmp_path / "home"
    keep_smollm2(tmp_path_factory, home)
    assert "text" in python("-c", program, DPSYNTH_HOME=str(home))
    ledger = home / "ledger" / "ledger.sqlite"
    entries = Ledger(f"sqlite:///{ledger}").entries()
    assert {entry.kind for entry in entries} >= {"reserve", "commit"}
