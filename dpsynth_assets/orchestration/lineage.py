"""Privacy lineage, verified when definitions load: a graph that breaks a rule does not open.

Rules: every asset says its privacy level; a released asset reaches a sensitive one only through a
mechanism (which charges the ledger); nothing but internal assets depends on an internal one;
a mechanism is never automated and never retried by policy, since each run may spend.

Private data is also reached without an edge of the graph: through a resource. So a public or
released asset that is no mechanism may require no resource that opens private data, nor may a check
of one, since a check that fails holds back what comes after it. A resource class says by
`opens_private_data` whether it does; one that does not say it counts as private.

What a function reads by itself, from a path or a global, is not seen here.
"""

from collections.abc import Iterator
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
    graph = defs.resolve_asset_graph()
    keys = sorted(graph.get_all_asset_keys())
    rules = (_level_problems, _flow_problems, _resource_problems)
    problems = [problem for rule in rules for key in keys for problem in rule(graph, key)]
    problems += _check_problems(graph)
    problems += [problem for key in keys for problem in _spending_problems(graph, key)]
    if problems:
        raise PrivacyLineageError(
            "The asset graph breaks the privacy lineage:\n" + "\n".join(f"  {p}" for p in problems)
        )


def _level_problems(graph: Any, key: dg.AssetKey) -> Iterator[str]:
    level = graph.get(key).tags.get(PRIVACY)
    if level not in PRIVACY_LEVELS:
        expected = f"the tag {PRIVACY} in {sorted(PRIVACY_LEVELS)}"
        yield f"{key.to_user_string()}: expected {expected}, got {level!r}."


def _flow_problems(graph: Any, key: dg.AssetKey) -> Iterator[str]:
    level = graph.get(key).tags.get(PRIVACY)
    if level in (INTERNAL, None):
        return
    for path in _unprotected_paths(graph, key):
        yield f"{level} asset reaches private data without a mechanism: {' <- '.join(path)}"


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


def _resource_problems(graph: Any, key: dg.AssetKey) -> Iterator[str]:
    """Public and released assets whose code may open private data, and which are no mechanisms."""
    node = graph.get(key)
    level = node.tags.get(PRIVACY)
    is_mechanism = MECHANISM in node.tags and level == RELEASED
    if level not in (PUBLIC, RELEASED) or not node.is_materializable or is_mechanism:
        return
    for name in _private_resources(node.assets_def):
        told = f"{key.to_user_string()} <- {name}"
        yield f"{level} asset may read private data through a resource: {told}"


def _check_problems(graph: Any) -> list[str]:
    """Checks that reveal private data at a public or released asset, or block because of it."""
    problems: list[str] = []
    for key in sorted(graph.asset_check_keys, key=lambda each: (each.asset_key, each.name)):
        spec, own = graph.get_check_spec(key), graph.get(key.asset_key)
        level = own.tags.get(PRIVACY)
        shown = level in (PUBLIC, RELEASED)
        if not (shown or spec.blocking):
            continue
        made_by = graph.assets_def_for_key(key)
        reads = _private_parents(graph, key) if shown else []
        if made_by is not own.assets_def:  # Else the asset's own rules hold for what it reads.
            reads += _private_resources(made_by)
        problems.extend(
            f"{'blocking ' if spec.blocking else ''}check may read private data: {key.name} of "
            f"{key.asset_key.to_user_string()} ({level}) <- {name}"
            for name in reads
        )
    return problems


def _private_resources(assets_def: dg.AssetsDefinition) -> list[str]:
    """Keys of the required resources that open private data, or do not say that they do not."""
    resources = assets_def.resource_defs  # Those of the definitions included, once resolved.
    return [
        key
        for key in sorted(assets_def.required_resource_keys)
        if key in resources
        and not _is_default(key, resources[key])
        and any(_opens(each) for each in _with_nested(resources[key]))
    ]


def _is_default(key: str, resource: Any) -> bool:
    """Says whether it is the IO manager that Dagster provides where none is bound."""
    made_by = getattr(getattr(resource, "resource_fn", None), "__module__", "")
    return key == "io_manager" and made_by.startswith("dagster.")


def _opens(resource: Any) -> bool:
    declared = getattr(resource, "configurable_resource_cls", type(resource))
    return bool(getattr(declared, "opens_private_data", True))


def _with_nested(resource: Any) -> Iterator[Any]:
    """A resource, and those that it is made of."""
    yield resource
    for nested in (getattr(resource, "nested_resources", None) or {}).values():
        yield from _with_nested(nested)


def _private_parents(graph: Any, key: dg.AssetCheckKey) -> list[str]:
    """Sensitive and internal assets that a check looks at beside its own asset."""
    return [
        parent.to_user_string()
        for parent in sorted(graph.get(key).parent_entity_keys, key=str)
        if isinstance(parent, dg.AssetKey)
        and parent != key.asset_key
        and graph.get(parent).tags.get(PRIVACY) in (SENSITIVE, INTERNAL)
    ]


def _spending_problems(graph: Any, key: dg.AssetKey) -> Iterator[str]:
    node, name = graph.get(key), key.to_user_string()
    if MECHANISM not in node.tags or not node.is_materializable:
        return
    if node.tags.get(PRIVACY) != RELEASED:
        yield f"{name}: a mechanism's output must be tagged {RELEASED}."
    if node.automation_condition is not None:
        yield f"{name}: a mechanism must not be automated, each run may spend."
    for op in node.assets_def.node_def.iterate_op_defs():
        if op.retry_policy is not None:
            yield f"{name}: op {op.name} has a retry policy, each attempt may spend."
