"""Which batches there are: from settings, declared facts and released numbers, no record.

What may be wrong with them is known before a record is read, and asked before anything is charged
(`checked`).
"""

from typing import cast

import numpy as np

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.private_prediction.batching import (
    BatchCell,
    batch_counts,
    label_batch_counts,
    uniform_batch_counts,
)
from dpsynth_assets.methods.cluster_histogram import ClusterHistogram
from dpsynth_assets.methods.private_prediction.config import (
    PrivatePredictionConfig,
    UniformBatchesConfig,
)
from dpsynth_assets.methods.private_prediction.plan import batches_per_label
from dpsynth_assets.privacy.errors import UndeclaredPublicFactError


def hashed_cells(
    config: PrivatePredictionConfig, terms: CohortTerms, public: PublicInputs, *, clustered: bool
) -> tuple[BatchCell, ...]:
    """Reads how many batches each cell is cut into off settings, declared or released numbers.

    Raises:
        ValueError: If the released histogram is missing, of other labels, or too small for a batch.
    """
    size = {
        "expected_batch_size": config.expected_batch_size,
        "examples_per_context": config.examples_per_context,
        "max_batches": config.max_batches,
    }
    if clustered:
        return batch_counts(released_histogram(terms, public), **size)
    per_label = batches_per_label(cast("UniformBatchesConfig", config), terms)
    if per_label is not None:
        return uniform_batch_counts(len(terms.labels), per_label, config.max_batches)
    return label_batch_counts(released_histogram(terms, public), **size)


def slot_cells(
    terms: CohortTerms, public: PublicInputs, *, clustered: bool
) -> list[tuple[int, int | None]]:
    """Lists the (label, cluster) pairs whose records fill batches in their public order.

    Raises:
        UndeclaredPublicFactError: If the places of records are not declared public.
    """
    if not terms.public_slots:
        raise UndeclaredPublicFactError(
            "Expected public_facts.slots in the dataset file for batching: slots, got none. "
            "Declare it, or use batching: hashed."
        )
    if not clustered:
        return [(label, None) for label in range(len(terms.labels))]
    _, kept = released_centers(terms, public)
    return [(label, center) for label, own in enumerate(kept) for center in own]


def released_centers(
    terms: CohortTerms, public: PublicInputs
) -> tuple[np.ndarray, tuple[tuple[int, ...], ...]]:
    """Reads the public centres (K, d), and which of them each label keeps in the histogram.

    Raises:
        ValueError: If one of both is missing, or the histogram is one of other centres or labels.
    """
    histogram, centers = released_histogram(terms, public), public.cluster_centers
    if centers is None:
        raise ValueError("Expected cluster centres, got none. Materialise public_clusters first.")
    highest = max((center for own in histogram.centers for center in own), default=-1)
    if highest >= len(centers):
        raise ValueError(
            f"Expected a histogram over the {len(centers)} public centres, got one that keeps "
            f"centre {highest}. Materialise the cluster histogram again."
        )
    return centers, histogram.centers


def released_histogram(terms: CohortTerms, public: PublicInputs) -> ClusterHistogram:
    """Reads the released histogram of this cohort.

    Raises:
        ValueError: If there is none, or its labels are not the declared ones.
    """
    histogram = public.cluster_histogram
    if histogram is None:
        raise ValueError(
            "Expected a released cluster histogram, got none. Declare cluster_histogram in the "
            "dataset file and materialise it, or set batches_per_label."
        )
    if histogram.labels != terms.labels:
        raise ValueError(
            f"Expected a histogram over the declared labels {list(terms.labels)}, got one over "
            f"{list(histogram.labels)}. Materialise the cluster histogram again."
        )
    return cast("ClusterHistogram", histogram)
