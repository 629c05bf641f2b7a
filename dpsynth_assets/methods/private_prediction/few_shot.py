"""A few demonstrations of each label, every token voted on by a fresh sample of its records.

The baseline that private prediction is compared with: it protects whole distributions where
softmax sampling protects one draw, and computes every prompt again for every token.
`few_shot_writer` writes the demonstrations.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpsynth_assets.files.whole import Room, bytes_of_texts
from dpsynth_assets.methods.base import CohortTerms, mechanism_of, planned, refused
from dpsynth_assets.methods.capabilities import Advice, Attacks, DrawsTokens
from dpsynth_assets.methods.inputs import (
    PublicInputs,
)
from dpsynth_assets.methods.private_prediction.config import FewShotConfig, suited
from dpsynth_assets.methods.private_prediction.decoding import (
    decoder_parameters,
    slack_refusal,
)
from dpsynth_assets.methods.private_prediction.few_shot_writer import (
    FewShotTask,
    few_shot_corpus,
    texts_by_label,
    write_demonstrations,
)
from dpsynth_assets.methods.private_prediction.method import (
    PrivatePrediction,
    released,
)
from dpsynth_assets.methods.private_prediction.planted_keys import KeyTask, few_shot_fitted
from dpsynth_assets.methods.private_prediction.preconditions import check_few_shot
from dpsynth_assets.methods.private_prediction.vocabulary_tails import noisy_tail
from dpsynth_assets.methods.rejection_sampling import RowFilter, kept_rows
from dpsynth_assets.methods.stages import (
    CANDIDATE_CORPUS,
    MethodPlan,
    Stage,
    StageRelease,
    StageRun,
    SyntheticCorpus,
)
from dpsynth_assets.methods.work import PublicSizes, Work
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.calibration import smallest_multiplier
from dpsynth_assets.privacy.directed_rounding import rounded_up
from dpsynth_assets.privacy.events import PoissonGaussianEvent
from dpsynth_assets.privacy.guarantees import Cost, Release
from dpsynth_assets.privacy.noisy_probabilities import (
    NoisyProbabilities,
)
from dpsynth_assets.privacy.renyi import (
    ORDERS,
    epsilon_at_order,
    filter_order,
    renyi_divergence,
    zcdp_rho,
)

if TYPE_CHECKING:
    from dpsynth_assets.attacks.reconstruction import KeysWritten

_BELOW = 1.0 - 1e-9
"""Keeps shares that sum to one from overspending by a rounding error."""


def least_noise(
    event: Callable[[float], PoissonGaussianEvent],
    sampling_probability: float,
    terms: CohortTerms,
    target_epsilon: float,
) -> float:
    """Finds the smallest noise multiplier within the target, in two senses.

    A sampled Gaussian's Rényi curve bends upwards, and the ledger's filter compares releases at
    one order α that the cohort's budget fixes. There the steps must stay within α ρ, ρ what the
    target is worth: then shares of ρ that sum to one fit the filter, where noise calibrated at
    the release's own best order could exceed it hundreds of times. The release alone must also
    read at most the target; its best order is below that of unsampled noise.

    Args:
        event: Prices all steps at a noise multiplier.
        sampling_probability: q of every record in every step.
        terms: The cohort's declared terms.
        target_epsilon: ε > 0 that the steps may cost.
    """
    order = filter_order(terms.epsilon, terms.delta)
    rho = zcdp_rho(target_epsilon, terms.delta) * _BELOW
    highest = filter_order(target_epsilon, terms.delta)
    orders = [each for each in ORDERS if each < highest] or ORDERS[:1]

    def alone(multiplier: float) -> float:
        return min(
            epsilon_at_order(renyi_divergence(event(multiplier), each), each, terms.delta)
            for each in orders
        )

    unsampled = math.sqrt(float(event(1.0).rho) / rho)
    guess = max(unsampled * sampling_probability, min(unsampled, 0.5))
    found = smallest_multiplier(lambda z: renyi_divergence(event(z), order), guess, order * rho)
    if epsilon_of([event(found)], terms.delta, "zcdp") <= target_epsilon:
        return found
    return smallest_multiplier(alone, found, target_epsilon)


def input_refusal(sampling_probability: float | None, target_epsilon: float) -> str | None:
    """Refuses an undeclared number of records, and a method without a budget."""
    if sampling_probability is None:
        return (
            "Expected a declared number of records, from which few_shot computes the sampling "
            "probability, got none. Declare public_facts.records if the number is public, or use "
            "another method."
        )
    if target_epsilon <= 0:
        return (
            f"Expected target_epsilon > 0 for few_shot, got {rounded_up(target_epsilon)}. Give it "
            "a budget_share."
        )
    return None


class FewShot(PrivatePrediction[FewShotConfig]):
    """Tang et al. 2024: argmax of noisy mean next-token probabilities."""

    name = "few_shot"
    title = "Few-shot generation (Tang et al. 2024)"
    paper = (
        "Tang et al. 2024, Privacy-preserving in-context learning with differentially private "
        "few-shot generation"
    )
    arxiv = "2309.11765"
    config_type = FewShotConfig
    declared = None  # It draws subsets, no batches.
    advice = Advice(
        defaults=suited({}),
        unadvised="shows records to the model under zero-out batches of few tokens; see "
        "mean_uniform",
    )

    def stages(self) -> tuple[Stage, ...]:
        """The corpus."""
        stage = self.corpus_stage(
            examples_in_prompt=self.config.examples_per_subset,
            work=self.work,
            check=self.check_public,
            takes=self.room,
            draws=self.release,
        )
        return (stage,)

    @property
    def sampling_probability(self) -> float | None:
        """Chance of each record in each step, M N / (declared records of a label), at most 1.

        The labels are taken to share the declared records equally: where they do not, subsets of a
        rare label hold fewer examples than N. What private records there are does not matter. None
        if no number of records is declared.
        """
        if self.terms.public_records is None:
            return None
        config = self.config
        expected = config.subsets * config.examples_per_subset * len(self.terms.labels)
        return min(1.0, expected / max(1, self.terms.public_records))

    def plan(self, target_epsilon: float) -> MethodPlan:
        """Plans the least noise at which all tokens of a label cost at most `target_epsilon`.

        T = documents x greatest length steps of each label, all of them charged.
        """
        chance, settings = self.sampling_probability, self.config.stated()
        refusal = slack_refusal(self.terms, self.config.logit_slack)
        refusal = refusal or input_refusal(chance, target_epsilon)
        if chance is None or refusal is not None:
            return refused(self, refusal or "", settings)
        return self.plan_at_noise(
            least_noise(lambda z: self._mechanism(z).event(), chance, self.terms, target_epsilon)
        )

    def work(self, plan: MethodPlan, sizes: PublicSizes) -> Work:
        """Counts prompts that every step reads again, each with another sample of records."""
        config, labels = self.config, len(self.terms.labels)
        steps = labels * int(plan.parameters["steps_per_label"])
        prompt = sizes.prompt(config.examples_per_subset, config.max_example_tokens)
        prompt += config.max_document_tokens / 2
        rows = steps * config.subsets
        return Work(read=rows * prompt, steps=steps, written=rows)

    def plan_at_noise(self, noise_multiplier: float) -> MethodPlan:
        """Plans all steps of each label at this noise, at any cost.

        Raises:
            ValueError: If no number of records is declared.
        """
        mechanism = self._mechanism(noise_multiplier)
        chance = mechanism.sampling_probability
        return planned(
            self,
            {CANDIDATE_CORPUS: mechanism},
            self.config.stated()
            | decoder_parameters(self.terms)
            | {
                "sampling_probability": chance,
                "noise_multiplier": noise_multiplier,
                "noise_std": mechanism.noise_std,
                "steps_per_label": mechanism.steps,
                "noise": (
                    f"Gaussian of std {mechanism.noise_std:.3g} on mean probabilities, "
                    f"{mechanism.steps} steps a label, each record sampled with {chance:.3g}"
                ),
            },
            tail=noisy_tail(self.config, mechanism.noise_std),
            epsilon=epsilon_of([mechanism.event()], self.terms.delta, self.terms.accountant),
            rows_estimate=len(self.terms.labels) * self.config.documents_per_label
            + self.config.extra_documents,
        )

    def _mechanism(self, noise_multiplier: float) -> NoisyProbabilities:
        chance = self.sampling_probability
        if chance is None:
            raise ValueError("Expected a declared number of records, got none.")
        return NoisyProbabilities(
            subsets=self.config.subsets,
            examples_per_subset=self.config.examples_per_subset,
            sampling_probability=chance,
            noise_multiplier=noise_multiplier,
            steps=self.config.documents_per_label * self.config.max_document_tokens,
            top_k=self.config.top_k,
            relation=self.terms.relation,
            max_records_per_unit=self.terms.unit.max_records,
            logit_slack=self.config.logit_slack,
        )

    @property
    def rows_and_examples(self) -> tuple[int, int]:
        """Subsets, and records of each."""
        return self.config.subsets, self.config.examples_per_subset

    def check_public(self, public: PublicInputs) -> None:
        """Asks for room for prompts with their documents.

        **Privacy** Reads settings and the public model only.
        """
        check_few_shot(self.config, self.terms, public, self.pass_shape(public.language_model))

    def room(self, stage: Stage, public: PublicInputs) -> Room:
        """Counts the documents at full length: they are kept, released and published."""
        del stage, public
        config = self.config
        documents = len(self.terms.labels) * config.documents_per_label + config.extra_documents
        texts = bytes_of_texts(documents, config.max_document_tokens)
        return Room(release=texts, kept=texts, corpus=texts)

    def release(self, run: StageRun) -> Release[StageRelease]:
        """Writes every label's demonstrations, then extra documents after them.

        Each label opens the planned mechanism again and draws its T steps, no more; the planned
        object itself draws none.

        **Privacy** T Poisson-sampled Gaussian steps for each label, labels in parallel: the
        planned event, all of it charged. Extra documents read demonstrations alone.

        **Source** Tang et al. 2024, Algorithm 1, with Poisson samples (see
        `noisy_probabilities_event`).
        """
        mechanism = mechanism_of(run.stage, NoisyProbabilities)
        mechanisms = [replace(mechanism) for _ in self.terms.labels]
        task = FewShotTask(config=self.config, terms=self.terms, public=run.public)
        texts = texts_by_label(run.private.records, self.terms.labels)
        written = write_demonstrations(task, texts, mechanisms, run.progress, run.private.passes)
        corpus = few_shot_corpus(task, list(written), run.progress)
        form = self.terms.form(follows_schema=False)
        kept = RowFilter.of(self.config.rejection, self.terms, run.public, form)
        rows, judged = kept_rows(corpus.rows, kept)
        facts = {**corpus.facts, **judged, "rows": rows.height}
        cost = Cost(guarantee=self.guarantee, event=mechanism.event())
        made = SyntheticCorpus(rows=rows, facts=facts)
        return Release(value=released(made), cost=cost)

    def key_task(self, plan: MethodPlan, model: Any) -> KeyTask:
        """Fits the method to keys, at the noise of its plan on fewer steps."""
        noise = mechanism_of(plan.stage(CANDIDATE_CORPUS), NoisyProbabilities)
        fitted, keys = few_shot_fitted(self, model)
        return KeyTask(
            method=fitted,
            plan=fitted.plan_at_noise(noise.noise_multiplier),
            public=PublicInputs(language_model=model),
            expected_keys=keys,
        )

    def reconstruct(
        self,
        plan: MethodPlan,
        target_epsilon: float,  # noqa: ARG002 - noise is the plan's
        model: Any,
    ) -> "KeysWritten":
        """Runs the method on planted keys (`planted_keys`)."""
        return self.key_task(plan, model).run()

    capabilities = (DrawsTokens(PrivatePrediction.pass_shape), Attacks(reconstruct=reconstruct))
