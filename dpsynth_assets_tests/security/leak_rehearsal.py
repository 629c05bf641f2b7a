"""A rehearsal: the whole graph on planted canaries, runs that fail on purpose, and a leak scan.

    python -m dpsynth_assets_tests.security.leak_rehearsal [--quick]

Everything a run may write is caught below one folder: Dagster's home with its event database, the
debug log of every Python logger, standard output and error (also of native code), stores, reports,
cards and released files. Then all of it is searched, for the canaries and for the keys that the
environment held. The sensitive store is encrypted, so it is searched too.
"""

import argparse
import base64
import logging
import os
import secrets
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from dpsynth_assets.attacks.leak_scan import LeakReport, scan_folders
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.sensitive.sealing import KEY_VARIABLE
from dpsynth_assets_tests.security.leak_faults import faulty_models, faulty_parts, faulty_store
from dpsynth_assets_tests.security.leak_planting import (
    BUDGET,
    COHORT,
    FACTS,
    PUBLIC_WORDS,
    SECRET_COHORT,
    TORN,
    Planted,
    plant,
    private_cohort,
    public_base,
    secret_cohort,
    torn_cohort,
)

if TYPE_CHECKING:
    import dagster as dg

NOT_PRIVATE = " or ".join(
    f'key:"{cohort}/audit/{name}"'
    for cohort in (COHORT, SECRET_COHORT)
    for name in ("mechanism_audits", "reconstruction_test", "median_audit")
)
"""Stages that run on made-up data alone; they take most of the time of a small graph."""

WHOLE = "whole graph"
BREAKING = "records break what reads them"
DEBUG_LOG, OUTPUT_LOG = "debug.log", "output.log"


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        succeeded: Whether all of it did.
        failed: Assets whose own step failed.
        selected: Assets it was asked for.
    """

    succeeded: bool
    failed: frozenset[str]
    selected: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What was run and what was found.

    Attributes:
        runs: How each run ended, by name.
        report: The scan of everything they wrote, the encrypted sensitive store included.
        control: The scan of the store's records once decrypted, which has to find canaries.
    """

    runs: Mapping[str, Ended]
    report: LeakReport
    control: LeakReport

    @property
    def broken(self) -> frozenset[str]:
        """Assets that failed with records in hand."""
        runs = (run for name, run in self.runs.items() if name.startswith(BREAKING))
        return frozenset().union(*(run.failed for run in runs))

    @property
    def passed(self) -> bool:
        """Whether runs ended as they should, nothing leaked, and the search itself works."""
        ended = all(run.succeeded == (name == WHOLE) for name, run in self.runs.items())
        return ended and self.report.clean and bool(self.control.leaks)


def rehearse(folder: Path, *, everything: bool = True) -> Rehearsal:
    """Plants canaries in a new installation below `folder`, runs it, breaks it, and searches it.

    Args:
        folder: Empty folder for sources and installation.
        everything: Also run the stages that read nothing private.
    """
    planted = plant(folder)
    home = folder / "home"
    keys = {
        KEY_VARIABLE: base64.b64encode(secrets.token_bytes(32)).decode(),
        "OPENAI_API_KEY": f"sk-{secrets.token_hex(16)}",
    }
    with _installation(home, keys):
        with _everything_written(home / "logs"):
            runs = dict(_runs(planted, home, everything=everything))
        decrypted = _decrypted_records(folder / "control")
    searched_for = (*planted.canaries, *keys.values())
    return Rehearsal(
        runs=runs,
        report=scan_folders([home], searched_for),
        control=scan_folders([decrypted], searched_for),
    )


def _decrypted_records(folder: Path) -> Path:
    """The records of the store as mechanisms read them, in a folder of their own."""
    from dpsynth_assets.orchestration.resources.stores import SensitiveStore

    private = SensitiveStore().read_internal(COHORT, "source")
    folder.mkdir(mode=0o700)
    private.records.write_parquet(folder / "source.parquet")
    return folder


def _runs(planted: Planted, home: Path, *, everything: bool) -> Iterator[tuple[str, Ended]]:
    """The whole graph first; then what goes wrong in practice, each with private text at hand."""
    import dagster as dg

    cohorts = (private_cohort(planted), secret_cohort(planted))
    whole = _graph(planted, *cohorts)
    words = str(planted.folder / "words.txt")
    gated = private_cohort(planted, evaluation={"canaries": words, "references": False})
    unread = private_cohort(
        planted,
        name="unread",
        source={"path": str(planted.folder / "unread.jsonl")},
        public_facts=FACTS,
        methods=[{"method": "mean_clustered"}],
    )
    left_out = "" if everything else f" and not ({NOT_PRIVATE})"
    paying = f'key:"{COHORT}/mean_clustered/candidate_corpus"'
    planned: list[tuple[str, dg.Definitions, str, str]] = [
        (WHOLE, whole, f'(+key:"{COHORT}/*" or +key:"{SECRET_COHORT}/*"){left_out}', ""),
        ("source torn", _graph(planted, torn_cohort(planted)), f'key:"{TORN}/shared/*"', ""),
        ("gate refuses", _graph(planted, gated), f'key:"{COHORT}/dp_fine_tuning/corpus"', ""),
        (
            "embedder fails",
            _graph(planted, unread, faulty=faulty_models()),
            'key:"unread/shared/private_records" or key:"unread/shared/private_embeddings"',
            "",
        ),
    ]
    breaking = _graph(planted, *cohorts, faulty=faulty_store())
    for number, wave in enumerate(_waves(whole), start=1):
        selection = " or ".join(f'key:"{key.to_user_string()}"' for key in wave)
        planned.append((f"{BREAKING}, {number}", breaking, selection, "second"))
    less = private_cohort(planted, budget={**BUDGET, "epsilon": 20.0})
    planned.append(("budget refuses", _graph(planted, less), paying, "third"))
    with dg.DagsterInstance.local_temp(str(home / "dagster")) as instance:
        for name, definitions, selection, release in planned:
            with faulty_parts() if name.startswith(BREAKING) else nullcontext():
                ended = _run(definitions, instance, selection, release)
            yield name, ended
            if name == WHOLE:
                close_gate(planted, home)


def close_gate(planted: Planted, home: Path) -> None:
    """Names, beside public words, the longest row that the gated corpus has: its gate closes."""
    files = (home / "released" / COHORT / "dp_fine_tuning").rglob("*.parquet")
    texts = [text for file in files for text in pl.read_parquet(file)["text"]]
    longest = " ".join(max(texts, key=len).split())
    (planted.folder / "words.txt").write_text("\n".join([*PUBLIC_WORDS, longest]))


def _graph(
    planted: Planted, *cohorts: PrivateDatasetSpec, faulty: Mapping[str, Any] | None = None
) -> "dg.Definitions":
    """Cohorts beside the public base, with some resources replaced by faulty ones."""
    import dagster as dg

    from dpsynth_assets.definitions import resources
    from dpsynth_assets.orchestration.assets.public import (
        generation_definitions,
        public_definitions,
    )
    from dpsynth_assets.orchestration.components.cohort import declared_definitions

    base = public_base(planted)
    return dg.Definitions.merge(
        public_definitions(base),
        generation_definitions(base),
        *(declared_definitions(cohort) for cohort in cohorts),
        dg.Definitions(resources={**(resources().resources or {}), **(faulty or {})}),
    )


def _waves(definitions: "dg.Definitions") -> "list[list[dg.AssetKey]]":
    """Every asset that opens the sensitive store, those that another is made of in earlier waves.

    A step is skipped where one before it in the same run failed, so each has to be in a run in
    which nothing before it is.
    """
    import dagster as dg

    graph = definitions.resolve_asset_graph()
    opening = {
        key
        for asset in definitions.assets or ()
        if isinstance(asset, dg.AssetsDefinition)
        and "sensitive_store" in asset.required_resource_keys
        for key in asset.keys
        if key.path[-1] != "private_records"
    }
    wave_of: dict[dg.AssetKey, int] = {}
    for key in graph.toposorted_asset_keys:
        if key in opening:
            before = [wave_of.get(above, 0) for above in graph.get_ancestor_asset_keys(key)]
            wave_of[key] = 1 + max(before, default=0)
    numbers = sorted(set(wave_of.values()))
    return [[key for key, number in wave_of.items() if number == wave] for wave in numbers]


def _run(
    definitions: "dg.Definitions", instance: "dg.DagsterInstance", selection: str, release: str
) -> Ended:
    import dagster as dg

    from dpsynth_assets.tags import RELEASE

    job = definitions.resolve_implicit_global_asset_job_def()
    keys = dg.AssetSelection.from_string(selection).resolve(definitions.resolve_asset_graph())
    result = job.execute_in_process(
        instance=instance,
        asset_selection=list(keys),
        run_config={"loggers": {"console": {"config": {"log_level": "DEBUG"}}}},
        tags={RELEASE: release} if release else {},
        raise_on_error=False,
    )
    failed = (event.step_key for event in result.all_events if event.is_step_failure)
    return Ended(
        succeeded=bool(result.success),
        failed=frozenset(str(step) for step in failed),
        selected=frozenset(key.to_python_identifier() for key in keys),
    )


@contextmanager
def _installation(home: Path, keys: Mapping[str, str]) -> Iterator[None]:
    """A new installation, set up as every command sets up Dagster's home, encrypted."""
    settings = {
        **keys,
        "DPSYNTH_HOME": str(home),
        "DAGSTER_HOME": str(home / "dagster"),
        "DAGSTER_REDACT_USER_CODE_ERRORS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    unset = (
        "DPSYNTH_LEDGER_URL",
        "DPSYNTH_STORE_URL",
        "DPSYNTH_PUBLISH_URL",
        "DPSYNTH_SENSITIVE_URL",
        "DPSYNTH_SHOW_PRIVATE_ERRORS",
    )
    (home / "dagster").mkdir(parents=True, mode=0o700)
    (home / "logs").mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        for name in unset:
            patch.delenv(name, raising=False)
        yield


@contextmanager
def _everything_written(logs: Path) -> Iterator[None]:
    """Sends every logger at DEBUG, and what is printed, also by native code, to files."""
    handler = logging.FileHandler(logs / DEBUG_LOG)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        with ExitStack() as stack, (logs / OUTPUT_LOG).open("a", buffering=1) as output:
            stack.enter_context(redirect_stdout(output))
            stack.enter_context(redirect_stderr(output))
            for descriptor in (1, 2):
                stack.enter_context(_redirected(descriptor, output.fileno()))
            yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()


@contextmanager
def _redirected(descriptor: int, target: int) -> Iterator[None]:
    kept = os.dup(descriptor)
    os.dup2(target, descriptor)
    try:
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)


def main() -> None:
    """Rehearses in a temporary folder and prints what was run and found; 1 if it did not pass."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="skip what reads nothing private")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dpsynth-rehearsal-") as folder:
        rehearsal = rehearse(Path(folder), everything=not arguments.quick)
    lines = [
        f"run: {name}: {'succeeded' if run.succeeded else 'failed'}"
        for name, run in rehearsal.runs.items()
    ]
    made, broken = len(rehearsal.runs[WHOLE].selected), len(rehearsal.broken)
    lines += [
        f"{made} assets made; {broken} failed later with records in hand",
        f"{rehearsal.report}",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.exit(not rehearsal.passed)


if __name__ == "__main__":
    main()
