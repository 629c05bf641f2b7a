"""What may be served: a generator or dataset vectors, as the ledger sealed them."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from dpsynth_assets.exports.package import last_release, refuse_refuted
from dpsynth_assets.methods.audits import results_behind
from dpsynth_assets.methods.capabilities import RowSource
from dpsynth_assets.methods.dataset_plan import PlannedMethod
from dpsynth_assets.methods.provenance import Node
from dpsynth_assets.methods.shared_histograms import TOPIC_HISTOGRAM
from dpsynth_assets.methods.stages import SERVED, SHARED
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import LedgerEntry
from dpsynth_assets.public_base.making import public_versions
from dpsynth_assets.report.label import ROWS, Label, corpus_label, weakest
from dpsynth_assets.run.runner import Opened, Reads, Runner


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A release that rows are written from.

    Attributes:
        runner: Opens the cohort's releases; its ledger gets one line a day and artifact.
        value: Reads a public artifact of the cohort's base by its name.
        planned: The method.
        charge: The charge of its last paid stage.
    """

    runner: Runner
    value: Callable[[str], Any]
    planned: PlannedMethod
    charge: LedgerEntry

    @classmethod
    def of(
        cls,
        runner: Runner,
        value: Callable[[str], Any],
        planned: PlannedMethod,
        *,
        accept_ex_post: bool = False,
    ) -> Self:
        """Finds the last release of a method that rows can be written from.

        Raises:
            PrivacyError: The method has none, or none yet, or its files are not those that the
                ledger sealed, or an attack refuted its claim, or it is ex-post and that
                was not accepted.
        """
        spec, ledger = runner.plan.spec, runner.ledger
        name = f"{spec.name}/{planned.folder}"
        paid = [stage.name for stage in planned.plan.stages if stage.name in planned.plan.charges]
        if planned.method.open_rows is None or not paid:
            raise PrivacyError(
                f"Expected a method whose release writes rows on demand, got {name}: its rows are "
                "themselves the release. `dpsynth export` packs them."
            )
        charge = last_release(ledger, runner.store, f"{name}/{paid[-1]}", spec.account)
        refuse_refuted(ledger.entries(), charge.reservation)
        found = cls(runner=runner, value=value, planned=planned, charge=charge)
        if not accept_ex_post and found.guarantee is not GuaranteeType.DP:
            raise PrivacyError(
                f"Expected an (ε, δ)-DP release to serve, got {name}, which is {found.guarantee}. "
                "Add --accept-ex-post if its readers accept that."
            )
        return found

    @property
    def name(self) -> str:
        """What a request calls it: `cohort/method`."""
        return f"{self.runner.plan.spec.name}/{self.planned.folder}"

    @cached_property
    def reads(self) -> dict[str, str]:
        """Charge of every release that a row is written from, by name."""
        stage = self.charge.asset.rsplit("/", maxsplit=1)[-1]
        found = {stage: self.charge.reservation}
        if TOPIC_HISTOGRAM in self._node.reads:
            spec, runner = self.runner.plan.spec, self.runner
            asset = f"{spec.name}/{SHARED}/{TOPIC_HISTOGRAM}"
            topics = last_release(runner.ledger, runner.store, asset, spec.account)
            found[TOPIC_HISTOGRAM] = topics.reservation
        return found

    @property
    def _node(self) -> Node:
        return self.runner.plan.graph.nodes[self.planned.corpus]

    @property
    def guarantee(self) -> GuaranteeType:
        """What holds for everything behind a row together."""
        graph = self.runner.ledger.provenance()
        charges = [each for name in self.reads.values() for each in graph.charges_behind(name)]
        return weakest(charges)

    def line(self, day: str) -> Label:
        """Writes the ledger's line of a day, where there is none yet; returns the rows' label.

        Args:
            day: Date, YYYY-MM-DD, UTC.

        **Privacy** Post-processing: charged nothing. Nothing of any request is recorded.
        """
        stored = self.runner.record(
            f"{self.name}/{SERVED}",
            mechanism=self.planned.method.name,
            parameters={"inputs": self.reads},
            release=day,
            facts={},
        )
        entries = self.runner.ledger.entries()
        audits = results_behind(entries, stored.reservation.id)
        return corpus_label(entries, stored.reservation.id, audits, kind=ROWS)

    def open(self) -> AbstractContextManager[RowSource]:
        """Opens the models behind it, as a corpus is written from them.

        Raises:
            PrivacyError: A public artifact is another one than the release was made with.
        """
        node = self._node
        public = {name: self.value(name) for name in node.step.reads}
        self._refuse_other_public(public)
        reads = Reads(public=public, charges=self._charges())
        inputs = Opened(self.runner, node, reads).inputs()
        opened: AbstractContextManager[RowSource] = self.planned.method.open_rows(inputs)
        return opened

    def _charges(self) -> dict[str, str]:
        """Charge of everything that a row is written from, by folder and stage."""
        graph = self.runner.ledger.provenance()
        names = [each for one in self.reads.values() for each in (one, *graph.behind(one))]
        own = f"{self.runner.plan.spec.name}/"
        return {graph.charges[name].asset.removeprefix(own): name for name in names}

    def _refuse_other_public(self, values: Mapping[str, Any]) -> None:
        made_with = self.charge.inputs
        for name, version in public_versions(values).items():
            if made_with.get(name, version) != version:
                raise PrivacyError(
                    f"{self.name}: expected the public artifact {name} that it was released with "
                    f"({made_with[name]}), got another one ({version}). Materialise the public "
                    "base as it was, or release again, which is charged."
                )
