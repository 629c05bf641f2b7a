"""A few demonstrations of each label, every token voted on by a fresh sample of its records.

The baseline that private prediction is compared with: it protects whole distributions where
softmax sampling protects one draw, and computes every prompt anew for every token.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.methods.base import (
    CohortTerms,
    GenerationMethod,
    MethodPlan,
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
    SyntheticCorpus,
)
from dpsynth_assets.methods.private_prediction.cluster_histogram import label_indices
from dpsynth_assets.methods.private_prediction.config import FewShotConfig
from dpsynth_assets.methods.private_prediction.corpus import corpus_rows
from dpsynth_assets.methods.private_prediction.prompts import (
    context_prompts,
    prompt_columns,
    public_prompt,
)
from dpsynth_assets.models.decoding import PackedContexts, SamplingRules, sample_documents
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import PoissonGaussianEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.monotone_search import smallest_multiplier
from dpsynth_assets.privacy.noisy_probabilities import (
    NoisyProbabilities,
    noisy_probabilities_event,
)
from dpsynth_assets.privacy.release import Cost, Release
from dpsynth_assets.privacy.renyi import (
    ORDERS,
    epsilon_at_order,
    filter_order,
    renyi_divergence,
    zcdp_rho,
)

if TYPE_CHECKING:
    import polars as pl
    import torch

_ROWS_PER_PREFILL = 64
"""Most prompts of one forward pass: bounds memory, and is public."""

_BELOW = 1.0 - 1e-9
"""Keeps shares that sum to one from overspending by a rounding error."""


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
        task = _Task(config=config, terms=terms, public=public)
        texts = _texts_by_label(private.records, terms.labels)
        demonstrations = list(_demonstrations(task, texts, mechanisms, progress))
        corpus = _corpus(task, demonstrations, progress)
        return Release(value=corpus, cost=Cost(guarantee=self.guarantee, event=plan.event))


def sampling_probability(config: FewShotConfig, terms: CohortTerms) -> float | None:
    """Reads q = M N / (declared records of a label), at most 1; None if none are declared.

    The labels are taken to share the declared records equally: where they do not, subsets of a
    rare label hold fewer examples than N. What private records there are does not matter.
    """
    if terms.public_records is None:
        return None
    expected = config.subsets * config.examples_per_subset * len(terms.labels)
    return min(1.0, expected / max(1, terms.public_records))


def plan_few_shot(config: FewShotConfig, terms: CohortTerms, target_epsilon: float) -> MethodPlan:
    """Plans T = documents x greatest length steps of each label, all of them charged.

    A plan is refused where even a token on which all subsets agree would lose to the largest of K
    noises: its text would be noise.
    """
    chance = sampling_probability(config, terms)
    refusal = _refusal(chance, target_epsilon)
    if chance is None or refusal is not None:
        return _refused(config, refusal)
    multiplier = _noise_multiplier(config, terms, chance, target_epsilon)
    mechanism = _mechanism(config, terms, chance, multiplier)
    refusal = _noise_refusal(mechanism, target_epsilon)
    if refusal is not None:
        return _refused(config, refusal)
    event = mechanism.event()
    return MethodPlan(
        guarantee=GuaranteeType.DP,
        event=event,
        parameters=config.model_dump(mode="json")
        | {
            "sampling_probability": chance,
            "noise_multiplier": multiplier,
            "noise_std": mechanism.noise_std,
            "steps_per_label": mechanism.steps,
            "noise": (
                f"Gaussian of std {mechanism.noise_std:.3g} on mean probabilities, "
                f"{mechanism.steps} steps a label, each record sampled with {chance:.3g}"
            ),
        },
        epsilon=epsilon_of([event], terms.delta, terms.accountant),
        rows_estimate=len(terms.labels) * config.documents_per_label + config.extra_documents,
    )


def planned_mechanism(
    plan: MethodPlan, config: FewShotConfig, terms: CohortTerms
) -> NoisyProbabilities:
    """Opens the mechanism of one label as planned.

    Raises:
        ValueError: If the plan refused.
        UnaccountedReleaseError: If the plan's event does not price these settings.
    """
    chance = sampling_probability(config, terms)
    if plan.refusal is not None or chance is None:
        raise ValueError(f"Expected a plan that can run, got a refusal: {plan.refusal}")
    mechanism = _mechanism(config, terms, chance, float(plan.parameters["noise_multiplier"]))
    if mechanism.event() != plan.event:
        raise UnaccountedReleaseError(
            "Expected the plan's event to price these settings, got another. Plan again."
        )
    return mechanism


def _mechanism(
    config: FewShotConfig, terms: CohortTerms, chance: float, noise_multiplier: float
) -> NoisyProbabilities:
    return NoisyProbabilities(
        subsets=config.subsets,
        examples_per_subset=config.examples_per_subset,
        sampling_probability=chance,
        noise_multiplier=noise_multiplier,
        steps=_steps(config),
        top_k=config.top_k,
        relation=terms.relation,
        max_records_per_unit=terms.unit.max_records,
        logit_slack=config.logit_slack,
    )


def _steps(config: FewShotConfig) -> int:
    return config.documents_per_label * config.max_document_tokens


def _noise_multiplier(
    config: FewShotConfig, terms: CohortTerms, chance: float, target_epsilon: float
) -> float:
    """Finds the smallest noise multiplier within the target, in two senses.

    A sampled Gaussian's Rényi curve bends upwards, and the ledger's filter compares releases at
    one order α that the cohort's budget fixes. There the steps must stay within α ρ, ρ what the
    target is worth: then shares of ρ that sum to one fit the filter, where noise calibrated at
    the release's own best order could exceed it hundreds of times. The release alone must also
    read at most the target; its best order is below that of unsampled noise.
    """
    order = filter_order(terms.epsilon, terms.delta)
    rho = zcdp_rho(target_epsilon, terms.delta) * _BELOW
    highest = filter_order(target_epsilon, terms.delta)
    orders = [each for each in ORDERS if each < highest] or ORDERS[:1]

    def event(multiplier: float) -> PoissonGaussianEvent:
        return noisy_probabilities_event(
            sampling_probability=chance,
            noise_multiplier=multiplier,
            steps=_steps(config),
            relation=terms.relation,
            max_records_per_unit=terms.unit.max_records,
        )

    def alone(multiplier: float) -> float:
        return min(
            epsilon_at_order(renyi_divergence(event(multiplier), each), each, terms.delta)
            for each in orders
        )

    unsampled = math.sqrt(float(event(1.0).rho) / rho)
    guess = max(unsampled * chance, min(unsampled, 0.5))
    found = smallest_multiplier(lambda z: renyi_divergence(event(z), order), guess, order * rho)
    if epsilon_of([event(found)], terms.delta, "zcdp") <= target_epsilon:
        return found
    return smallest_multiplier(alone, found, target_epsilon)


def _refusal(chance: float | None, target_epsilon: float) -> str | None:
    if chance is None:
        return (
            "Expected a declared number of records, from which few_shot computes the sampling "
            "probability, got none. Declare public_facts.records if the number is public, or use "
            "another method."
        )
    if target_epsilon <= 0:
        return f"Expected target_epsilon > 0 for few_shot, got {target_epsilon:g}. Give it a share."
    return None


def _noise_refusal(mechanism: NoisyProbabilities, target_epsilon: float) -> str | None:
    """Refuses noise of whose K draws the largest, about std √(2 ln K), beats every agreement."""
    bound = 1.0 / math.sqrt(2.0 * math.log(max(2, mechanism.top_k)))
    if mechanism.noise_std < bound:
        return None
    return (
        f"Expected noise of std < {bound:.3g} on mean probabilities, got {mechanism.noise_std:.3g} "
        f"at ε={target_epsilon:g}: not even a unanimous token would stand out. Raise "
        "target_epsilon or subsets, or lower documents_per_label, max_document_tokens or top_k."
    )


def _refused(config: FewShotConfig, refusal: str | None) -> MethodPlan:
    return MethodPlan(
        guarantee=GuaranteeType.DP,
        event=None,
        parameters=config.model_dump(mode="json"),
        rows_estimate=0,
        refusal=refusal,
    )


@dataclass(frozen=True, kw_only=True)
class _Task:
    """One run: settings and inputs, all public."""

    config: FewShotConfig
    terms: CohortTerms
    public: PublicInputs

    @property
    def model(self) -> Any:
        """The language model."""
        return self.public.language_model


@dataclass(frozen=True, kw_only=True)
class _Demonstration:
    """A released token sequence without its end token.

    Attributes:
        label: Index of its label.
        tokens: In order.
        steps: Private tokens drawn, the end token included.
    """

    label: int
    tokens: list[int]
    steps: int


def _texts_by_label(records: "pl.DataFrame", labels: Sequence[str]) -> list[list[str]]:
    """Lists each label's texts. A null record has none, and takes no part (zero-out)."""
    texts: list[list[str]] = [[] for _ in labels]
    indices = label_indices(records["label"].to_list(), labels)
    for label, text in zip(indices.tolist(), records["text"].to_list(), strict=True):
        if label >= 0 and text.strip():
            texts[label].append(text)
    return texts


def _demonstrations(
    task: _Task,
    texts: Sequence[Sequence[str]],
    mechanisms: Sequence[NoisyProbabilities],
    progress: ProgressCallback,
) -> Iterator[_Demonstration]:
    """Writes the same number of documents for each label, whatever records it has."""
    total = sum(mechanism.steps for mechanism in mechanisms)
    done = 0

    def on_token(written: int) -> None:
        progress((done + written) / total, f"{done + written} of {total} private tokens charged")

    for label, mechanism in enumerate(mechanisms):
        writer = _LabelWriter(task, label, texts[label], mechanism)
        for _ in range(task.config.documents_per_label):
            yield writer.write(on_token)
            done += task.config.max_document_tokens
            on_token(0)


class _LabelWriter:
    """Writes documents of one label token by token.

    **Privacy** Private texts reach the prompts of the subsets they were sampled into, and nothing
    else; the M prompts of a step are padded to a length that public settings and released tokens
    fix, and are read in passes of their own, apart from the public prompt.
    """

    def __init__(
        self, task: _Task, label: int, texts: Sequence[str], mechanism: NoisyProbabilities
    ) -> None:
        config, model = task.config, task.model
        self._task, self._label, self._texts = task, label, texts
        self._mechanism = mechanism
        self._columns = prompt_columns(
            model, task.terms.label_texts, config.examples_per_subset, config.max_example_tokens
        )
        start = public_prompt(model, task.terms.label_texts[label])
        self._public = PackedContexts(
            model.model,
            [start],
            prompt_columns=self._columns,  # refuses at once what private prompts would need later
            max_new_tokens=config.max_document_tokens,
            pad_token_id=model.pad_token_id,
            rows_per_prefill=1,
        )

    def write(self, on_token: Callable[[int], None]) -> _Demonstration:
        """Writes one document of at most the greatest length; tells its length so far."""
        tokens: list[int] = []
        limit, end = self._task.config.max_document_tokens, self._task.model.end_token_id
        while len(tokens) < limit:
            token = self._next_token(tokens)
            if token == end:
                return _Demonstration(label=self._label, tokens=tokens, steps=len(tokens) + 1)
            tokens.append(token)
            on_token(len(tokens))
        return _Demonstration(label=self._label, tokens=tokens, steps=limit)

    def _next_token(self, released: Sequence[int]) -> int:
        """Draws a sample and releases one token: one step of the mechanism."""
        public_logits = self._public_logits(released)
        subsets = self._mechanism.draw(len(self._texts))
        private_logits = self._private_logits(subsets, released)
        return self._mechanism.select(private_logits, public_logits)

    def _public_logits(self, released: Sequence[int]) -> "torch.Tensor":
        """Computes (V,) logits of the prompt without examples after the released tokens."""
        import torch

        last = torch.tensor(released[-1:] or [self._task.model.pad_token_id])
        return self._public.next_logits(last, torch.tensor([len(released)]))[0]

    def _private_logits(
        self, subsets: Sequence[np.ndarray], released: Sequence[int]
    ) -> "torch.Tensor":
        """Computes (M, V) logits of the subsets' prompts after the released tokens."""
        import torch

        config, model = self._task.config, self._task.model
        prompts = context_prompts(
            model,
            self._task.terms.label_texts[self._label],
            [[self._texts[record] for record in subset] for subset in subsets],
            max_example_tokens=config.max_example_tokens,
            columns=self._columns,
        )
        contexts = PackedContexts(
            model.model,
            [prompt + list(released) for prompt in prompts],
            prompt_columns=self._columns + len(released),
            max_new_tokens=1,
            pad_token_id=model.pad_token_id,
            rows_per_prefill=min(config.subsets, _ROWS_PER_PREFILL),
        )
        start = torch.zeros(len(prompts), dtype=torch.long)
        return contexts.next_logits(start, start)


def _corpus(
    task: _Task, demonstrations: Sequence[_Demonstration], progress: ProgressCallback
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
    task: _Task, demonstrations: Sequence[_Demonstration], progress: ProgressCallback
) -> list[tuple[int, list[int]]]:
    """Samples (label, tokens) pairs after demonstrations of the label: free post-processing."""
    config, model, terms = task.config, task.model, task.terms
    labels = [index % len(terms.labels) for index in range(config.extra_documents)]
    draw = np.random.default_rng(task.public.seed)
    prompts = [
        model.prompt_ids(
            terms.label_texts[label],
            _some_texts(task, label, demonstrations, draw),
            config.max_document_tokens,
        )
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


def _some_texts(
    task: _Task,
    label: int,
    demonstrations: Sequence[_Demonstration],
    draw: np.random.Generator,
) -> list[str]:
    """Picks up to N released texts of a label, in random order."""
    texts = [
        task.model.decode(each.tokens).strip() for each in demonstrations if each.label == label
    ]
    texts = [text for text in texts if text]
    chosen = draw.permutation(len(texts))[: task.config.examples_per_subset]
    return [texts[index] for index in chosen]
