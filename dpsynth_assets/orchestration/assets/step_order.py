"""First rows first: the order in which the steps of a run start, by Dagster's `dagster/priority`.

Of the steps that are ready, every executor of Dagster starts the one with the highest priority, and
a pool gives its next place to it. So a step has the priority of the first corpus that waits for it:
0 for the first corpus of a dataset file, -1 for the second, and so on. What no corpus waits for
(references, scores, pictures, statements, the audit trail) has `AFTER_CORPORA`.

A corpus waits for what it is made from and for the blocking checks of all of that, such as audits
of its mechanisms. An artifact of a public base that several datasets share has one priority for all
of them, that of the most urgent need.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import dagster as dg

from dpsynth_assets.orchestration.assets.replaced_ops import replaced_op, with_attributes

PRIORITY = "dagster/priority"
"""Tag of an op that Dagster's executors and pools read: an integer, the highest goes first."""

AFTER_CORPORA = -1000
"""Priority of a step that no corpus waits for."""


def first_rows_first(loaded: dg.Definitions) -> dg.Definitions:
    """The same definitions, whose steps start in the order of the corpora that wait for them."""
    parts = chain(loaded.assets or (), loaded.asset_checks or ())
    priorities = step_priorities(
        part for part in parts if isinstance(part, dg.AssetsDefinition) and part.is_executable
    )

    def placed(part: Any) -> Any:
        if not isinstance(part, dg.AssetsDefinition) or not part.is_executable:
            return part
        tags = {PRIORITY: str(priorities[part.op.name])}
        return with_attributes(part, node_def=replaced_op(part.op, tags=tags))

    return dg.Definitions(
        assets=[placed(part) for part in loaded.assets or ()],
        asset_checks=[placed(part) for part in loaded.asset_checks or ()],
        schedules=loaded.schedules,
        sensors=loaded.sensors,
        jobs=loaded.jobs,
        resources=loaded.resources,
        executor=loaded.executor,
        loggers=loaded.loggers,
        metadata=loaded.metadata,
        component_tree=loaded.component_tree,
    )


def step_priorities(parts: Iterable[dg.AssetsDefinition]) -> dict[str, int]:
    """Priority of every step, by the name of its op.

    Args:
        parts: Assets and checks, the corpora of a dataset in the order of its file.
    """
    steps = _Steps(list(parts))
    for rank, corpus in steps.corpora():
        steps.wait_for(corpus, -rank)
    return {part.op.name: steps.priority.get(part.op.name, AFTER_CORPORA) for part in steps.parts}


@dataclass
class _Steps:
    """Which step waits for which, and the priorities found so far."""

    parts: list[dg.AssetsDefinition]
    priority: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._made_by = {key: part for part in self.parts for key in part.keys}
        self._checked_by: dict[dg.AssetKey, list[dg.AssetsDefinition]] = {}
        for part in self.parts:
            for spec in () if part.keys else part.check_specs:
                if spec.blocking:
                    self._checked_by.setdefault(spec.asset_key, []).append(part)

    def corpora(self) -> list[tuple[int, dg.AssetKey]]:
        """Every corpus with its place among those of its dataset; first ones first."""
        places: dict[str, int] = {}
        found = []
        for key in (key for part in self.parts for key in part.keys):
            if len(key.path) == 3 and key.path[-1] == "corpus":
                found.append((places.setdefault(key.path[0], 0), key))
                places[key.path[0]] += 1
        return sorted(found, key=lambda each: each[0])

    def wait_for(self, key: dg.AssetKey, priority: int) -> None:
        """Gives a priority to what makes an asset, to its blocking checks, and to all before."""
        waiting = self._steps_of(key)
        while waiting:
            part = waiting.pop()
            if part.op.name not in self.priority:
                self.priority[part.op.name] = priority
                for above in part.node_keys_by_input_name.values():
                    waiting += self._steps_of(above)

    def _steps_of(self, key: dg.AssetKey) -> list[dg.AssetsDefinition]:
        """What makes an asset, if a step here does, and the blocking checks of it."""
        made_by = [self._made_by[key]] if key in self._made_by else []
        return [*made_by, *self._checked_by.get(key, [])]
