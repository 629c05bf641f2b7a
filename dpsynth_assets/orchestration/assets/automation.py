"""Automation after new releases: it runs post-processing and never spends budget."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import dagster as dg

from dpsynth_assets.orchestration.dagster_internals import (
    replaced_op,
    replaced_record,
    with_attributes,
)

FOLLOWS_RELEASES = (
    dg.AutomationCondition.eager() & dg.AutomationCondition.all_deps_blocking_checks_passed()
).with_label("follows new releases")
"""Made again when something it is made from was, once all of that is there and its checks passed.

Only for what charges nothing: corpora from paid stages, published corpora and their cards, scores,
pictures, statements. `lineage` refuses it on a mechanism. It acts while the sensor of
`defs/sensors.py` is switched on.
"""


def with_followed_checks(definitions: dg.Definitions) -> dg.Definitions:
    """The same definitions, whose checks are taken whenever their asset was made without them.

    A follow run that makes an asset takes its checks in the same run, and what is below waits for
    them. A check that reads private text to decide is asked for by a person alone.
    """
    parts = [
        each for each in definitions.asset_checks or () if isinstance(each, dg.AssetsDefinition)
    ]
    return replaced_record(definitions, asset_checks=[_followed(each) for each in parts])


def _followed(part: dg.AssetsDefinition) -> dg.AssetsDefinition:
    specs = part.get_attributes_dict()["check_specs_by_output_name"]
    return with_attributes(
        part, check_specs_by_output_name={name: _follows(spec) for name, spec in specs.items()}
    )


def _follows(spec: dg.AssetCheckSpec) -> dg.AssetCheckSpec:
    # Attacks that a check waits for may never be made: it is taken without them.
    own = dg.AutomationCondition.eager().allow(dg.AssetSelection.assets(spec.asset_key))
    return replaced_record(spec, automation_condition=own.with_label("follows its asset"))


# First rows first: the order in which the steps of a run start, by Dagster's `dagster/priority`.
#
# Of the steps that are ready, every executor of Dagster starts the one with the highest priority,
# and a pool gives its next place to it. So a step has the priority of the first corpus that waits
# for it: 0 for the first corpus of a dataset file, -1 for the second, and so on. What no corpus
# waits for (references, scores, pictures, statements, the audit trail) has `AFTER_CORPORA`.
#
# A corpus waits for what it is made from and for the blocking checks of all of that, such as
# audits of its mechanisms. An artifact of a public base that several datasets share has one
# priority for all of them, that of the most urgent need.


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

    return replaced_record(
        loaded,
        assets=[placed(part) for part in loaded.assets or ()],
        asset_checks=[placed(part) for part in loaded.asset_checks or ()],
    )


def step_priorities(parts: Iterable[dg.AssetsDefinition]) -> dict[str, int]:
    """Priority of every step, by the name of its op.

    Args:
        parts: Assets and checks, the corpora of a dataset in the order of its file.
    """
    steps = list(parts)
    before: dict[dg.AssetKey, list[dg.AssetsDefinition]] = defaultdict(list)
    for step in steps:
        for key in step.keys:
            before[key].append(step)
        for spec in () if step.keys else step.check_specs:
            if spec.blocking:
                before[spec.asset_key].append(step)
    found: dict[str, int] = {}
    for rank, corpus in _corpora(steps):
        waiting = list(before[corpus])
        while waiting:
            step = waiting.pop()
            if step.op.name not in found:
                found[step.op.name] = -rank
                for above in step.node_keys_by_input_name.values():
                    waiting += before[above]
    return {step.op.name: found.get(step.op.name, AFTER_CORPORA) for step in steps}


def _corpora(steps: Sequence[dg.AssetsDefinition]) -> list[tuple[int, dg.AssetKey]]:
    """Every corpus with its place among those of its dataset; first ones first."""
    places, found = Counter[str](), []
    for key in (key for step in steps for key in step.keys):
        if len(key.path) == 3 and key.path[-1] == "corpus":
            found.append((places[key.path[0]], key))
            places[key.path[0]] += 1
    return sorted(found, key=lambda each: each[0])
