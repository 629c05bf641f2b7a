"""Which label and which public cluster a private record is of: a function of that record alone."""

from dataclasses import dataclass, field

import numpy as np

from dpsynth_assets.methods.cluster_histogram import assign_clusters, label_indices
from dpsynth_assets.methods.inputs import PrivateInputs


@dataclass(frozen=True, kw_only=True)
class RecordCells:
    """Finds labels and clusters of records. Holds public values only.

    Attributes:
        labels: Declared labels, in order.
        centers: (K, d) public centres; None where batches do not follow clusters.
        kept: For each label, indices into `centers`.
    """

    labels: tuple[str, ...]
    centers: np.ndarray | None = field(default=None, repr=False)
    kept: tuple[tuple[int, ...], ...] = ()

    def __call__(self, private: PrivateInputs) -> tuple[np.ndarray, np.ndarray | None]:
        """Finds (N,) indices of labels, and of centres or None; -1 where a record has none.

        Raises:
            ValueError: If there are centres and no embeddings.
        """
        labels = label_indices(private.records["label"].to_list(), self.labels)
        if self.centers is None:
            return labels, None
        if private.embeddings is None:
            raise ValueError(
                "Expected embeddings of the private records, got none. Materialise "
                "private_embeddings."
            )
        return labels, assign_clusters(private.embeddings, labels, self.centers, self.kept)
