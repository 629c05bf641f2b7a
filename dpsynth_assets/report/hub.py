"""What a card says for the Hugging Face hub beside the guarantee: licence, language, features."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from dpsynth_assets.report.cards import dataset_card, generator_card, tag_of

if TYPE_CHECKING:
    import polars as pl

PIPELINE = "text-generation"
_TYPES = {
    "String": "string",
    "Boolean": "bool",
    "Int32": "int32",
    "Int64": "int64",
    "UInt32": "uint32",
    "Float32": "float32",
    "Float64": "float64",
}
"""Polars type -> type of Hugging Face `datasets`."""


@dataclass(frozen=True, kw_only=True)
class HubFacts:
    """What the owner declares of a package.

    Attributes:
        license: Identifier of the licence, as the hub names it; empty: none is stated.
        language: Code of the texts' language, e.g. `en`; empty: none is stated.
        classes: Declared values of each label column, in order.
    """

    license: str = ""
    language: str = ""
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Fields as JSON values."""
        return {**asdict(self), "classes": {k: list(v) for k, v in self.classes.items()}}


def hub_dataset_card(label: Mapping[str, Any], rows: "pl.DataFrame", facts: HubFacts) -> str:
    """The card of an exported corpus: that of the published one, with licence and features."""
    front = {**_declared(facts), "dataset_info": {"features": _features(rows, facts)}}
    return dataset_card(
        label, columns=rows.columns, rows=rows.height, more_front=_yaml_lines(front)
    )


def hub_model_card(label: Mapping[str, Any], prompts: Mapping[str, str], facts: HubFacts) -> str:
    """The card of an exported generator, with the prompt of each label.

    Args:
        label: Privacy label of the generator.
        prompts: Label -> the text that a row of it is written after.
        facts: What the owner declares.
    """
    front = {
        **_declared(facts),
        "library_name": "transformers",
        "pipeline_tag": PIPELINE,
        "tags": ["synthetic", tag_of(label)],
    }
    return generator_card(label, _yaml_lines(front), prompts)


def _declared(facts: HubFacts) -> dict[str, Any]:
    declared: dict[str, Any] = {"license": facts.license} if facts.license else {}
    return declared | ({"language": [facts.language]} if facts.language else {})


def _features(rows: "pl.DataFrame", facts: HubFacts) -> list[dict[str, Any]]:
    return [
        {"name": name, "dtype": _dtype(str(kind), facts.classes.get(name))}
        for name, kind in rows.schema.items()
    ]


def _dtype(kind: str, classes: Sequence[str] | None) -> Any:
    if not classes:
        return _TYPES[kind]
    return {"class_label": {"names": {str(i): name for i, name in enumerate(classes)}}}


def _yaml_lines(front: Mapping[str, Any]) -> list[str]:
    return yaml.safe_dump(dict(front), sort_keys=False, allow_unicode=True).splitlines()
