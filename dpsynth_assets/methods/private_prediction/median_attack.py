"""The median's own draws from batches of public records, each token audited exactly."""

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.cluster_histogram import (
    ClusterHistogram,
    assign_clusters,
    count_by_label_and_center,
    label_indices,
)
from dpsynth_assets.methods.inputs import PrivateInputs, ProgressCallback, PublicInputs
from dpsynth_assets.methods.private_prediction.planted_keys import (
    CONTEXTS,
    NO_CHECKPOINT,
    changed,
    short_plan,
)
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS

if TYPE_CHECKING:
    from dpsynth_assets.attacks.median_audit import MedianAudit
    from dpsynth_assets.methods.private_prediction.method import BatchPrediction

AUDITED_CONTEXTS = 64
"""Contexts of a batch that the median audit removes one after another, each alone."""


def audit_median(
    method: "BatchPrediction[Any]",
    target_epsilon: float,
    documents: PrivateInputs,
    public: PublicInputs,
    progress: ProgressCallback,
) -> "MedianAudit":
    """Draws from batches of public records as the method does, and audits every token.

    Args:
        method: A method whose planned mechanism holds a `MedianTokenMechanism`.
        target_epsilon: ε that its tokens are matched to.
        documents: Public documents in the shape of private records.
        public: Language model, centres and the key of the hash.
        progress: Told the share done.

    Raises:
        ValueError: If no batch can be drawn from, in one line.
    """
    from dpsynth_assets.attacks.median_audit import MedianAudit, WatchedMedian

    own = method.config
    batches = max(1, CONTEXTS // own.expected_batch_size)
    config = changed(
        own,
        batching="hashed",
        max_batches=batches,
        batches_per_forward=batches,
        on_exhaustion="drop",
    )
    terms = replace(method.terms, accountant="zcdp", has_cluster_histogram=True)
    fitted = type(method)(config, terms)
    plan = short_plan(fitted, target_epsilon)
    if plan.refusal is not None:
        raise ValueError(f"Expected a plan that can run, got a refusal: {plan.refusal}")
    stage = plan.stage(CANDIDATE_CORPUS)
    planned: Any = stage.mechanism
    audit = MedianAudit(planned.mechanism, AUDITED_CONTEXTS)
    watched = WatchedMedian(
        **{each.name: getattr(planned.mechanism, each.name) for each in fields(planned.mechanism)},
        watch=audit.observe,
    )
    size = own.expected_batch_size * own.examples_per_context
    histogram = public_histogram(documents, terms, public.cluster_centers, batches, size)
    replace(stage, mechanism=replace(planned, mechanism=watched)).release(
        documents,
        replace(public, cluster_histogram=histogram),
        NO_CHECKPOINT,
        progress,
    )
    return audit


def public_histogram(
    documents: PrivateInputs, terms: CohortTerms, centers: Any, cells: int, batch_records: int
) -> ClusterHistogram:
    """Counts public records exactly in the fullest cells; each counts for a batch at least."""
    if documents.embeddings is None:
        raise ValueError("Expected embeddings of the public documents, got none.")
    labels = label_indices(documents.records["label"].to_list(), terms.labels)
    everywhere = [list(range(len(centers)))] * len(terms.labels)
    clusters = assign_clusters(documents.embeddings, labels, centers, everywhere)
    counts = count_by_label_and_center(labels, clusters, len(terms.labels), len(centers))
    fullest = np.argsort(-counts, axis=None, kind="stable")[:cells]
    filled: np.ndarray = np.zeros(counts.size, dtype=np.int64)
    filled[fullest] = np.maximum(counts.flat[fullest], batch_records)
    return ClusterHistogram(
        labels=terms.labels,
        centers=tuple(tuple(centre) for centre in everywhere),
        dp_counts=tuple(tuple(map(int, row)) for row in filled.reshape(counts.shape)),
    )
