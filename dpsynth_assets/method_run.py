"""A method in one call, without Dagster: private rows in; corpus, label and ledger entries out.

The steps are those of the assets: the dataset is declared and planned, each stage is charged and
released once (`releases.once`), rows are written, and the label is computed from the ledger.
"""

import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.disk_room import Room
from dpsynth_assets.files.redaction import may_be_shown, redacted
from dpsynth_assets.methods.cluster_histogram import CLUSTER_HISTOGRAM, ClusterHistogram
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod, PlannedShared
from dpsynth_assets.methods.declared_terms import cohort_terms
from dpsynth_assets.methods.inputs import PrivateInputs, ProgressCallback, PublicInputs, Released
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.provenance import Node
from dpsynth_assets.methods.registry import bound_method
from dpsynth_assets.methods.requests import corpus_request, stage_request
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS, FINETUNED_GENERATOR, Stage
from dpsynth_assets.methods.topic_histogram import TOPIC_HISTOGRAM
from dpsynth_assets.models.fine_tuning import CheckpointFolders
from dpsynth_assets.paths import begin_home, home
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import POST_PROCESSING
from dpsynth_assets.privacy.guarantees import EMBEDDINGS
from dpsynth_assets.privacy.ledger import Ledger, LedgerEntry, Reservation
from dpsynth_assets.privacy.release import Cost
from dpsynth_assets.public_base import PublicBase
from dpsynth_assets.public_base.inputs import load_public_inputs, model_files, public_versions
from dpsynth_assets.records import canonical_frame
from dpsynth_assets.records.columns import check_columns
from dpsynth_assets.records.reading import frame_rows, refuse_unfit
from dpsynth_assets.records.record_filters import column_names
from dpsynth_assets.records.source_digest import declared_state, source_digest
from dpsynth_assets.releases.once import Drawn, StoredRelease, release_once
from dpsynth_assets.releases.store import StoredReleases
from dpsynth_assets.report.label import Label, corpus_label
from dpsynth_assets.sensitive.fingerprints import (
    NONE,
    Fingerprints,
    Prints,
    Reader,
    id_prints,
    refuse_unmatched,
)
from dpsynth_assets.sensitive.opened_ledger import opened_ledger
from dpsynth_assets.sensitive.private_files import files_below
from dpsynth_assets.sensitive.read_records import ReadRecords
from dpsynth_assets.sensitive.unfinished import StoredCheckpoint, StoredPasses

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
    progress: ProgressCallback = lambda _share, _message: None,
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
        release: Name of the release; another name draws afresh and pays.
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
    spec = _declaration(method, public, epsilon, delta, settings or {}, labels, cohort, declared)
    plan = plan_dataset(spec, public.spec)
    refusals = [each.plan.refusal for each in plan.methods if each.plan.refusal is not None]
    if refusals:
        raise PrivacyError(refusals[0])
    check_columns(private.columns, column_names(spec), "the frame", schema=True)
    run = _Run(
        spec=spec,
        plan=plan,
        private=private,
        public=public,
        release=release,
        ledger=ledger or _own_ledger(),
        store=StoredReleases(
            store or home().releases, None if store is None else store / "unfinished"
        ),
        compared=ledger is None,
        progress=progress,
    )
    run.refuse_replaced()
    last = run.all_releases(rows)
    entries = run.ledger.entries()
    return MethodRun(
        corpus=last.rows,
        label=corpus_label(entries, last.reservation.id),
        entries=tuple(entry for entry in entries if entry.cohort == spec.account),
        releases=run.everything,
        reused=last.reservation.reused,
        plan=plan,
    )


def _declaration(
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
        ("cluster_histogram", any(each.uses_histogram for each in bound)),
        ("topic_histogram", any(each.uses_topics for each in bound)),
    ):
        if needed and histogram not in fields:
            fields[histogram] = {}
    return PrivateDatasetSpec.model_validate(fields)


def _refuse_repeated(field_name: str, arguments: Iterable[str], fields: Iterable[str]) -> None:
    """Refuses fields of a dataset file that the call's own arguments state."""
    for name in sorted(set(arguments) & set(fields)):
        raise ValueError(
            f"{field_name}.{name}: expected fields that no argument states, got one of {name!r}. "
            "Give it as the argument alone."
        )


def _own_ledger() -> Ledger:
    """Opens the ledger of this installation, as its assets do."""
    begin_home()
    return opened_ledger(home().ledger_url)


@dataclass(kw_only=True)
class _Run:
    """One run: everything that its steps share, and what they have released so far."""

    spec: PrivateDatasetSpec
    plan: DatasetPlan
    private: pl.DataFrame = field(repr=False)
    public: PublicBase
    release: str
    ledger: Ledger
    store: StoredReleases
    compared: bool
    progress: ProgressCallback
    everything: dict[str, Released] = field(default_factory=dict)
    released: dict[str, Released] = field(default_factory=dict)
    corpora: dict[str, StoredRelease] = field(default_factory=dict)
    read: PrivateInputs | None = field(default=None, repr=False)

    def refuse_replaced(self) -> None:
        """Refuses another frame than the one that this release's paid stages read."""
        if not self.compared:
            return
        with _withheld(f"Reading cohort {self.spec.name!r}", "Nothing was charged."):
            differ = self._read_records.differ(self.spec.name, *self._state)
        if differ:
            raise self._replaced()

    def _replaced(self) -> PrivacyError:
        return PrivacyError(
            f"private: expected the records that release {self.release!r} of {self.spec.name!r} "
            "was paid for, got others. Nothing was charged: give those records, or, if these are "
            "meant, another name of the release, which pays again."
        )

    @property
    def _state(self) -> tuple[str, Callable[[bytes], str]]:
        """The name of the frame's state, and the digest of its rows under a key."""
        state = declared_state(self.spec, self.release)
        return state, lambda key: source_digest(frame_rows(self.private, self.spec), self.spec, key)

    def all_releases(self, rows: int | None) -> StoredRelease:
        """Releases the shared histograms and every stage, then writes; returns the last of them."""
        last: StoredRelease | None = None
        shared: dict[str, Released] = {}
        for part in self.plan.parts:
            self.released = dict(shared)
            for stage in part.plan.stages:
                last = self._released(part, stage)
            if isinstance(part, PlannedShared):
                shared = self.released
            if isinstance(part, PlannedMethod) and part.writes_corpus:
                asked = rows if part is self.plan.methods[-1] else None
                last = self._written(part, asked) if part.method.rows_are_free else last
                if last is not None:
                    self.corpora[part.folder] = last
        if last is None:
            name = self.plan.methods[-1].method.name
            raise ValueError(f"Expected a method that releases something, got {name}.")
        return last

    def _released(self, part: PlannedMethod | PlannedShared, stage: Stage) -> StoredRelease:
        """Charges, draws and stores one stage; or finds what an earlier run has stored."""
        values = self.public.values(part.method.public_inputs)
        embedder = self._embedder() if stage.needs_embeddings else None
        node = self.plan.graph.nodes[f"{part.folder}/{stage.name}"]
        with tempfile.TemporaryDirectory(prefix="dpsynth-stage-") as scratch:
            stored = release_once(
                ledger=self.ledger,
                store=self.store,
                request=stage_request(
                    self.spec,
                    part,
                    stage,
                    release=self.release,
                    inputs=node.inputs(public_versions(values), self._charges),
                    rests_on=None if embedder is None else {EMBEDDINGS: embedder.made_by},
                ),
                terms=self.plan.budget,
                plan=self.plan.releases,
                draw=partial(self._drawn, part, stage, values, embedder, Path(scratch)),
                passes=None if stage.public else partial(self._unfinished, stage),
                drawn_from=partial(self._drawn_from, node, stage, values),
                prepare=partial(self._prepare, part, stage, values),
                rests_on=lambda: part.method.rests_on(stage, self._inputs(part, values)),
            )
        self._remember(part, stage.name, stored)
        return stored

    def _prepare(
        self, part: PlannedMethod | PlannedShared, stage: Stage, values: Mapping[str, Any]
    ) -> Room:
        """Refuses, before a charge, what the stage could not end with, and shared records."""
        public = self._inputs(part, values)
        part.method.check_public(stage, public)
        if not stage.public:
            with _withheld(f"Reading cohort {self.spec.name!r}", "Nothing was charged."):
                self._private(None)
                if self.compared:
                    self._refuse_shared_records()
        return part.method.room(stage, public)

    def _drawn_from(self, node: Node, stage: Stage, values: Mapping[str, Any]) -> dict[str, Any]:
        """All that decides the draw beside its request; binds the charge to this frame."""
        engine = self.plan.terms.engine if node.part.method.uses_engine else None
        embedder = self._embedder().made_by if stage.needs_embeddings else {}
        return {
            **node.drawn_from,
            "files": model_files(values, engine),
            "embedded": embedder,
            "records": self._paid_for(),
        }

    def _paid_for(self) -> str:
        """The digest of the frame under the key of the store where an unfinished draw lies."""
        with _withheld(f"Reading cohort {self.spec.name!r}", "Nothing was charged."):
            state, digest = self._state
            if self.compared:
                rows = self._read_records
                with rows.alone(self.spec.name):
                    if not rows.note_paid(self.spec.name, state, digest(rows.key)):
                        raise self._replaced()
                self._fingerprints.note_paid(self.spec.name)
            kept = self.store.unfinished
            return digest(ReadRecords(files_below(kept), kept).key)

    def _unfinished(
        self, stage: Stage, reservation: Reservation
    ) -> StoredCheckpoint | StoredPasses:
        """Opens what a killed run of a stage left under its charge."""
        files = files_below(self.store.unfinished)
        folder = self.store.unfinished / self.spec.name / "passes" / reservation.id
        files.make_folder(folder.parent)
        kind = StoredPasses if stage.resumes_by == "passes" else StoredCheckpoint
        return kind(files, folder)

    def _drawn(
        self,
        part: PlannedMethod | PlannedShared,
        stage: Stage,
        values: Mapping[str, Any],
        embedder: Any,
        folder: Path,
        reservation: Reservation,
    ) -> Drawn:
        """Runs one stage: a public one on public values, a paid one on the records."""
        public = self._inputs(part, values)
        if stage.public:
            made = part.method.make_public(stage, public, folder, self.progress)
            cost = Cost(guarantee=part.plan.guarantee, event=POST_PROCESSING)
        else:
            kept = self._unfinished(stage, reservation)
            name = f"{self.spec.name}/{part.folder}/{stage.name}"
            with _withheld(name, "Its charge stands; the same call resumes it."):
                private = self._private(embedder)
                if isinstance(kept, StoredPasses):
                    private = replace(private, passes=kept)
                scratch = CheckpointFolders(folder / "run")
                checkpoint = kept if isinstance(kept, StoredCheckpoint) else scratch
                paid = part.method.release(stage, private, public, checkpoint, self.progress)
            made, cost = paid.value, paid.cost
        return Drawn(facts=made.facts, rows=made.rows, cost=cost, files=made.files)

    def _private(self, embedder: Any) -> PrivateInputs:
        """Reads the records in canonical form, and embeds them once where a stage needs it."""
        if self.read is None:
            canonical = canonical_frame(self.private, self.spec)
            refuse_unfit(canonical.tally, self.spec)
            self.read = PrivateInputs(records=canonical.records)
        if embedder is not None and self.read.embeddings is None:
            embeddings = embedder.embed(self.read.records["text"].to_list())
            self.read = replace(self.read, embeddings=embeddings)
        return self.read

    @property
    def _fingerprints(self) -> Fingerprints:
        """Those of this installation, wherever the values of this run go."""
        return Fingerprints(files_below(home().sensitive), home().sensitive)

    @property
    def _read_records(self) -> ReadRecords:
        """Digests of the records that each cohort of this installation was read with."""
        return ReadRecords(files_below(home().sensitive), home().sensitive)

    def _refuse_shared_records(self) -> None:
        """Keeps fingerprints of the records, as the assets do, or refuses another account's."""
        name, account = self.spec.name, self.spec.account
        reader = Reader(cohort=name, account=account, dataset=self.spec.dataset, places=())
        records, key = self._private(None).records, self._read_records.key
        refuse_unmatched(self.spec, Prints(NONE, id_prints(records["record_id"], key)), key)
        other = self._fingerprints.admit(reader, records["text"])
        if other is not None:
            raise PrivacyError(
                f"cohort: expected records that no other account pays for, got some that {other!r} "
                f"has read: {name!r} would spend a second budget on them. Name that cohort."
            )

    def _embedder(self) -> Any:
        manifest = self.public.values(["text_embedder"])["text_embedder"]
        return self.public.models.text_embedder(manifest)

    def _inputs(
        self, part: PlannedMethod | PlannedShared, values: Mapping[str, Any]
    ) -> PublicInputs:
        """Opens public artifacts, and adds what was released before."""
        opened = load_public_inputs(
            values,
            self.public.models,
            part.method.terms,
            self.plan.terms.engine if part.method.uses_engine else None,
            salt=f"{self.spec.name}/{part.folder}/{self.release}",
            seed=zlib.crc32(self.release.encode()),
        )
        clusters = self.released.get(CLUSTER_HISTOGRAM)
        topics = self.released.get(TOPIC_HISTOGRAM)
        return replace(
            opened,
            released=self.released,
            cluster_histogram=None
            if clusters is None
            else ClusterHistogram.from_json(dict(clusters.facts)),
            topic_histogram=None if topics is None else topics.facts,
            corpora={
                folder: corpus.rows
                for folder, corpus in self.corpora.items()
                if corpus.rows is not None
            },
            generators={
                folder: self.everything[name].folder
                for folder in self.corpora
                if (name := f"{folder}/{FINETUNED_GENERATOR}") in self.everything
            },
        )

    def _written(self, planned: PlannedMethod, asked: int | None) -> StoredRelease:
        """Writes rows from what was released: free, and recorded."""
        method = planned.method
        rows = method.default_rows if asked is None else asked
        values = self.public.values(method.public_inputs | method.writing_inputs)
        node = self.plan.graph.nodes[planned.corpus]

        def write(_: Reservation) -> Drawn:
            made = method.write(self._inputs(planned, values), rows, self.progress)
            cost = Cost(guarantee=planned.plan.guarantee, event=POST_PROCESSING)
            return Drawn(facts=made.facts, rows=made.rows, cost=cost)

        stored = release_once(
            ledger=self.ledger,
            store=self.store,
            request=corpus_request(
                self.spec,
                planned,
                rows=rows,
                inputs=node.inputs(public_versions(values), self._charges),
                release=self.release,
                run_id="",
            ),
            terms=self.plan.budget,
            plan=self.plan.releases,
            draw=write,
        )
        self._remember(planned, CANDIDATE_CORPUS, stored)
        return stored

    @property
    def _charges(self) -> dict[str, str]:
        """Charge of all that was released, by its node."""
        return {name: made.reservation for name, made in self.everything.items()}

    def _remember(
        self, part: PlannedMethod | PlannedShared, name: str, stored: StoredRelease
    ) -> None:
        self.released[name] = Released(
            reservation=stored.reservation.id,
            facts=stored.facts,
            folder=self.store.files(stored.reservation.id),
        )
        self.everything[f"{part.folder}/{name}"] = self.released[name]


@contextmanager
def _withheld(name: str, remedy: str) -> Iterator[None]:
    """Replaces an error that may quote private text by one line that does not."""
    try:
        yield
    except PrivacyError:
        raise
    except Exception as error:  # noqa: BLE001 - any error here may carry private text
        line = f"{redacted(name, error)} {remedy}"
        raise PrivacyError(line) from (error if may_be_shown() else None)
