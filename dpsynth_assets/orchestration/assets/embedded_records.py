"""The way in which a dataset's records were embedded, stated with every charge that rests on it."""

from typing import Any

from dpsynth_assets.orchestration.resources.sensitive_store import SensitiveStore
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.guarantees import EMBEDDINGS


def embeddings_rest_on(store: SensitiveStore, dataset: str) -> dict[str, Any]:
    """Says how the records were embedded, for a charge; empty where that is unknown.

    It is no part of the release's identity: what was released stays released.
    """
    made_by = store.embeddings_made_by(dataset, "source")
    return {} if made_by is None else {EMBEDDINGS: made_by}


def require_stated_embeddings(store: SensitiveStore, dataset: str) -> None:
    """Refuses embeddings of which nobody knows whether one record could move another's.

    Raises:
        PrivacyError: There are none, or they were made before version 0.2.0.
    """
    if store.embeddings_made_by(dataset, "source") is None:
        raise PrivacyError(
            f"Expected embeddings of {dataset} that say how they were made, got none or those of a "
            f"version before 0.2.0. Materialise {dataset}/shared/private_embeddings; nothing was "
            "charged."
        )
