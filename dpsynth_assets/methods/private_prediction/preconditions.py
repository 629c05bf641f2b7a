"""What public settings and released numbers must allow, asked before anything is charged."""

from collections.abc import Sequence
from typing import Any

from dpsynth_assets.methods.base import CohortTerms, GenerationMethod
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.stages import MethodPlan
from dpsynth_assets.methods.private_prediction.cells import (
    hashed_cells,
    released_centers,
    slot_cells,
)
from dpsynth_assets.methods.private_prediction.config import (
    FewShotConfig,
    PrivatePredictionConfig,
)
from dpsynth_assets.methods.private_prediction.prompts import prompt_columns, public_prompt
from dpsynth_assets.models.decoding import require_room


class PrivatePrediction(GenerationMethod):
    """What all methods of batches check alike before they are paid for."""

    def compares_with_public_prompts(self, config: Any) -> bool:
        """Whether each batch has a public prompt that is decoded beside it."""
        return getattr(config, "public_top_k", None) is not None

    def check_public(
        self, plan: MethodPlan, config: Any, terms: CohortTerms, public: PublicInputs
    ) -> None:
        """Asks for the batches' cells, and for room for prompts with their documents.

        **Privacy** Reads settings, the public model and the released histogram only.
        """
        del plan
        check_slack(config, public.language_model.model)
        check_cells(config, terms, public, clustered=self.needs_embeddings)
        model, length = public.language_model, config.max_document_tokens
        columns = prompt_columns(
            model, terms.label_texts, config.examples_per_context, config.max_example_tokens
        )
        require_room(model.model, columns + length)
        finishes = config.on_exhaustion == "finish_publicly"
        if finishes or self.compares_with_public_prompts(config):
            check_public_prompts(model, terms.label_texts, length)


def check_slack(config: PrivatePredictionConfig | FewShotConfig, model: Any) -> None:
    """Refuses low precision under the slack that was meant for float32."""
    import torch

    if model.dtype != torch.float32 and "logit_slack" not in config.model_fields_set:
        raise ValueError(
            f"Expected a declared logit_slack for {model.dtype} weights, whose rounding lets one "
            "record move another's logits (0.25 was seen), got the default for float32. Load the "
            "model with dtype: float32, or declare what you measured."
        )


def check_cells(
    config: PrivatePredictionConfig, terms: CohortTerms, public: PublicInputs, *, clustered: bool
) -> None:
    """Refuses declared or released numbers from which no batch can be cut."""
    if clustered:
        released_centers(terms, public)
    if config.batching == "slots":
        slot_cells(terms, public, clustered=clustered)
    else:
        hashed_cells(config, terms, public, clustered=clustered)


def check_public_prompts(model: Any, label_texts: Sequence[str], document_tokens: int) -> None:
    """Refuses a public prompt that leaves no room for a document of full length."""
    longest = max(len(public_prompt(model, text)) for text in label_texts)
    require_room(
        model.model,
        longest + document_tokens,
        what="public prompt and document",
        remedy="Shorten prompt.public in the dataset file or lower max_document_tokens.",
    )


def check_few_shot(config: FewShotConfig, terms: CohortTerms, public: PublicInputs) -> None:
    """Refuses prompts of N examples, or without one, that leave no room for a demonstration.

    Extra documents fit then as well: their examples are cut to what is left.
    """
    model, length = public.language_model, config.max_document_tokens
    check_slack(config, model.model)
    columns = prompt_columns(
        model, terms.label_texts, config.examples_per_subset, config.max_example_tokens
    )
    require_room(
        model.model,
        columns + length,
        remedy="Lower max_example_tokens, examples_per_subset or max_document_tokens.",
    )
    check_public_prompts(model, terms.label_texts, length)
