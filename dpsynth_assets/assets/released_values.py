"""Values that release assets hand on: a reservation with released facts."""

from collections.abc import Mapping
from typing import Any

from dpsynth_assets.methods.inputs import Released
from dpsynth_assets.resources.release_store import ReleaseStore


def reservation_of(value: Mapping[str, Any]) -> str:
    """Reads the charge that paid for an upstream release."""
    return str(value["reservation"])


def stage_facts(value: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the released facts of an upstream stage.

    Histograms of version 0.2.0 and before lie in the store with their facts beside the reservation.
    """
    if "facts" in value:
        return dict(value["facts"])
    return {name: fact for name, fact in value.items() if name != "reservation"}


def read_released_stage(value: Mapping[str, Any], store: ReleaseStore) -> Released:
    """Opens an earlier stage's release, from what its asset handed on."""
    reservation = reservation_of(value)
    return Released(
        reservation=reservation, facts=stage_facts(value), folder=store.files(reservation)
    )
