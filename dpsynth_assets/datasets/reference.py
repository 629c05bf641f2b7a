"""The reference of every field of a dataset file, written from the models that validate it."""

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dpsynth_assets.datasets.private_spec import PrivateDatasetSpec
from dpsynth_assets.datasets.public_spec import PublicDataSpec
from dpsynth_assets.files.tables import markdown_table

_INTRODUCTION = """\
# Fields of a dataset file

Written by `dpsynth datasets fields`; a test keeps it equal to the models that validate the files.
A key that is not listed is refused. Method settings are listed by `dpsynth datasets methods`.
"""


def field_reference() -> str:
    """Markdown with one table for each part of the two kinds of file."""
    parts = [_INTRODUCTION]
    for title, model in (
        ("A private dataset: `type: dpsynth_assets.components.PrivateDataset`", PrivateDatasetSpec),
        ("A public base: `type: dpsynth_assets.components.PublicData`", PublicDataSpec),
    ):
        parts.append(f"\n## {title}\n")
        parts.extend(_tables(model, ""))
    return "\n".join(parts)


def settings_reference(model: type[BaseModel]) -> str:
    """Markdown table of a method's settings."""
    return "\n".join(_tables(model, ""))


def _tables(model: type[BaseModel], prefix: str) -> Iterator[str]:
    rows = []
    nested: list[tuple[str, type[BaseModel]]] = []
    for name, field in model.model_fields.items():
        rows.append((f"`{prefix}{name}`", _default(field), _meaning(field)))
        nested.extend((f"{prefix}{name}.", part) for part in _models(field.annotation))
    yield markdown_table(("field", "default", "meaning"), rows) + "\n"
    for inner, part in nested:
        yield from _tables(part, inner)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "see below"
    return "none" if value is None else f"`{value}`"


def _meaning(field: FieldInfo) -> str:
    choices = _choices(field.annotation)
    text = field.description or ""
    return f"{text} One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else text


def _choices(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Declarations inside an annotation, e.g. of `list[MethodSpec]` or `HistogramSpec | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (list, Union, UnionType, Annotated):
        inner = (part for part in get_args(annotation) if part is not NoneType)
        return [model for part in inner for model in _models(part)]
    return []
