"""Values that release assets hand on: a reservation with released facts."""

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.provenance import Node
from dpsynth_assets.orchestration.assets.keys import public_key


def stage_facts(value: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the released facts of an upstream stage, to be shown; not to release from.

    Histograms of version 0.2.0 and before lie in the store with their facts beside the reservation.
    """
    if "facts" in value:
        return dict(value["facts"])
    return {name: fact for name, fact in value.items() if name != "reservation"}


def node_ins(node: Node, public: Iterable[str]) -> dict[str, dg.AssetIn]:
    """Makes asset inputs of what a node reads: public artifacts, stages and shared histograms."""
    read = {
        name: dg.AssetIn([node.spec.name, *place.split("/")]) for name, place in node.reads.items()
    }
    return public_ins(node.spec, public) | read


def public_ins(spec: PrivateDatasetSpec, names: Iterable[str]) -> dict[str, dg.AssetIn]:
    """Makes asset inputs of artifacts of the dataset's public base."""
    return {name: dg.AssetIn(public_key(spec.public_data, name)) for name in sorted(names)}
