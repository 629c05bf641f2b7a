"""Records placed in batches of given cells, without a declared cohort."""

import numpy as np

from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.methods.private_prediction.config import MeanUniformConfig
from dpsynth_assets.methods.private_prediction.declared_batches import DeclaredBatches
from dpsynth_assets.methods.private_prediction.split_batches import HashedBatches, slot_batches


def _declared(s, k, **settings):
    config = MeanUniformConfig(expected_batch_size=s, examples_per_context=k, **settings)
    return DeclaredBatches(config=config, terms=None, clustered=False)


def _finds(labels, clusters):
    found = labels, np.full(len(labels), -1) if clusters is None else clusters
    return lambda _: found


def hashed(records, labels, clusters, cells, *, s=8, k=1, salt="salt"):
    """Batches by the keyed hash of the records' ids."""
    batches = HashedBatches(
        declared=_declared(s, k),
        record_cells=_finds(labels, clusters),
        cells=tuple(cells),
        salt=salt,
    )
    return batches.placed(PrivateInputs(records=records))


def in_slots(records, labels, clusters, cells, *, s=4, k=1, max_batches=100):
    """Full batches of records in their public order."""
    private = PrivateInputs(records=records)
    declared = _declared(s, k, max_batches=max_batches, batching="slots")
    finds = _finds(labels, clusters)
    return slot_batches(declared, finds, cells, private).placed(private)
