"""Where things lie on disk: one root, four stores beside Dagster's own home.

`DPSYNTH_HOME` (default `.dpsynth` in the working directory) holds `dagster/` (DAGSTER_HOME),
`ledger/`, `sensitive/` (owner-only), `artifacts/` (public models and internal intermediates) and
`released/` (the only folder meant to leave the machine).
"""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Home:
    """The stores of one installation."""

    root: Path

    @property
    def ledger_url(self) -> str:
        """SQLAlchemy URL of the ledger: DPSYNTH_LEDGER_URL, or SQLite beside DAGSTER_HOME."""
        default = f"sqlite:///{self.root / 'ledger' / 'ledger.sqlite'}"
        return os.environ.get("DPSYNTH_LEDGER_URL", default)

    @property
    def sensitive(self) -> Path:
        """Owner-only store of private intermediates."""
        return self.root / "sensitive"

    @property
    def artifacts(self) -> Path:
        """Public models and DP releases that feed later stages."""
        return self.root / "artifacts"

    @property
    def released(self) -> Path:
        """Corpora, cards and statements that may leave."""
        return self.root / "released"

    @property
    def reports(self) -> Path:
        """Internal evaluation reports: scored against private held-out text."""
        return self.root / "reports"

    @property
    def plans(self) -> Path:
        """Factors of fixed plans, computed once from public facts."""
        return self.root / "plans"

    @property
    def audits(self) -> Path:
        """Results of the mechanism audits run on this installation."""
        return self.root / "audits.json"

    @property
    def dagster(self) -> Path:
        """Dagster's own storage."""
        return self.root / "dagster"


def project_root() -> Path:
    """Folder that holds `data/` and `workspace.yaml`."""
    return Path(__file__).resolve().parents[1]


def home() -> Home:
    """Resolves DPSYNTH_HOME."""
    return Home(Path(os.environ.get("DPSYNTH_HOME", project_root() / ".dpsynth")).resolve())
