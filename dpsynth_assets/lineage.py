"""Privacy lineage, verified when definitions load: a graph that breaks a rule does not open.

Rules: every asset says its privacy level; a released asset reaches a sensitive one only through a
mechanism (which charges the ledger); nothing but internal assets depends on an internal one;
a mechanism is never automated and never retried by policy, since each run may spend.
"""

from typing import Any

import dagster as dg

from dpsynth_assets.tags import (
    INTERNAL,
    MECHANISM,
    PRIVACY,
    PRIVACY_LEVELS,
    PUBLIC,
    RELEASED,
    SENSITIVE,
)


class PrivacyLineageError(dg.DagsterInvalidDefinitionError):
    """The asset graph would let private data reach a release unaccounted."""


def verify_privacy_lineage(defs: dg.Definitions) -> None:
    """Raises PrivacyLineageError that lists every violation of the rules above."""
    problems = [*_level_problems(defs), *_flow_problems(defs), *_spending_problems(defs)]
    if problems:
        raise PrivacyLineageError(
            "The asset graph breaks the privacy lineage:\n" + "\n".join(f"  {p}" for p in problems)
        )


def _level_problems(defs: dg.Definitions) -> list[str]:
    graph = defs.resolve_asset_graph()
    return [
        f"{key.to_user_string()}: expected the tag {PRIVACY} in {sorted(PRIVACY_LEVELS)}, "
        f"got {graph.get(key).tags.get(PRIVACY)!r}."
        for key in sorted(graph.get_all_asset_keys())
        if graph.get(key).tags.get(PRIVACY) not in PRIVACY_LEVELS
    ]


def _flow_problems(defs: dg.Definitions) -> list[str]:
    graph = defs.resolve_asset_graph()
    problems = []
    for key in sorted(graph.get_all_asset_keys()):
        level = graph.get(key).tags.get(PRIVACY)
        if level == INTERNAL or level is None:
            continue
        for path in _unprotected_paths(graph, key):
            names = " <- ".join(path)
            problems.append(f"{level} asset reaches private data without a mechanism: {names}")
    return problems


def _unprotected_paths(graph: Any, key: dg.AssetKey) -> list[tuple[str, ...]]:
    """Paths from `key` up to a sensitive or internal asset that cross no mechanism."""
    level = graph.get(key).tags.get(PRIVACY)
    forbidden = {INTERNAL} if level == SENSITIVE else {SENSITIVE, INTERNAL}
    found: list[tuple[str, ...]] = []
    stack: list[tuple[dg.AssetKey, tuple[str, ...]]] = [(key, (key.to_user_string(),))]
    seen = set()
    while stack:
        current, path = stack.pop()
        node = graph.get(current)
        is_protected = level == RELEASED and MECHANISM in node.tags
        for parent in sorted(node.parent_keys):
            parent_level = graph.get(parent).tags.get(PRIVACY)
            step = (*path, parent.to_user_string())
            if parent_level in forbidden and not (is_protected and parent_level == SENSITIVE):
                found.append(step)
            elif parent not in seen and parent_level in (RELEASED, PUBLIC):
                seen.add(parent)
                stack.append((parent, step))
    return found


def _spending_problems(defs: dg.Definitions) -> list[str]:
    graph = defs.resolve_asset_graph()
    problems = []
    for key in sorted(graph.get_all_asset_keys()):
        node = graph.get(key)
        if MECHANISM not in node.tags or not node.is_materializable:
            continue
        name = key.to_user_string()
        if node.tags.get(PRIVACY) != RELEASED:
            problems.append(f"{name}: a mechanism's output must be tagged {RELEASED}.")
        if node.automation_condition is not None:
            problems.append(f"{name}: a mechanism must not be automated, each run may spend.")
        problems.extend(
            f"{name}: op {op.name} has a retry policy, each attempt may spend."
            for op in node.assets_def.node_def.iterate_op_defs()
            if op.retry_policy is not None
        )
    return problems
