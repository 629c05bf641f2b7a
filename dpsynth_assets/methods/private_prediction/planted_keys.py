"""Runs a method on made-up keys of five digits, with its own mechanism and settings.

Everything that decides privacy is the dataset's: mechanism, clip bound, temperature, batch size,
examples in a context, slack, sampling, relation and unit. Batches are few and plans short, so that
a test takes seconds; a shorter plan claims less.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import polars as pl

from dpsynth_assets.files.whole import Checkpoint
from dpsynth_assets.methods.base import CohortTerms, Method, priced
from dpsynth_assets.methods.inputs import (
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
    label_indices,
    silent,
)
from dpsynth_assets.methods.private_prediction.references import generate_non_private
from dpsynth_assets.methods.rejection_sampling import RejectionSettings
from dpsynth_assets.methods.shared_histograms import (
    ClusterHistogram,
    assign_clusters,
    count_by_label_and_center,
)
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS, MethodPlan
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.guarantees import Cost
from dpsynth_assets.privacy.renyi import zcdp_epsilon, zcdp_rho

if TYPE_CHECKING:
    from dpsynth_assets.attacks.median_audit import MedianAudit
    from dpsynth_assets.attacks.reconstruction import KeysWritten, PlantedKeys
    from dpsynth_assets.methods.private_prediction.method import BatchPrediction

CONTEXTS = 96
"""Contexts that generate side by side in a test, whole batches: one batch at least."""

PRIVATE_TOKENS = 60
"""Private tokens a batch, or a label, draws in a test, if its plan allows as many: a dozen keys.

More would show weaker copying, but claim a larger ε, which copying itself could then not refute.
"""


CONTROL_DOCUMENTS = 100
"""Documents of the positive control."""

MethodT = TypeVar("MethodT", bound=Method[Any])

LABEL = "keys"

EVERY_ROW = RejectionSettings(rules=())
"""Digits are no language: every key that is written has to be seen."""

NO_CHECKPOINT = cast("Checkpoint", None)
"""Private prediction resumes by finished passes; a test keeps none."""


@dataclass(frozen=True, kw_only=True)
class KeyTask:
    """One method's run on planted keys: its own mechanism settings, lengths of a key.

    Attributes:
        method: The method with the lengths of a key, few batches, and one label for all keys.
        plan: As many private tokens as the declared plan has, at most as the test may draw.
        public: The language model, one cluster and its made-up histogram.
    """

    method: Method[Any]
    plan: MethodPlan
    public: PublicInputs

    def plant(self) -> "PlantedKeys":
        """Plants keys as neighbours of the declared relation differ: there or not, or null."""
        from dpsynth_assets.attacks.reconstruction import plant_in_places, plant_keys

        plant = plant_in_places if self.method.config.batching == "slots" else plant_keys
        return plant(self.method.terms.public_records or 0)

    def run(self) -> "KeysWritten":
        """Plants keys and counts those that the method writes, and those that copying writes."""
        from dpsynth_assets.attacks.reconstruction import KeysWritten, audit_delta, count_overlap

        planted = self.plant()
        present = key_records(planted.source)
        records = present if planted.places is None else key_records(planted.places)
        stage = self.plan.stage(CANDIDATE_CORPUS)
        made = stage.release(records, self.public, NO_CHECKPOINT, silent)
        config, terms = self.method.config, self.method.terms
        copied = generate_non_private(
            config, terms, present, self.public, CONTROL_DOCUMENTS, silent
        )
        rows = cast("pl.DataFrame", made.value.rows)
        return KeysWritten(
            overlap=count_overlap(planted, rows["text"].to_list()),
            control=count_overlap(planted, copied.value.rows["text"].to_list()),
            claimed_epsilon=_claimed_epsilon(made.cost, audit_delta(planted)),
        )


def batches_task(
    method: "BatchPrediction[Any]", target_epsilon: float, model: Any
) -> KeyTask | None:
    """Fits a method of batches to keys; None if its budget does not reach for a single one."""
    from dpsynth_assets.attacks.reconstruction import KEYS

    own, length = method.config, key_length(model)
    batches, in_places = max(1, CONTEXTS // own.expected_batch_size), own.batching == "slots"
    keys = min(KEYS // 2, batches * own.expected_batch_size * own.examples_per_context)
    fitted = type(method)(
        changed(
            own,
            max_document_tokens=length,
            max_example_tokens=length,
            min_tokens_for_new_document=min(own.min_tokens_for_new_document, length),
            on_exhaustion="drop",
            rejection=EVERY_ROW,
            max_batches=batches,
            batches_per_label=None if in_places else batches,
            max_tokens_per_batch=2 * PRIVATE_TOKENS,
            **_slack_of(own, model),
        ),
        _key_terms(method.terms, keys, model),
    )
    plan = short_plan(fitted, target_epsilon)
    if plan.refusal is not None or not plan.tokens_per_batch:
        return None
    histogram = ClusterHistogram(labels=(LABEL,), centers=((0,),), dp_counts=((keys,),))
    return KeyTask(
        method=fitted,
        plan=plan,
        public=PublicInputs(
            language_model=model,
            cluster_centers=np.ones((1, 1), dtype=np.float32),
            cluster_histogram=histogram,
        ),
    )


def key_length(model: Any) -> int:
    """Most tokens that a key of five equal digits takes."""
    from dpsynth_assets.attacks.reconstruction import DIGITS

    return max(len(model.encode(digit * DIGITS)) for digit in "0123456789")


def short_plan(method: "BatchPrediction[Any]", target_epsilon: float) -> MethodPlan:
    """Plans as declared, or about `PRIVATE_TOKENS`: they cost ρ in proportion."""
    target = method.matched_epsilon or target_epsilon
    plan = priced(method, target)
    tokens = plan.tokens_per_batch or 0
    if plan.refusal is not None or tokens <= PRIVATE_TOKENS:
        return plan
    rho = float(zcdp_rho(target, method.terms.delta)) * PRIVATE_TOKENS / tokens
    unmatched = type(method)(changed(method.config, matched_epsilon=None), method.terms)
    return priced(unmatched, zcdp_epsilon(rho, method.terms.delta))


def changed(config: Any, **changes: Any) -> Any:
    """Sets those fields that a method's settings have."""
    fields = type(config).model_fields
    return config.model_copy(update={k: v for k, v in changes.items() if k in fields})


def key_records(texts: Sequence[str]) -> PrivateInputs:
    """Made-up records in the shape of private ones: a key or a null text each, in one cluster.

    A key is its record's id, so that it goes to its batch independent of other keys.
    """
    names = [text or f"null {place}" for place, text in enumerate(texts)]
    return PrivateInputs(
        records=pl.DataFrame(
            {"record_id": names, "unit_id": names, "text": texts, "label": [LABEL] * len(texts)},
            schema=dict.fromkeys(("record_id", "unit_id", "text", "label"), pl.String),
        ),
        embeddings=np.ones((len(texts), 1), dtype=np.float32),
    )


def _claimed_epsilon(cost: Cost, delta: float) -> float:
    """ε that a release states at the test's δ: of its event, or its realised ex-post bound.

    A record that is replaced costs at least as much as one that comes or goes, which is what the
    test's coins do; so the figure holds for the test under every declared relation.
    """
    if cost.event is None:
        return float(cost.ex_post_epsilon or 0.0)  # of made-up records, so it may be shown
    return float(epsilon_of([cost.event], delta, "zcdp"))


def _key_terms(terms: CohortTerms, keys: int, model: Any) -> CohortTerms:
    """The cohort's terms with planted keys for records, and the decoder that the model has.

    The copying model is in no folder that the exact decoder could read: it is decoded, and
    charged for rounding, as any other model. No schema constrains keys: the mechanism is the same.
    """
    in_folder = getattr(model, "source", None) is not None
    return replace(
        terms,
        language_model=terms.language_model if in_folder else None,
        accountant="zcdp",
        json_schema=None,
        labels=(LABEL,),
        label_texts=(LABEL,),
        public_records=keys,
        has_cluster_histogram=True,
    )


def _slack_of(config: Any, model: Any) -> dict[str, float]:
    """The slack of float32, where a model that is in no folder takes the exact decoder's place.

    Without it the test would state a smaller ε than that of what it runs.
    """
    if getattr(model, "source", None) is not None or config.logit_slack > 0:
        return {}
    return {"logit_slack": float(type(config).model_fields["logit_slack"].default)}


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
    labels = label_indices(documents.records["label"], terms.labels)
    everywhere = [list(range(len(centers)))] * len(terms.labels)
    clusters = assign_clusters(documents.vectors, labels, centers, everywhere)
    counts = count_by_label_and_center(labels, clusters, len(terms.labels), len(centers))
    fullest = np.argsort(-counts, axis=None, kind="stable")[:cells]
    filled: np.ndarray = np.zeros(counts.size, dtype=np.int64)
    filled[fullest] = np.maximum(counts.flat[fullest], batch_records)
    return ClusterHistogram(
        labels=terms.labels,
        centers=tuple(tuple(centre) for centre in everywhere),
        dp_counts=tuple(tuple(map(int, row)) for row in filled.reshape(counts.shape)),
    )
