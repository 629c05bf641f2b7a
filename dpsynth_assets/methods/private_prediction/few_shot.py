"""A few demonstrations of each label, every token voted on by a fresh sample of its records.

The baseline that private prediction is compared with: it protects whole distributions where
softmax sampling protects one draw, and computes every prompt anew for every token. `few_shot_plan`
prices it, `few_shot_writer` writes the demonstrations.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpsynth_assets.methods.base import CohortTerms, GenerationMethod
from dpsynth_assets.methods.inputs import PrivateInputs, ProgressCallback, PublicInputs
from dpsynth_assets.methods.stages import MethodPlan, SyntheticCorpus
from dpsynth_assets.methods.private_prediction.checked import check_few_shot
from dpsynth_assets.methods.private_prediction.config import FewShotConfig
from dpsynth_assets.methods.private_prediction.corpus import corpus_rows
from dpsynth_assets.methods.private_prediction.few_shot_plan import (
    plan_few_shot,
    planned_mechanism,
)
from dpsynth_assets.methods.private_prediction.few_shot_writer import (
    Demonstration,
    FewShotTask,
    texts_by_label,
    write_demonstrations,
)
from dpsynth_assets.methods.private_prediction.prompts import context_prompts, prompt_columns
from dpsynth_assets.models.decoding import SamplingRules, attention_limit, sample_documents
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.release import Cost, Release


class FewShot(GenerationMethod):
    """Tang et al. 2024: argmax of noisy mean next-token probabilities."""

    name = "few_shot"
    title = "Few-shot generation (Tang et al. 2024)"
    paper = (
        "Tang et al. 2024, Privacy-preserving in-context learning with differentially private "
        "few-shot generation"
    )
    guarantee = GuaranteeType.DP
    config_type = FewShotConfig

    def plan(self, config: Any, terms: CohortTerms, *, target_epsilon: float) -> MethodPlan:
        """Finds the least noise at which all tokens of a label cost at most `target_epsilon`."""
        return plan_few_shot(config, terms, target_epsilon)

    def check_public(
        self, plan: MethodPlan, config: Any, terms: CohortTerms, public: PublicInputs
    ) -> None:
        """Asks for room for prompts with their documents.

        **Privacy** Reads settings and the public model only.
        """
        planned_mechanism(plan, config, terms)
        check_few_shot(config, terms, public)

    def generate(
        self,
        plan: MethodPlan,
        config: Any,
        terms: CohortTerms,
        private: PrivateInputs,
        public: PublicInputs,
        progress: ProgressCallback,
    ) -> Release[SyntheticCorpus]:
        """Writes every label's demonstrations, then extra documents after them.

        **Privacy** T Poisson-sampled Gaussian steps for each label, labels in parallel: the
        planned event, all of it charged. Extra documents read demonstrations alone.

        **Source** Tang et al. 2024, Algorithm 1, with Poisson samples (see
        `noisy_probabilities_event`).
        """
        mechanisms = [planned_mechanism(plan, config, terms) for _ in terms.labels]
        task = FewShotTask(config=config, terms=terms, public=public)
        texts = texts_by_label(private.records, terms.labels)
        written = write_demonstrations(task, texts, mechanisms, progress, private.passes)
        demonstrations = list(written)
        corpus = _corpus(task, demonstrations, progress)
        return Release(value=corpus, cost=Cost(guarantee=self.guarantee, event=plan.event))


def _corpus(
    task: FewShotTask, demonstrations: Sequence[Demonstration], progress: ProgressCallback
) -> SyntheticCorpus:
    """Builds rows: `batch` numbers the demonstrations and is empty for extra documents.

    **Privacy** Rows and facts are functions of released tokens and public settings.
    """
    import polars as pl

    extra = _extra_documents(task, demonstrations, progress)
    labels = [demonstration.label for demonstration in demonstrations] + [e[0] for e in extra]
    rows = corpus_rows(
        task.model,
        tokens=[demonstration.tokens for demonstration in demonstrations] + [e[1] for e in extra],
        labels=[task.terms.labels[label] for label in labels],
        batches=[*range(len(demonstrations)), *(None for _ in extra)],
        clusters=[None] * len(labels),
    ).with_columns(
        pl.when(pl.col("batch").is_null())
        .then(pl.lit("extra"))
        .otherwise(pl.lit("demonstration"))
        .alias("origin")
    )
    facts = {
        "rows": len(rows),
        "tokens": int(rows["n_tokens"].sum()),
        "demonstrations": len(demonstrations),
        "extra_documents": len(extra),
        "private_tokens": sum(demonstration.steps for demonstration in demonstrations),
    }
    return SyntheticCorpus(rows=rows, facts=facts)


def _extra_documents(
    task: FewShotTask, demonstrations: Sequence[Demonstration], progress: ProgressCallback
) -> list[tuple[int, list[int]]]:
    """Samples (label, tokens) pairs after demonstrations of the label: free post-processing."""
    config, model, terms = task.config, task.model, task.terms
    labels = [index % len(terms.labels) for index in range(config.extra_documents)]
    if not labels:
        return []
    draw = np.random.default_rng(task.public.seed)
    prompts = [
        _extra_prompt(task, label, _some_texts(task, label, demonstrations, draw))
        for label in labels
    ]
    sampled = sample_documents(
        model.model,
        prompts,
        end_token_id=model.end_token_id,
        pad_token_id=model.pad_token_id,
        max_new_tokens=config.max_document_tokens,
        rules=SamplingRules(temperature=config.temperature, seed=task.public.seed),
        progress=lambda share: progress(1.0, f"{share:.0%} of {len(labels)} extra documents"),
    )
    return [(label, each.tokens) for label, each in zip(labels, sampled, strict=True)]


def _extra_prompt(task: FewShotTask, label: int, texts: Sequence[str]) -> list[int]:
    """Writes the prompt of an extra document, its examples cut where they leave no room for it.

    N examples fit at the cut of the private ones, for which `check_few_shot` found room.
    """
    config, model, label_texts = task.config, task.model, task.terms.label_texts
    longest, count = config.max_document_tokens, config.examples_per_subset
    ids: list[int] = model.prompt_ids(label_texts[label], texts, longest)
    limit = attention_limit(model.model)
    if limit is None or len(ids) + longest <= limit:
        return ids
    columns = limit - longest
    frame = prompt_columns(model, label_texts, count, 1) - count
    cut = max(1, (columns - frame) // count)
    return context_prompts(
        model, label_texts[label], [texts], max_example_tokens=cut, columns=columns
    )[0]


def _some_texts(
    task: FewShotTask,
    label: int,
    demonstrations: Sequence[Demonstration],
    draw: np.random.Generator,
) -> list[str]:
    """Picks up to N released texts of a label, in random order."""
    texts = [
        task.model.decode(each.tokens).strip() for each in demonstrations if each.label == label
    ]
    texts = [text for text in texts if text]
    chosen = draw.permutation(len(texts))[: task.config.examples_per_subset]
    return [texts[index] for index in chosen]
