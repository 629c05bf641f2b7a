"""Runs the shards of a stage: in this process, in other local processes, or on a Ray cluster.

A stage that goes over shards of the records calls `Workers.map_parts` and knows no more. What holds
for every kind of workers is in `protocol.py`.
"""

import os

from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.workers.local_processes import LocalWorkers
from dpsynth_assets.workers.protocol import Here, WorkerError, Workers, forget, kept
from dpsynth_assets.workers.ray_cluster import ADDRESS_VARIABLE, RayWorkers

KIND_VARIABLE = "DPSYNTH_WORKERS"
"""`local` (the default) or `ray`."""

COUNT_VARIABLE = "DPSYNTH_WORKER_COUNT"
"""Parts that are worked on at the same time; 1 where it is not set."""


def declared_kind() -> str:
    """What DPSYNTH_WORKERS says, whether or not there are such workers."""
    return os.environ.get(KIND_VARIABLE, "").strip() or "local"


def declared_workers() -> Workers:
    """The workers that DPSYNTH_WORKERS and DPSYNTH_WORKER_COUNT name.

    Raises:
        PrivacyError: One of them says something else, or Ray has no address.
    """
    kind = declared_kind()
    written = os.environ.get(COUNT_VARIABLE, "").strip() or "1"
    if not written.isdecimal() or int(written) < 1:
        raise PrivacyError(
            f"{COUNT_VARIABLE}: expected a whole number of workers, at least 1, got {written!r}."
        )
    if kind == "local":
        return LocalWorkers(int(written))
    if kind != "ray":
        raise PrivacyError(f"{KIND_VARIABLE}: expected local or ray, got {kind!r}.")
    address = os.environ.get(ADDRESS_VARIABLE, "").strip()
    if not address:
        raise PrivacyError(
            f"{ADDRESS_VARIABLE}: expected the address of the Ray cluster that {KIND_VARIABLE}=ray "
            "asks for, got none. Set it, e.g. ray-head:6379, or `auto` on a node of the cluster."
        )
    return RayWorkers(int(written), address)
