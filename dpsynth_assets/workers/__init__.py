"""Who does the parts of a stage: this process, other processes of this machine, or a Ray cluster.

A stage that goes over parts of the records calls `Workers.map_parts` and knows no more. What holds
for every kind of workers is in `protocol.py`.
"""

from dpsynth_assets.workers.declared import declared_kind, declared_workers
from dpsynth_assets.workers.keeping import forget, kept
from dpsynth_assets.workers.local_processes import LocalWorkers
from dpsynth_assets.workers.protocol import WorkerError, Workers

__all__ = [
    "LocalWorkers",
    "WorkerError",
    "Workers",
    "declared_kind",
    "declared_workers",
    "forget",
    "kept",
]
