"""A method in one call, without Dagster: private rows in; corpus, label and ledger entries out.

The dataset is declared and planned, the Runner releases its stages and writes its rows as it does
for the assets, and the label is computed from the ledger.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.dataset_plan import (
    DatasetPlan,
    Planned,
    PlannedMethod,
    cohort_terms,
)
from dpsynth_assets.methods.inputs import ProgressCallback, Released, silent
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.provenance import Node
from dpsynth_assets.methods.registry import bound_method
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import Ledger, LedgerEntry
from dpsynth_assets.public_base import PublicBase
from dpsynth_assets.records.columns import check_columns
from dpsynth_assets.records.record_filters import column_names
from dpsynth_assets.releases.once import StoredRelease
from dpsynth_assets.releases.store import StoredReleases, opened_ledger
from dpsynth_assets.report.label import Label, corpus_label
from dpsynth_assets.run.records import FrameRecords
from dpsynth_assets.run.runner import Reads, Runner

VERSION = "in_memory"
"""Data version of a frame: a release over a source is never taken for one over a frame."""

_ARGUMENTS = ("name", "source", "public_data")
"""Fields of a dataset file that the arguments of `run_method` state."""


@dataclass(frozen=True, kw_only=True)
class MethodRun:
    """Result of a run of one method.

    Attributes:
        corpus: Released rows: `text`, `label` and DP-safe provenance; None for a method that
            releases a model instead.
        label: What a reader must know to judge the last release (docs/privacy.md).
        entries: The cohort's entries in the ledger, in order.
        releases: Every release by folder and stage, e.g. `ctcl/finetuned_generator`: ledger charge,
            facts, folder of files.
        reused: Whether the corpus is one that an earlier run has paid for and stored.
        plan: What was planned and charged.
    """

    corpus: pl.DataFrame | None = field(repr=False)
    label: Label = field(repr=False)
    entries: tuple[LedgerEntry, ...] = field(repr=False)
    releases: Mapping[str, Released] = field(repr=False)
    reused: bool
    plan: DatasetPlan = field(repr=False)


@dataclass(frozen=True)
class InOrder:
    """What a Runner has released so far of a plan.

    Attributes:
        runner: Releases.
        values: Reads or makes public artifacts, by name.
        releases: Every release by folder and stage, e.g. `ctcl/finetuned_generator`.
    """

    runner: Runner
    values: Callable[[Iterable[str]], Mapping[str, Any]]
    releases: dict[str, StoredRelease] = field(default_factory=dict)

    def release(self, part: Planned, rows: int | None = None) -> list[StoredRelease]:
        """Releases the stages of a method, and writes its rows where they are free.

        Args:
            part: What it builds on was released before.
            rows: Rows to write; None: as many as its settings say.
        """
        nodes = self.runner.plan.graph.nodes
        own = [node for node in nodes.values() if node.part is part]
        for node in own:
            reads = self.reads(node)
            if node.stage is not None:
                self.releases[node.name] = self.runner.release(node, reads)
            elif isinstance(part, PlannedMethod):
                self.releases[node.name] = self.runner.write(part, rows, reads)
        return [self.releases[node.name] for node in own]

    def reads(self, node: Node) -> Reads:
        """What there is to read for a node."""
        charges = {place: each.reservation.id for place, each in self.releases.items()}
        return Reads(public=self.values(node.step.reads), charges=charges)


def run_method(  # noqa: PLR0913 - one call says all that a dataset file would
    method: str,
    private: pl.DataFrame,
    public: PublicBase,
    *,
    epsilon: float,
    delta: float,
    settings: Mapping[str, Any] | None = None,
    labels: Sequence[str] = (),
    rows: int | None = None,
    cohort: str,
    release: str = "1",
    declared: Mapping[str, Any] | None = None,
    ledger: Ledger | None = None,
    store: Path | None = None,
    progress: ProgressCallback = silent,
) -> MethodRun:
    """Releases a method's stages and writes its corpus, charging each release to the ledger.

    Args:
        method: Name of a registered method.
        private: Column `text`, and `label` where labels are given. Private.
        public: Public documents and models that the method builds on.
        epsilon: Budget ε of the cohort: everything that is charged to it together.
        delta: Public constant δ.
        settings: Settings of the method, as in a dataset file.
        labels: Public label values; records under another label are set aside.
        rows: Rows to write, where they are free; None: as many as the settings say.
        cohort: Name of the records, whose account in the ledger pays. One name stands for one set
            of people: their records under a second name would have a second budget. A run under
            the name and release of an earlier one finds what that one has paid for and reads
            nothing (`MethodRun.reused`).
        release: Name of the release; another name draws again and pays.
        declared: Further fields of a dataset file (docs/datasets.md): privacy unit, neighbouring
            relation, public facts, accountant, secrets; under `methods`, those whose corpora this
            one builds on, which are released and written first. No release gate stands between.
        ledger: What is charged; None: the ledger of this installation, which compares the records
            with those of its other accounts. Another ledger knows of no other account.
        store: Folder of released values; None: that of this installation.
        progress: Called with the share of each stage that is done.

    Raises:
        PrivacyError: The budget, the plan or the declaration refuses; nothing was charged. Or a
            stage has failed; its own message is withheld, and the same call resumes its charge.
        ValueError: A setting is wrong, or the frame lacks a column.
    """
    spec = declaration(method, public, epsilon, delta, settings or {}, labels, cohort, declared)
    plan = plan_dataset(spec, public.spec)
    refusals = [each.plan.refusal for each in plan.methods if each.plan.refusal is not None]
    if refusals:
        raise PrivacyError(refusals[0])
    check_columns(private.columns, column_names(spec), "the frame", schema=True)
    own = StoredReleases(store or home().releases, None if store is None else store / "unfinished")
    records = FrameRecords(
        spec=spec,
        frame=private,
        release=release,
        embedder=partial(_embedder, public),
        unfinished=own.unfinished,
        compared=ledger is None,
    )
    runner = Runner(
        plan=plan,
        ledger=ledger or opened_ledger(home().ledger_url),
        store=own,
        models=public.models,
        release_name=release,
        records=records,
        progress=progress,
    )
    records.refuse_replaced()
    run = InOrder(runner, public.values)
    for part in plan.parts:
        run.release(part, rows if part is plan.methods[-1] else None)
    last, entries = list(run.releases.values())[-1], runner.ledger.entries()
    return MethodRun(
        corpus=last.rows,
        label=corpus_label(entries, last.reservation.id),
        entries=tuple(entry for entry in entries if entry.cohort == spec.account),
        releases={
            place: Released(
                reservation=each.reservation.id,
                facts=each.facts,
                folder=own.files(each.reservation.id),
            )
            for place, each in run.releases.items()
        },
        reused=last.reservation.reused,
        plan=plan,
    )


def _embedder(public: PublicBase) -> Any:
    manifest = public.values(["text_embedder"])["text_embedder"]
    return public.models.text_embedder(manifest)


def declaration(
    method: str,
    public: PublicBase,
    epsilon: float,
    delta: float,
    settings: Mapping[str, Any],
    labels: Sequence[str],
    cohort: str,
    declared: Mapping[str, Any] | None,
) -> PrivateDatasetSpec:
    """Writes the dataset file that these arguments stand for, with the histograms it needs."""
    further = dict(declared or {})
    budget = {"epsilon": epsilon, "delta": delta}
    _refuse_repeated("declared", _ARGUMENTS, further)
    _refuse_repeated("declared.budget", budget, further.get("budget", {}))
    budget |= further.pop("budget", {})
    columns = {"text": "text", **({"labels": ["label"]} if labels else {})}
    facts = further.pop("public_facts", {})
    behind = further.pop("methods", [])
    fields = {
        "name": cohort,
        "source": {"path": "a frame in memory", "version": VERSION},
        "columns": columns | further.pop("columns", {}),
        "budget": budget,
        "public_facts": ({"labels": {"label": list(labels)}} if labels else {}) | facts,
        "held_out_fraction": 0.0,
        "public_data": public.spec.name,
        "methods": [*behind, {"method": method, "settings": dict(settings)}],
        **further,
    }
    spec = PrivateDatasetSpec.model_validate(fields)
    terms = cohort_terms(spec, public.spec)
    bound = [bound_method(entry.method, entry.settings, terms) for entry in spec.methods]
    for histogram, needed in (
        ("cluster_histogram", any(s.follows_clusters for each in bound for s in each.stages())),
        ("topic_histogram", any(w.follows_topics for each in bound if (w := each.writing()))),
    ):
        if needed and histogram not in fields:
            fields[histogram] = {}
    return PrivateDatasetSpec.model_validate(fields)


def _refuse_repeated(field_name: str, arguments: Iterable[str], fields: Iterable[str]) -> None:
    """Refuses fields of a dataset file that the call's own arguments state."""
    for name in sorted(set(arguments) & set(fields)):
        raise ValueError(
            f"{field_name}.{name}: expected no field that is also an argument, got {name!r}. Give "
            "it as the argument only."
        )
