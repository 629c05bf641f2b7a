"""A rehearsal: the whole graph on planted canaries, runs that fail on purpose, and a leak scan.

Everything a run may write is caught below one folder: Dagster's home with its event database, the
debug log of every Python logger, standard output and error (also of native code), stores, reports,
cards and released files. Then all of it is searched, for the canaries and for the keys that the
environment held. The sensitive store is encrypted, so it is searched too.
"""

import base64
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dpsynth_assets.attacks.leak_scan import LeakReport, scan_folders
from dpsynth_assets.cli.leak_planting import (
    COHORT,
    TORN,
    Planted,
    plant,
    private_cohort,
    public_base,
    torn_cohort,
)
from dpsynth_assets.resources.sealing import KEY_VARIABLE

if TYPE_CHECKING:
    import dagster as dg

NOT_PRIVATE = " or ".join(
    f'key:"{COHORT}/audit/{name}"'
    for name in ("mechanism_audits", "reconstruction_test", "median_audit")
)
"""Stages that run on made-up data alone; they take most of the time of a small graph."""

DEBUG_LOG, OUTPUT_LOG = "debug.log", "output.log"


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What was run and what was found.

    Attributes:
        runs: Name of each run -> whether it succeeded.
        report: The scan of everything they wrote, the encrypted sensitive store included.
        control: The scan of the store's records once decrypted, which has to find canaries.
    """

    runs: Mapping[str, bool]
    report: LeakReport
    control: LeakReport

    @property
    def passed(self) -> bool:
        """Whether runs ended as they should, nothing leaked, and the search itself works."""
        ended = all(good == (name == "whole graph") for name, good in self.runs.items())
        return ended and self.report.clean and bool(self.control.leaks)


def rehearse(folder: Path, *, everything: bool = True) -> Rehearsal:
    """Plants canaries in a new house below `folder`, runs it, breaks it, and searches it.

    Args:
        folder: Empty folder for sources and house.
        everything: Also run the stages that read nothing private.
    """
    planted = plant(folder)
    home = folder / "home"
    keys = {
        KEY_VARIABLE: base64.b64encode(secrets.token_bytes(32)).decode(),
        "OPENAI_API_KEY": f"sk-{secrets.token_hex(16)}",
    }
    with _house(home, keys):
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
    from dpsynth_assets.resources.sensitive_store import SensitiveStore

    private = SensitiveStore().read_internal(COHORT, "source", purpose="internal evaluation")
    folder.mkdir(mode=0o700)
    private.records.write_parquet(folder / "source.parquet")
    return folder


def _runs(planted: Planted, home: Path, *, everything: bool) -> Iterator[tuple[str, bool]]:
    """The whole graph first; then what goes wrong in practice, each with private text at hand."""
    import dagster as dg

    from dpsynth_assets.assets.public import public_definitions
    from dpsynth_assets.assets.public_generation import generation_definitions
    from dpsynth_assets.components.cohort import cohort_definitions
    from dpsynth_assets.defs.resources import resources

    base = public_base(planted)
    public = dg.Definitions.merge(public_definitions(base), generation_definitions(base))
    spec = private_cohort(planted)
    words = str(planted.folder / "words.txt")
    gated = private_cohort(planted, evaluation={"canaries": words, "references": False})

    def house(cohort: Any, faulty: "Mapping[str, Any] | None" = None) -> dg.Definitions:
        """A cohort beside the public base, with some resources replaced by faulty ones."""
        parts = [public, cohort_definitions(cohort)]
        if not faulty:
            return dg.Definitions.merge(*parts, resources())
        working = dict(resources().resources or {})
        return dg.Definitions.merge(*parts, dg.Definitions(resources={**working, **faulty}))

    left_out = "" if everything else f" and not ({NOT_PRIVATE})"
    paying = f'key:"{COHORT}/mean_clustered/candidate_corpus"'
    training = f'key:"{COHORT}/dp_fine_tuning/finetuned_generator"'
    planned: list[tuple[str, Callable[[], dg.Definitions], str, str]] = [
        ("whole graph", lambda: house(spec), f'+key:"{COHORT}/*"{left_out}', ""),
        ("source torn", lambda: house(torn_cohort(planted)), f'key:"{TORN}/shared/*"', ""),
        ("gate refuses", lambda: house(gated), f'key:"{COHORT}/dp_fine_tuning/corpus"', ""),
        ("store fails", lambda: house(spec, _faulty_store()), paying, "second"),
        ("training fails", lambda: house(spec, _faulty_store()), training, "second"),
        (
            "embedder fails",
            lambda: house(private_cohort(planted, name="unread"), _faulty_models()),
            'key:"unread/shared/private_records" or key:"unread/shared/private_embeddings"',
            "",
        ),
        ("budget refuses", lambda: house(spec), paying, "third"),
    ]
    with dg.DagsterInstance.local_temp(str(home / "dagster")) as instance:
        for name, definitions, selection, release in planned:
            yield name, _run(definitions(), instance, selection, release)


def _run(
    definitions: "dg.Definitions", instance: "dg.DagsterInstance", selection: str, release: str
) -> bool:
    import dagster as dg

    from dpsynth_assets.tags import RELEASE

    job = definitions.resolve_implicit_global_asset_job_def()
    graph = definitions.resolve_asset_graph()
    result = job.execute_in_process(
        instance=instance,
        asset_selection=list(dg.AssetSelection.from_string(selection).resolve(graph)),
        run_config={"loggers": {"console": {"config": {"log_level": "DEBUG"}}}},
        tags={RELEASE: release} if release else {},
        raise_on_error=False,
    )
    return bool(result.success)


def _faulty_store() -> dict[str, Any]:
    """A store whose reading for a release fails with an error that quotes the records."""
    from dpsynth_assets.resources.sensitive_store import SensitiveStore

    class FaultySensitiveStore(SensitiveStore):
        """Reads, and fails with what it read."""

        def read_for_release(self, *arguments: Any, **options: Any) -> NoReturn:
            """Raises an error that quotes private text, chained to another that does."""
            private = super().read_for_release(*arguments, **options)
            cause = KeyError(private.records["record_id"].to_list())
            raise ValueError(str(private.records.to_dicts())) from cause

    return {"sensitive_store": FaultySensitiveStore()}


def _faulty_models() -> dict[str, Any]:
    """Models whose embedder fails with an error that quotes what it was given."""
    from dpsynth_assets.resources.models import Models

    class QuotingEmbedder:
        """An embedder that fails as tokenizers do, with the text that it could not read."""

        def embed(self, texts: list[str], progress: object = None) -> NoReturn:
            """Raises an error that quotes every text."""
            del progress
            raise RuntimeError("cannot tokenize " + " ".join(texts))

    class FaultyModels(Models):
        """Every text embedder fails."""

        def text_embedder(self, manifest: Any) -> Any:
            """An embedder that fails."""
            del manifest
            return QuotingEmbedder()

    return {"models": FaultyModels()}


@contextmanager
def _house(home: Path, keys: Mapping[str, str]) -> Iterator[None]:
    """A house of its own, set up as every command sets up Dagster's home, encrypted."""
    settings = {
        **keys,
        "DPSYNTH_HOME": str(home),
        "DAGSTER_HOME": str(home / "dagster"),
        "DAGSTER_REDACT_USER_CODE_ERRORS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    unset = ("DPSYNTH_LEDGER_URL", "DPSYNTH_STORE_URL", "DPSYNTH_PUBLISH_URL")
    before = {name: os.environ.get(name) for name in (*settings, *unset)}
    (home / "dagster").mkdir(parents=True, mode=0o700)
    (home / "logs").mkdir(mode=0o700)
    os.environ.update(settings)
    for name in unset:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


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
