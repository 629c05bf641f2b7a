"""Parts of a plan one after the other, each given what those before it released."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dpsynth_assets.methods.dataset_plan import PlannedMethod, PlannedShared
from dpsynth_assets.methods.provenance import Node
from dpsynth_assets.releases.once import StoredRelease
from dpsynth_assets.run.reads import Reads, public_names
from dpsynth_assets.run.runner import Runner

PublicValues = Callable[[Iterable[str]], Mapping[str, Any]]
"""Names of public artifacts -> what there is of them."""


@dataclass(frozen=True)
class InOrder:
    """What a Runner has released so far of a plan.

    Attributes:
        runner: Releases.
        values: Reads or makes public artifacts.
        releases: Every release by folder and stage, e.g. `ctcl/finetuned_generator`.
    """

    runner: Runner
    values: PublicValues
    releases: dict[str, StoredRelease] = field(default_factory=dict)

    def release(
        self, part: PlannedMethod | PlannedShared, rows: int | None = None
    ) -> list[StoredRelease]:
        """Releases the stages of a part, and writes its rows where they are free.

        Args:
            part: What it builds on was released before.
            rows: Rows to write; None: as many as its settings say.
        """
        nodes = self.runner.plan.graph.nodes
        own = [node for node in nodes.values() if node.part.folder == part.folder]
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
        return Reads(public=self.values(public_names(node)), charges=charges)
