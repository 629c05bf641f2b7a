"""One cell of a benchmark: the corpus of one dataset, method, ε and seed, stored with its scores.

A method runs through `run_method` alone, with a ledger and a store of its own: on real data the
accounts of all cells over one corpus would add up. What is printed as ε comes from the label of the
run. The seed names the release, which chooses public randomness; privacy noise has no seed.
"""

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from dpsynth_assets.attacks.circumstances import code_digest
from dpsynth_assets.benchmark.cohorts import REFERENCES, Bench, declared_facts
from dpsynth_assets.files.kept import JSON, TABLE, found
from dpsynth_assets.files.whole import write_whole
from dpsynth_assets.method_run import MethodRun, run_method
from dpsynth_assets.models.decoding.protocol import COUNTS
from dpsynth_assets.privacy.directed_rounding import declared
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.privacy.ledger.replacing import owner_folder

_PACKAGE = Path(__file__).parents[1]
_RESET, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_MIB = 1024

DOWNSTREAM = "downstream_model"

PREPARED = ("public_corpus", "public_language_model", "text_embedder", "public_clusters")
"""Artifacts of the public base that most methods read."""


_NAMED_WITH: dict[str, Any] = {"otherwise": [], "epsilon": None, "rows": None}
"""What names of kept results were made with beside method, settings and declared fields."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One corpus.

    Attributes:
        table: Everything that all cells of a table share, as JSON values.
        cohort: Name of its cohort.
        method: Name of a registered method, or of a reference.
        settings: Settings of the method, as in a dataset file.
        declared: Further fields of the dataset file.
        epsilon: Budget ε; None for a reference.
        delta: δ.
        seed: Names the release.
    """

    table: Mapping[str, Any]
    cohort: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    declared: Mapping[str, Any] = field(default_factory=dict)
    epsilon: float | None
    delta: float
    seed: int

    @property
    def name(self) -> str:
        """Name of its files: readable, and another one wherever anything differs."""
        own = {"method": self.method, "settings": self.settings, "declared": self.declared}
        content = [self.table, own | _NAMED_WITH, self.delta]
        written = json.dumps(content, sort_keys=True, default=dict)
        digest = hashlib.sha256(written.encode()).hexdigest()[:10]
        asked = "" if self.epsilon is None else f"-{declared(self.epsilon)}"
        return f"{self.cohort}-{self.method}{asked}-{self.seed}-{digest}"


def found_cell(folder: Path, cell: Cell, scored_rows: int) -> dict[str, Any] | None:
    """Reads back a finished cell and its scores; None if it is not there."""
    return _read(_scores_file(folder, cell, scored_rows))


def stands(result: Mapping[str, Any] | None) -> bool:
    """Whether a kept result need not be found again: other code may not refuse what one refused."""
    return result is not None and ("refusal" not in result or result.get("code") == package_code())


def make_cell(bench: Bench, cell: Cell) -> dict[str, Any]:
    """Makes one corpus, unless an earlier run has kept it; returns its facts."""
    facts_file = _file(bench.folder, "cells", cell, ".json")
    kept = _read(facts_file)
    if kept is not None and stands(kept):
        return kept
    bench.public.values(PREPARED)  # None of the cells pays for what all of them read.
    with metered() as cost:
        facts = _made(bench, cell)
    facts |= cost
    write_whole(facts_file, JSON.write(facts))
    return facts


def score_cell(bench: Bench, cell: Cell) -> dict[str, Any]:
    """Scores a corpus, which is made unless an earlier run has kept it."""
    facts, (rows, model) = make_cell(bench, cell), _kept(bench.folder, cell)
    scores = bench.of_model(model) if model.is_dir() else {}
    if rows.exists():
        scores = bench.of_rows(pl.read_parquet(rows), cell.seed, cell.name)
    result = {**facts, **scores}
    write_whole(_scores_file(bench.folder, cell, bench.scored_rows), JSON.write(result))
    return result


def _made(bench: Bench, cell: Cell) -> dict[str, Any]:
    rows_file, model = _kept(bench.folder, cell)
    if (write := REFERENCES.get(cell.method)) is not None:
        rows = write(bench.cohort, bench.public, bench.rows, cell.seed)
        write_whole(rows_file, TABLE.write(rows))
        return {"rows": rows.height}
    with tempfile.TemporaryDirectory(dir=owner_folder(bench.folder)) as scratch:
        try:
            run = _run(bench, cell, Path(scratch))
        except PrivacyError as refusal:
            return {"rows": 0, "refusal": str(refusal)}
        if run.corpus is None:
            made = run.releases[f"{cell.method}/{DOWNSTREAM}"].folder
            shutil.copytree(made, model, dirs_exist_ok=True)
        else:
            write_whole(rows_file, TABLE.write(run.corpus.select("text", "label")))
        return _facts(run)


def _run(bench: Bench, cell: Cell, scratch: Path) -> MethodRun:
    cohort = bench.cohort
    return run_method(
        cell.method,
        cohort.source.sample(fraction=1.0, shuffle=True, seed=cell.seed),
        bench.public,
        epsilon=float(cell.epsilon or 0.0),
        delta=cell.delta,
        settings=cell.settings,
        labels=tuple(cohort.labels),
        rows=bench.rows,
        cohort=cohort.name,
        release=str(cell.seed),
        declared=declared_facts(cohort, cell.declared),
        ledger=Ledger(f"sqlite:///{scratch}/ledger.db"),
        store=scratch / "store",
        progress=bench.progress,
    )


def _facts(run: MethodRun) -> dict[str, Any]:
    """What a run promises and released: the label's guarantee and plain facts of each release."""
    stated = dict(run.label["guarantee"])
    stated.pop("privacy_profile", None)
    ex_post = [e.ex_post_epsilon for e in run.entries if e.ex_post_epsilon is not None]
    (*_, planned) = run.plan.methods
    return {
        "rows": 0 if run.corpus is None else run.corpus.height,
        "guarantee": stated,
        "epsilon": stated.get("epsilon"),
        "posterior": stated.get("posterior"),
        "ex_post_epsilon": max(ex_post, default=None),
        "parameters": _plain(planned.plan.parameters),
        "released": {name: _plain(stage.facts) for name, stage in run.releases.items()},
    }


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and short words; tables of numbers are left out."""
    return {k: v for k, v in values.items() if isinstance(v, int | float | str | None)}


def _file(folder: Path, kind: str, cell: Cell, suffix: str) -> Path:
    return folder / kind / f"{cell.name}{suffix}"


def _kept(folder: Path, cell: Cell) -> tuple[Path, Path]:
    return _file(folder, "rows", cell, ".parquet"), _file(folder, "models", cell, "")


def _scores_file(folder: Path, cell: Cell, scored_rows: int) -> Path:
    return _file(folder, "scores", cell, f"-{scored_rows}.json")


def _read(file: Path) -> dict[str, Any] | None:
    return found(file, JSON.read)


def package_code() -> str:
    """Beginning of a digest of this package's code, as it lies on disk."""
    return code_digest(_PACKAGE)[:12]


@contextmanager
def metered() -> Iterator[dict[str, Any]]:
    """Yields the cost of what runs inside, filled in at the end.

    Seconds by the clock, those of all threads of this process, its most resident memory (MiB; None
    where Linux does not tell), tokens of prompts and read texts, tokens decoded of all rows of a
    pass, and the code's digest.
    """
    cost: dict[str, Any] = {}
    began, before = (time.monotonic(), time.process_time()), COUNTS.copy()
    follows = _reset_peak()
    yield cost
    tokens = COUNTS - before
    cost |= {
        "seconds": round(time.monotonic() - began[0], 1),
        "processor_seconds": round(time.process_time() - began[1], 1),
        "peak_memory_mib": _peak_mib() if follows else None,
        "tokens_read": tokens["read"],
        "tokens_written": tokens["written"],
        "code": package_code(),
    }


def _reset_peak() -> bool:
    """Starts the peak of resident memory again; says whether that was possible."""
    try:
        _RESET.write_text("5", encoding="ascii")
    except OSError:
        return False
    return _STATUS.is_file()


def _peak_mib() -> int | None:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / _MIB)
    return None
