"""A method's run on made-up keys: its own mechanism, its own settings, texts of five digits.

Everything that decides privacy is the dataset's: mechanism, clip bound, temperature, batch size,
examples in a context, slack, sampling, relation and unit. Batches are few and plans short, so that
a test takes seconds; a shorter plan claims less.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.cluster_histogram import ClusterHistogram
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs
from dpsynth_assets.methods.planned import PlannedMethod
from dpsynth_assets.methods.private_prediction.config import FewShotConfig
from dpsynth_assets.methods.private_prediction.few_shot_plan import plan_at_noise
from dpsynth_assets.methods.stages import MethodPlan
from dpsynth_assets.privacy.accounting import zcdp_epsilon, zcdp_rho

if TYPE_CHECKING:
    from dpsynth_assets.attacks.reconstruction import PlantedKeys

CONTEXTS = 96
"""Contexts that generate side by side in a test, whole batches: one batch at least."""

PRIVATE_TOKENS = 60
"""Private tokens a batch, or a label, draws in a test, if its plan allows as many: a dozen keys.

More would show weaker copying, but claim a larger ε, which copying itself could then not refute.
"""

MOST_KEYS_SHARE = 10
"""At most one key in so many is planted: rarer keys prove more."""

LABEL = "keys"


@dataclass(frozen=True, kw_only=True)
class KeyTask:
    """One method's run on planted keys: its own mechanism settings, lengths of a key.

    Attributes:
        config: The declared settings, with the lengths of a key and few batches.
        terms: The declared terms, with one public label for all keys.
        plan: As many private tokens as the declared plan has, at most as the test may draw.
        public: The language model, one cluster and its made-up histogram.
        expected_keys: Records that fill the batches: their public number where `in_places`, else
            their number on average.
        in_places: Whether records stand in public places, some of them null.
    """

    config: Any
    terms: CohortTerms
    plan: MethodPlan
    public: PublicInputs
    expected_keys: int
    in_places: bool = False

    def plant(self) -> "PlantedKeys":
        """Plants keys as neighbours of the declared relation differ: there or not, or null."""
        from dpsynth_assets.attacks.reconstruction import plant_in_places, plant_keys

        return (plant_in_places if self.in_places else plant_keys)(self.expected_keys)


def key_task(planned: PlannedMethod, terms: CohortTerms, model: Any) -> KeyTask | None:
    """Fits a method to keys; None if its budget does not reach for a single one."""
    if isinstance(planned.config, FewShotConfig):
        return _few_shot_task(planned, planned.config, terms, model)
    return _batches_task(planned, terms, model)


def _batches_task(planned: PlannedMethod, terms: CohortTerms, model: Any) -> KeyTask | None:
    from dpsynth_assets.attacks.reconstruction import KEYS

    own, length = planned.config, key_length(model)
    batches, in_places = max(1, CONTEXTS // own.expected_batch_size), own.batching == "slots"
    keys = min(KEYS // 2, batches * own.expected_batch_size * own.examples_per_context)
    config = changed(
        own,
        max_document_tokens=length,
        max_example_tokens=length,
        min_tokens_for_new_document=min(own.min_tokens_for_new_document, length),
        on_exhaustion="drop",
        max_batches=batches,
        batches_per_label=None if in_places else batches,
        max_tokens_per_batch=2 * PRIVATE_TOKENS,
    )
    terms = _key_terms(terms, keys)
    plan = short_plan(planned, config, terms)
    if plan.refusal is not None or not plan.tokens_per_batch:
        return None
    histogram = ClusterHistogram(labels=(LABEL,), centers=((0,),), dp_counts=((keys,),))
    return KeyTask(
        config=config,
        terms=terms,
        plan=plan,
        public=PublicInputs(
            language_model=model,
            cluster_centers=np.ones((1, 1), dtype=np.float32),
            cluster_histogram=histogram,
        ),
        expected_keys=keys,
        in_places=in_places,
    )


def _few_shot_task(
    planned: PlannedMethod, own: FewShotConfig, terms: CohortTerms, model: Any
) -> KeyTask:
    """As many keys as one label has declared records, so that each is sampled as often.

    Noise is the declared plan's, on fewer steps.
    """
    from dpsynth_assets.attacks.reconstruction import KEYS

    length = key_length(model)
    declared = own.documents_per_label * own.max_document_tokens
    documents = max(1, min(declared, PRIVATE_TOKENS) // length)
    records = (terms.public_records or 0) // len(terms.labels)
    keys = min(KEYS // MOST_KEYS_SHARE, max(1, records))
    config = changed(
        own,
        documents_per_label=documents,
        max_document_tokens=length,
        max_example_tokens=length,
        extra_documents=0,
    )
    terms = _key_terms(terms, keys)
    plan = plan_at_noise(config, terms, float(planned.plan.parameters["noise_multiplier"]))
    public = PublicInputs(language_model=model)
    return KeyTask(config=config, terms=terms, plan=plan, public=public, expected_keys=keys)


def key_length(model: Any) -> int:
    """Most tokens that a key of five equal digits takes."""
    from dpsynth_assets.attacks.reconstruction import DIGITS

    return max(len(model.encode(digit * DIGITS)) for digit in "0123456789")


def short_plan(planned: PlannedMethod, config: Any, terms: CohortTerms) -> MethodPlan:
    """The declared plan, or one of about `PRIVATE_TOKENS`: they cost ρ in proportion."""
    target = getattr(config, "matched_epsilon", None) or planned.target_epsilon
    plan = planned.method.plan(config, terms, target_epsilon=target)
    tokens = plan.tokens_per_batch or 0
    if plan.refusal is not None or tokens <= PRIVATE_TOKENS:
        return plan
    rho = float(zcdp_rho(target, terms.delta)) * PRIVATE_TOKENS / tokens
    shorter = zcdp_epsilon(rho, terms.delta)
    config = changed(config, matched_epsilon=None)
    return planned.method.plan(config, terms, target_epsilon=shorter)


def changed(config: Any, **changes: Any) -> Any:
    """Sets those fields that a method's settings have."""
    fields = type(config).model_fields
    return config.model_copy(update={k: v for k, v in changes.items() if k in fields})


def key_records(texts: Sequence[str]) -> PrivateInputs:
    """Made-up records in the shape of private ones: a key or a null text each, in one cluster.

    A key is its record's id, so that it goes to its batch whatever other keys there are.
    """
    names = [text or f"null {place}" for place, text in enumerate(texts)]
    return PrivateInputs(
        records=pl.DataFrame(
            {"record_id": names, "unit_id": names, "text": texts, "label": [LABEL] * len(texts)},
            schema=dict.fromkeys(("record_id", "unit_id", "text", "label"), pl.String),
        ),
        embeddings=np.ones((len(texts), 1), dtype=np.float32),
    )


def _key_terms(terms: CohortTerms, keys: int) -> CohortTerms:
    return replace(
        terms,
        accountant="zcdp",
        labels=(LABEL,),
        label_texts=(LABEL,),
        public_records=keys,
        has_cluster_histogram=True,
    )
