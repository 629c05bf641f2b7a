"""The runner of all releases: request, charge, then draw or use the stored value.

Assets, `run_method`, benchmarks and rehearsals hold a Runner. What a release reads, what it is
known by, what is checked before a charge, what a killed run left, and what of an error may be said
stand here; that one charge pays for one value stands in `releases.once`. Beside the records a
release reads public artifacts, and releases before it (`Reads`).
"""

import json
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import polars as pl

from dpsynth_assets.files.redaction import withheld
from dpsynth_assets.files.whole import Room
from dpsynth_assets.methods.base import REJECTION, room_of
from dpsynth_assets.methods.dataset_plan import (
    DatasetPlan,
    Planned,
    PlannedMethod,
    corpus_request,
    stage_request,
)
from dpsynth_assets.methods.inputs import ProgressCallback, PublicInputs, Released
from dpsynth_assets.methods.on_generator import on_generator
from dpsynth_assets.methods.provenance import Node
from dpsynth_assets.methods.rejection_sampling import check_judge
from dpsynth_assets.methods.shared_histograms import (
    CLUSTER_HISTOGRAM,
    TOPIC_HISTOGRAM,
    ClusterHistogram,
)
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS, Stage, StageRelease
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import POST_PROCESSING
from dpsynth_assets.privacy.guarantees import Cost, GuaranteeType, Release
from dpsynth_assets.privacy.ledger import Ledger, ReleaseRequest, Reservation
from dpsynth_assets.public_base.making import (
    OpenedModels,
    load_public_inputs,
    model_files,
    public_versions,
)
from dpsynth_assets.releases.once import Releasing, StoredRelease, plain_json
from dpsynth_assets.releases.store import StoredReleases, sealed_release
from dpsynth_assets.run.records import RecordSource
from dpsynth_assets.sensitive.unfinished import StoredCheckpoint


@dataclass(frozen=True, kw_only=True)
class Reads:
    """What there is to read; a release takes of it what its node names.

    Attributes:
        public: Artifacts of the public base, by name.
        charges: Charge of each release before, by node; of a corpus that a method builds on also
            that of the weights behind it, or once more its own where no weights wrote it.
    """

    public: Mapping[str, Any]
    charges: Mapping[str, str] = field(default_factory=dict)


RECORDED_VERSION = "1"
"""Code version of what leaves by a command."""


def name_problem(name: str) -> str | None:
    """Says why a release cannot be called so: a name that looks like a paid one would pay again."""
    if name == name.strip() and name.isprintable():
        return None
    return (
        "Expected a name of a release without blanks at its ends and without invisible "
        f"characters, got {name!a}. Write the name again: a different name is a different release."
    )


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Releases the nodes of one cohort's plan, under one name of a release.

    Attributes:
        plan: What is released, and from what.
        ledger: Charged before private data is read.
        store: Where released values lie.
        models: Opens public models.
        release_name: Name of the release; another name draws again and pays.
        records: The private records; None where only public stages and rows are asked for.
        run_id: Run that asks, for the ledger.
        progress: Told the share of a release that is done.
        charged: Called with this Runner once a charge is on disk, before records are read.
    """

    plan: DatasetPlan
    ledger: Ledger
    store: StoredReleases
    models: OpenedModels = field(default_factory=OpenedModels)
    release_name: str = ""
    records: RecordSource | None = None
    run_id: str = ""
    progress: ProgressCallback = lambda _share, _message: None
    charged: "Callable[[Runner], None]" = lambda _: None

    def __post_init__(self) -> None:
        """Refuses a name that cannot be told from another one by looking at it."""
        if (problem := name_problem(self.release_name)) is not None:
            raise PrivacyError(problem)

    def release(self, node: Node, reads: Reads) -> StoredRelease:
        """Charges, draws and stores one stage; or finds what an earlier run has stored.

        Args:
            node: A stage of the plan, of a method that is not refused.
            reads: Public artifacts and earlier releases, those of the node among them.

        Raises:
            PrivacyError: The budget, the plan or the declaration refuses, and nothing was charged;
                or the stage failed, and its charge stands. Messages may be shown.
        """
        if node.stage is None:
            raise TypeError(f"Expected a stage, got rows of {node.name}: they are written.")
        stored = _StageRun(self, node, reads, node.stage).stored()
        if stored.reservation.reused:
            self.progress(1.0, "stored release reused, nothing charged")
        return stored

    def write(self, planned: PlannedMethod, rows: int | None, reads: Reads) -> StoredRelease:
        """Writes rows from what was released, or finds them written: free, and recorded.

        Args:
            planned: A method of the plan whose rows are free.
            rows: How many; None: as many as its settings say.
            reads: Public artifacts and releases, those that the rows are written from among them.
        """
        writing = planned.writing
        if writing is None:
            raise TypeError(f"Expected a method that writes rows, got {planned.folder}.")
        number = writing.rows if rows is None else rows
        opened = Opened(self, self.plan.graph.nodes[planned.corpus], reads)

        def draw(_: Reservation) -> Release[StageRelease]:
            made = writing.write(opened.inputs(), number, self.progress)
            return Release(value=made, cost=_free(planned))

        request = corpus_request(
            self.plan.spec,
            planned,
            rows=number,
            inputs=opened.identities,
            release=self.release_name,
            run_id=self.run_id,
        )
        return self.released(request, draw)

    def released(
        self,
        request: ReleaseRequest,
        draw: Callable[[Reservation], Release[StageRelease]],
        **more: Any,
    ) -> StoredRelease:
        """Finds a value of the plan, or charges and draws it; see `Releasing`."""
        return Releasing(
            ledger=self.ledger,
            store=self.store,
            request=request,
            terms=self.plan.budget,
            plan=self.plan.releases,
            draw=draw,
            **more,
        ).released()

    def record(
        self,
        asset: str,
        *,
        mechanism: str,
        parameters: Mapping[str, Any],
        release: str,
        facts: Mapping[str, Any],
    ) -> StoredRelease:
        """Writes a line of the ledger for what leaves by a command, or finds it written.

        **Privacy** Post-processing of what was released: charged nothing.

        Args:
            asset: What leaves.
            mechanism: What makes it, e.g. `export`.
            parameters: What it was made from, and what it is known by.
            release: Name of the release.
            facts: What is kept of it.
        """
        spec, cost = self.plan.spec, Cost(guarantee=GuaranteeType.DP, event=POST_PROCESSING)
        request = ReleaseRequest(
            cohort=spec.account,
            dataset=spec.dataset,
            asset=asset,
            mechanism=mechanism,
            guarantee=cost.guarantee,
            event=cost.event,
            parameters=parameters,
            code_version=RECORDED_VERSION,
            data_version=spec.source.version,
            release=release,
        )
        made = Release(value=StageRelease(facts=facts), cost=cost)
        return self.released(request, lambda _: made)

    def budget_line(self) -> str:
        """What is reserved of the budget by now."""
        spend = self.ledger.spend(self.plan.spec.account, self.plan.budget)
        of = declared(self.plan.budget.epsilon)
        return f"budget ε {epsilon_up(spend.epsilon)} of {of} reserved"


@dataclass(frozen=True)
class Opened:
    """Opens what one release reads beside the records."""

    runner: Runner
    node: Node
    reads: Reads

    @property
    def artifacts(self) -> dict[str, Any]:
        """The public artifacts that are read."""
        names = self.node.step.reads
        return {name: value for name, value in self.reads.public.items() if name in names}

    @property
    def identities(self) -> dict[str, str]:
        """Identity of each public artifact and earlier release, for the ledger."""
        return self.node.inputs(public_versions(self.artifacts), self.reads.charges)

    def inputs(self) -> PublicInputs:
        """Opens all of it: public models, and releases as the ledger sealed them.

        Raises:
            LedgerIntegrityError: The ledger has sealed no such release, or the store holds another.
        """
        node, release = self.node, self.runner.release_name
        opened = load_public_inputs(
            self.artifacts,
            self.runner.models,
            node.part.method.terms,
            node.step.engine,
            salt=f"{node.spec.name}/{node.part.folder}/{release}",
            seed=zlib.crc32(release.encode()),  # Another release writes other rows.
        )
        charges, corpora = self.reads.charges, {}
        # Rows that are served are written from releases alone: no corpus is among the charges.
        found = {
            name: self._released(place)[0] for name, place in node.reads.items() if place in charges
        }
        clusters, topics = found.get(CLUSTER_HISTOGRAM), found.get(TOPIC_HISTOGRAM)
        for folder in node.corpora:
            corpus = f"{folder}/{CANDIDATE_CORPUS}"
            if corpus in charges:
                corpora[folder] = self._released(corpus)[1]
        for folder, place in node.generators.items():
            if charges.get(place) in (None, charges.get(f"{folder}/{CANDIDATE_CORPUS}")):
                raise ValueError(
                    f"Expected the fine-tuned language model of {folder}, got none. Publish its "
                    "corpus first, or name another method's folder as `generator`."
                )
            weights = self._released(place)[0].folder
            opened = on_generator(opened, weights, node.part.method.terms, node.step.engine)
        return replace(
            opened,
            released=found,
            cluster_histogram=clusters and ClusterHistogram.model_validate(clusters.facts),
            topic_histogram=None if topics is None else topics.facts,
            corpora=corpora,
        )

    def _released(self, place: str) -> tuple[Released, pl.DataFrame]:
        charge, asset = self.reads.charges[place], f"{self.node.spec.name}/{place}"
        store = self.runner.store
        facts, rows = sealed_release(self.runner.ledger, store, charge, asset)
        released = Released(reservation=charge, facts=facts, folder=store.files(charge))
        return released, pl.DataFrame() if rows is None else rows


@dataclass(frozen=True)
class _StageRun(Opened):
    """One run of one stage: its request, what is checked before a charge, and its draw."""

    stage: Stage

    @property
    def name(self) -> str:
        """The stage's asset key as one string."""
        return f"{self.node.spec.name}/{self.node.name}"

    @property
    def records(self) -> RecordSource:
        """The private records, which no public stage asks for."""
        if self.stage.public or self.runner.records is None:
            raise PrivacyError(f"Expected records for the paid stage {self.name}, got none.")
        return self.runner.records

    @cached_property
    def public(self) -> PublicInputs:
        """Opens public models and earlier releases and checks them.

        Raises:
            ValueError: The stage could not run with them.
        """
        inputs = self.inputs()
        self.stage.check(inputs)
        return inputs

    def stored(self) -> StoredRelease:
        """Releases the stage, or finds it released."""
        paid = not self.stage.public
        with tempfile.TemporaryDirectory(prefix="dpsynth-stage-") as scratch:
            return self.runner.released(
                self._request(),
                self._draw if paid else partial(self._make_public, Path(scratch)),
                passes=self._checkpoint if paid else None,
                drawn_from=self._drawn_from,
                prepare=self._prepare,
                rests_on=lambda: self.stage.tested(self.public),
            )

    def _request(self) -> ReleaseRequest:
        return stage_request(
            self.node.spec,
            self.node.part,
            self.stage,
            release=self.runner.release_name,
            run_id=self.runner.run_id,
            inputs=self.identities,
            rests_on=self._rests_on,
        )

    @cached_property
    def _rests_on(self) -> Mapping[str, Any] | None:
        """What the charge says that it rests on."""
        return None if self.stage.public else self.records.rests_on(self.stage)

    def _prepare(self) -> Room:
        """Refuses, before a charge, what the stage could not end with; returns what it takes."""
        public, method = self.public, self.node.part.method
        if self.stage.public:
            return room_of(method, self.stage, public)
        check_judge(dict(method.config).get(REJECTION), method.terms, public)
        self.records.require(self.stage)
        return self.records.room(room_of(method, self.stage, public))

    def _drawn_from(self) -> Mapping[str, Any]:
        """All that decides the draw beside its request; binds the charge to the records.

        Raises:
            PrivacyError: They were embedded in another way since the request was made.
        """
        bound = self.records.drawn_from(self.stage)
        if self.records.rests_on(self.stage) != self._rests_on:
            raise PrivacyError(
                f"Expected the embeddings of {self.name} as its charge describes them, got "
                "others, which another run has made since. Nothing was charged: run again."
            )
        return {
            **self.node.drawn_from,
            "files": model_files(self.artifacts, self.stage.engine),
            **bound,
        }

    def _checkpoint(self, reservation: Reservation) -> StoredCheckpoint:
        """What a killed run of this stage left under its charge."""
        return self.records.store.checkpoint(self.node.spec.name, reservation)

    def _draw(self, reservation: Reservation) -> Release[StageRelease]:
        """Reads private data under the charge and releases."""
        self.runner.charged(self.runner)
        self.runner.progress(0.0, self.runner.budget_line())
        public, progress = self.public, self.runner.progress
        passes = self.records.store.passes(self.node.spec.name, reservation)
        with (
            withheld(self.name, "The charge remains: run again to resume it."),
            self.records.opened(self.stage, reservation) as read,
        ):
            private, started = replace(read, passes=passes), time.monotonic()
            made = self.stage.release(private, public, self._checkpoint(reservation), progress)
            self._keep_internal(made, time.monotonic() - started)
        return made

    def _make_public(self, scratch: Path, _: Reservation) -> Release[StageRelease]:
        """Makes a public stage in a scratch folder, from which its files are stored."""
        if self.stage.make is None:
            raise TypeError(f"Expected a public stage, got {self.name}.")
        made = self.stage.make(self.public, scratch, self.runner.progress)
        return Release(value=made, cost=_free(self.node.part))

    def _keep_internal(self, made: Release[StageRelease], seconds: float) -> None:
        """Keeps what depends on private data without noise for the steward."""
        if self.stage.name == CANDIDATE_CORPUS:
            own = {"seconds": seconds, "ex_post_epsilon": made.cost.ex_post_epsilon}
            internal = plain_json({**made.value.internal, **own})
            self.records.keep_internal(self.node.part.folder, json.dumps(internal))


def _free(part: Planned) -> Cost:
    return Cost(guarantee=part.plan.guarantee, event=POST_PROCESSING)
