"""What a label says of releases that rest on embeddings of private records."""

from collections.abc import Mapping, Sequence
from typing import Any

from dpsynth_assets.models.text_embedder import Arithmetic
from dpsynth_assets.privacy.events import is_post_processing
from dpsynth_assets.privacy.ledger import LedgerEntry
from dpsynth_assets.privacy.rests_on import EMBEDDINGS, RESTS_ON

EMBEDDED = {
    Arithmetic.INT8: (
        "Records were embedded by {model} in exact integer sums. That its other steps give a text "
        "the same bits at every place of a pass is tested, on several processors' kernels, and "
        "not proved."
    ),
    Arithmetic.FLOAT32: (
        "Records were embedded by {model}, one text a pass on one thread of a CPU: passes of "
        "one text are assumed to give the same bits each time."
    ),
    Arithmetic.ONE_A_PASS: (
        "Records were embedded by {model} on {device}, one text a pass: passes of one text are "
        "assumed to give the same bits each time, which rests on the model's libraries and device."
    ),
}
"""By the arithmetic of the embedder, why one record does not move another's embedding."""

NEAREST = (
    "The public rows nearest to a record (clusters, topics, candidates) are found exactly, "
    "provided that float32 products are rounded to float32, and not to TF32 or bfloat16."
)

UNKNOWN = (
    "How records were embedded is not recorded for charges before version 0.2.0. Padding, batches "
    "and float32 products could then let one record move the embedding, cluster or vote of "
    "another that lies within rounding of a tie between two public rows; that none did is assumed."
)

_SHARED = ("/shared/cluster_histogram", "/shared/topic_histogram")
_INPUTS = ("cluster_histogram", "topic_model", "text_embedder")


def embedding_assumptions(charges: Sequence[LedgerEntry]) -> list[str]:
    """What releases that rest on embeddings take for granted, one sentence each, once."""
    sentences: list[str] = []
    for entry in charges:
        if entry.event is not None and is_post_processing(entry.event):
            continue
        made_by = entry.parameters.get(RESTS_ON, {}).get(EMBEDDINGS)
        if made_by is not None:
            sentences += [_embedded(made_by), NEAREST]
        elif _may_rest_on_embeddings(entry):
            sentences.append(UNKNOWN)
    return list(dict.fromkeys(sentences))


def _embedded(made_by: Mapping[str, Any]) -> str:
    return EMBEDDED[Arithmetic(made_by["arithmetic"])].format(**made_by)


def _may_rest_on_embeddings(entry: LedgerEntry) -> bool:
    """Judged by what older charges hold: their asset, and the inputs that they name."""
    if RESTS_ON in entry.parameters:
        return False
    inputs = dict(entry.parameters.get("inputs") or {})
    return entry.asset.endswith(_SHARED) or any(inputs.get(name) for name in _INPUTS)
