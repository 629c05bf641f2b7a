"""Assets and checks with another op: what Dagster has no call for, in one place."""

from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from dpsynth_assets.orchestration.dagster_internals import DecoratedOpFunction


def replaced_op(
    op: dg.OpDefinition,
    *,
    body: Callable[..., Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> dg.OpDefinition:
    """The same op with another body or other tags; None keeps what it has."""
    return dg.OpDefinition(
        compute_fn=op.compute_fn if body is None else DecoratedOpFunction(body),
        name=op.name,
        ins=dict(op.ins),
        outs=dict(op.outs),
        description=op.description,
        config_schema=op.config_schema,
        required_resource_keys=set(op.required_resource_keys),
        tags=op.tags if tags is None else {**op.tags, **tags},
        retry_policy=op.retry_policy,
        code_version=op.version,
        pool=op.pool,
    )


def with_attributes(part: dg.AssetsDefinition, **changed: Any) -> dg.AssetsDefinition:
    """The same asset, or checks, but for the attributes that are given."""
    return type(part)(**{**part.get_attributes_dict(), **changed})
