"""A method in one call, without Dagster: private rows in; corpus, label and ledger entries out.

The steps are those of the assets: the dataset is declared and planned, each stage is charged and
released once (`releases.once`), rows are written, and the label is computed from the ledger.
"""

import shutil
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from dpsynth_assets.datasets import MethodSpec, PrivateDatasetSpec
from dpsynth_assets.methods.base import Method
from dpsynth_assets.methods.cluster_histogram import CLUSTER_HISTOGRAM, ClusterHistogram
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod, PlannedShared
from dpsynth_assets.methods.declared_terms import cohort_terms
from dpsynth_assets.methods.inputs import PrivateInputs, ProgressCallback, PublicInputs, Released
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.registry import get_method
from dpsynth_assets.methods.requests import corpus_request, stage_request
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS, Stage
from dpsynth_assets.methods.topic_histogram import TOPIC_HISTOGRAM
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import POST_PROCESSING
from dpsynth_assets.privacy.ledger import Ledger, LedgerEntry, Reservation
from dpsynth_assets.privacy.ledger.checkpoint import Checkpoint as VerifiedLedger
from dpsynth_assets.privacy.ledger.schema import EMBEDDINGS
from dpsynth_assets.privacy.ledger.witness import Witness
from dpsynth_assets.privacy.release import Cost
from dpsynth_assets.public_base import PublicBase
from dpsynth_assets.public_base.inputs import load_public_inputs, public_versions
from dpsynth_assets.records import canonical_frame
from dpsynth_assets.releases.once import Drawn, StoredRelease, release_once
from dpsynth_assets.releases.store import StoredReleases
from dpsynth_assets.report.label import Label, corpus_label


@dataclass(frozen=True, kw_only=True)
class MethodRun:
    """Result of a run of one method.

    Attributes:
        corpus: Released rows: `text`, `label` and DP-safe provenance; None for a method that
            releases a model instead.
        label: What a reader must know to judge the last release (docs/privacy.md).
        entries: The cohort's entries in the ledger, in order.
        releases: Every release by stage: ledger charge, facts, folder of files.
        plan: What was planned and charged.
    """

    corpus: pl.DataFrame | None = field(repr=False)
    label: Label = field(repr=False)
    entries: tuple[LedgerEntry, ...] = field(repr=False)
    releases: Mapping[str, Released] = field(repr=False)
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
    cohort: str = "run",
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
        cohort: Name of the disjoint set of records, which the ledger charges. A run under the name
            and release of an earlier one finds what that one has paid for.
        release: Name of the release; another name draws afresh and pays.
        declared: Further fields of a dataset file (docs/datasets.md): privacy unit, neighbouring
            relation, public facts, accountant, secrets; under `methods`, those whose corpora this
            one builds on, which are released and written first.
        ledger: What is charged; None: the ledger of this installation.
        store: Folder of released values; None: that of this installation.
        progress: Called with the share of each stage that is done.

    Raises:
        PrivacyError: The budget, the plan or the declaration refuses; nothing private was read.
        ValueError: A setting is wrong.
    """
    spec = _declaration(method, public, epsilon, delta, settings or {}, labels, cohort, declared)
    plan = plan_dataset(spec)
    refusals = [each.plan.refusal for each in plan.methods if each.plan.refusal is not None]
    if refusals:
        raise PrivacyError(refusals[0])
    run = _Run(
        spec=spec,
        plan=plan,
        private=private,
        public=public,
        release=release,
        ledger=ledger or _own_ledger(),
        store=StoredReleases(store or home().releases),
        progress=progress,
    )
    last = run.all_releases(rows)
    entries = tuple(run.ledger.entries(spec.account))
    return MethodRun(
        corpus=last.rows,
        label=corpus_label(entries, last.reservation.id),
        entries=entries,
        releases=run.released,
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
    budget = {"epsilon": epsilon, "delta": delta, **further.pop("budget", {})}
    columns = {"text": "text", **({"labels": ["label"]} if labels else {})}
    facts = further.pop("public_facts", {})
    behind = further.pop("methods", [])
    fields = {
        "name": cohort,
        "source": {"path": "a frame in memory"},
        "columns": columns | further.pop("columns", {}),
        "budget": budget,
        "public_facts": ({"labels": {"label": list(labels)}} if labels else {}) | facts,
        "held_out_fraction": 0.0,
        "public_data": public.spec.name,
        "methods": [*behind, {"method": method, "settings": dict(settings)}],
        **further,
    }
    spec = PrivateDatasetSpec.model_validate(fields)
    bound = [_bound(entry, spec) for entry in spec.methods]
    for histogram, needed in (
        ("cluster_histogram", any(each.uses_histogram for each in bound)),
        ("topic_histogram", any(each.uses_topics for each in bound)),
    ):
        if needed and histogram not in fields:
            fields[histogram] = {}
    return PrivateDatasetSpec.model_validate(fields)


def _bound(entry: MethodSpec, spec: PrivateDatasetSpec) -> Method[Any]:
    kind = get_method(entry.method)
    return kind(kind.config_type.model_validate(entry.settings), cohort_terms(spec))


def _own_ledger() -> Ledger:
    """Opens the ledger of this installation, as its assets do."""
    url = home().ledger_url
    checkpoint = VerifiedLedger(home().root / "ledger", url)
    return Ledger(url, checkpoint=checkpoint, witness=Witness(home().witness))


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
    progress: ProgressCallback
    released: dict[str, Released] = field(default_factory=dict)
    corpora: dict[str, StoredRelease] = field(default_factory=dict)
    read: PrivateInputs | None = field(default=None, repr=False)

    def all_releases(self, rows: int | None) -> StoredRelease:
        """Releases the shared histograms and every stage, then writes; returns the last of them."""
        last: StoredRelease | None = None
        for part in self.plan.parts:
            for stage in part.plan.stages:
                last = self._released(part, stage)
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
        read = (*stage.after, *stage.shared)
        with tempfile.TemporaryDirectory(prefix="dpsynth-stage-") as scratch:
            stored = release_once(
                ledger=self.ledger,
                store=self.store,
                request=stage_request(
                    self.spec,
                    part,
                    stage,
                    release=self.release,
                    inputs={
                        **public_versions(values),
                        **{name: self.released[name].reservation for name in read},
                    },
                    rests_on=None if embedder is None else {EMBEDDINGS: embedder.made_by},
                ),
                terms=self.plan.budget,
                plan=self.plan.releases,
                draw=lambda _: self._drawn(part, stage, values, embedder, Path(scratch)),
                prepare=lambda: part.method.check_public(stage, self._inputs(part, values)),
            )
        self._remember(stage.name, stored)
        return stored

    def _drawn(
        self,
        part: PlannedMethod | PlannedShared,
        stage: Stage,
        values: Mapping[str, Any],
        embedder: Any,
        folder: Path,
    ) -> Drawn:
        """Runs one stage: a public one on public values, a paid one on the records."""
        public = self._inputs(part, values)
        if stage.public:
            made = part.method.make_public(stage, public, folder, self.progress)
            cost = Cost(guarantee=part.plan.guarantee, event=POST_PROCESSING)
        else:
            private = self._private(embedder)
            checkpoint = _Scratch(folder)
            paid = part.method.release(stage, private, public, checkpoint, self.progress)
            made, cost = paid.value, paid.cost
        return Drawn(facts=made.facts, rows=made.rows, cost=cost, files=made.files)

    def _private(self, embedder: Any) -> PrivateInputs:
        """Reads the records in canonical form, and embeds them once where a stage needs it."""
        if self.read is None:
            self.read = PrivateInputs(records=canonical_frame(self.private, self.spec).records)
        if embedder is not None and self.read.embeddings is None:
            embeddings = embedder.embed(self.read.records["text"].to_list())
            self.read = replace(self.read, embeddings=embeddings)
        return self.read

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
            self.spec.engine if part.method.uses_engine else None,
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
        )

    def _written(self, planned: PlannedMethod, asked: int | None) -> StoredRelease:
        """Writes rows from what was released: free, and recorded."""
        method = planned.method
        rows = method.default_rows if asked is None else asked
        values = self.public.values(method.public_inputs | method.writing_inputs)
        names = [stage.name for stage in planned.plan.stages]
        names += [TOPIC_HISTOGRAM] if planned.follows_topics else []

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
                inputs={
                    **public_versions(values),
                    **{name: self.released[name].reservation for name in names},
                    **{name: self.corpora[name].reservation.id for name in planned.builds_on},
                },
                release=self.release,
                run_id="",
            ),
            terms=self.plan.budget,
            plan=self.plan.releases,
            draw=write,
        )
        self._remember(CANDIDATE_CORPUS, stored)
        return stored

    def _remember(self, name: str, stored: StoredRelease) -> None:
        self.released[name] = Released(
            reservation=stored.reservation.id,
            facts=stored.facts,
            folder=self.store.files(stored.reservation.id),
        )


class _Scratch:
    """A checkpoint for a run that is not resumed: it keeps nothing beyond the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "scratch"
        self._saved = folder / "saved"

    @property
    def saved(self) -> Path | None:
        """Folder of the last checkpoint of this process."""
        return self._saved if self._saved.is_dir() else None

    def scratch(self) -> Path:
        """Empties the folder for the next checkpoint, or for the stage's files."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        return self._folder

    def save(self, scratch: Path) -> None:
        """Makes `scratch` the last checkpoint."""
        shutil.rmtree(self._saved, ignore_errors=True)
        scratch.rename(self._saved)
