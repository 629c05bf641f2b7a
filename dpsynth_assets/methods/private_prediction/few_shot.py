"""A few demonstrations of each label, every token voted on by a fresh sample of its records.

The baseline that private prediction is compared with: it protects whole distributions where
softmax sampling protects one draw, and computes every prompt anew for every token. `few_shot_plan`
sizes the noise, `few_shot_writer` writes the demonstrations.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpsynth_assets.attacks.logit_moves import PassShape
from dpsynth_assets.files.disk_room import Room, bytes_of_texts
from dpsynth_assets.methods.base import planned, refused
from dpsynth_assets.methods.candidates import Advice
from dpsynth_assets.methods.capabilities import Attacks, DrawsTokens
from dpsynth_assets.methods.inputs import (
    Checkpoint,
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
)
from dpsynth_assets.methods.private_prediction.config import FewShotConfig
from dpsynth_assets.methods.private_prediction.decoding import decoder_parameters, slack_refusal
from dpsynth_assets.methods.private_prediction.few_shot_plan import (
    input_refusal,
    least_noise,
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
    suited,
)
from dpsynth_assets.methods.private_prediction.planted_keys import KeyTask, few_shot_fitted
from dpsynth_assets.methods.private_prediction.preconditions import check_few_shot
from dpsynth_assets.methods.private_prediction.prompts import prompt_columns
from dpsynth_assets.methods.private_prediction.vocabulary_tails import noisy_tail
from dpsynth_assets.methods.rejection_sampling import RowFilter, kept_rows
from dpsynth_assets.methods.stages import (
    CANDIDATE_CORPUS,
    MethodPlan,
    Stage,
    StageRelease,
    SyntheticCorpus,
)
from dpsynth_assets.methods.work import PublicSizes, Work
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.events import PoissonGaussianEvent
from dpsynth_assets.privacy.noisy_probabilities import (
    NoisyProbabilities,
    noisy_probabilities_event,
)
from dpsynth_assets.privacy.release import Cost, Release

if TYPE_CHECKING:
    from dpsynth_assets.attacks.reconstruction import KeysWritten


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
        chance, settings = self.sampling_probability, self.config.model_dump(mode="json")
        refusal = slack_refusal(self.terms, self.config.logit_slack)
        refusal = refusal or input_refusal(chance, target_epsilon)
        if chance is None or refusal is not None:
            return refused(self, refusal or "", settings)
        noise = least_noise(self._event, chance, self.terms, target_epsilon)
        return self.plan_at_noise(noise)

    def work(self, plan: MethodPlan, sizes: PublicSizes) -> Work:
        """Counts prompts that every step reads anew, each with another sample of records."""
        config, labels = self.config, len(self.terms.labels)
        steps = labels * int(plan.parameters["steps_per_label"])
        prompt = sizes.prompt(config.examples_per_subset, config.max_example_tokens)
        prompt += config.max_document_tokens / 2
        rows = steps * config.subsets
        return Work(read=rows * prompt, steps=steps, written=rows)

    def plan_at_noise(self, noise_multiplier: float) -> MethodPlan:
        """Plans all steps of each label at this noise, whatever they cost.

        Raises:
            ValueError: If no number of records is declared.
        """
        mechanism, chance = self._mechanism(noise_multiplier), self._declared_chance()
        return planned(
            self,
            {CANDIDATE_CORPUS: mechanism},
            self.config.model_dump(mode="json")
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

    def _event(self, noise_multiplier: float) -> PoissonGaussianEvent:
        """Prices all steps, of each label in parallel."""
        return noisy_probabilities_event(
            sampling_probability=self._declared_chance(),
            noise_multiplier=noise_multiplier,
            steps=self._steps,
            relation=self.terms.relation,
            max_records_per_unit=self.terms.unit.max_records,
        )

    def _mechanism(self, noise_multiplier: float) -> NoisyProbabilities:
        return NoisyProbabilities(
            subsets=self.config.subsets,
            examples_per_subset=self.config.examples_per_subset,
            sampling_probability=self._declared_chance(),
            noise_multiplier=noise_multiplier,
            steps=self._steps,
            top_k=self.config.top_k,
            relation=self.terms.relation,
            max_records_per_unit=self.terms.unit.max_records,
            logit_slack=self.config.logit_slack,
        )

    def _declared_chance(self) -> float:
        chance = self.sampling_probability
        if chance is None:
            raise ValueError("Expected a declared number of records, got none.")
        return chance

    @property
    def _steps(self) -> int:
        return self.config.documents_per_label * self.config.max_document_tokens

    def pass_shape(self, language_model: Any) -> PassShape:
        """A pass holds the prompts of one step: a subset each."""
        config = self.config
        return PassShape(
            rows=config.subsets,
            columns=prompt_columns(
                language_model,
                self.terms.label_texts,
                config.examples_per_subset,
                config.max_example_tokens,
            ),
            new_tokens=config.max_document_tokens,
        )

    def check_public(self, public: PublicInputs) -> None:
        """Asks for room for prompts with their documents.

        **Privacy** Reads settings and the public model only.
        """
        check_few_shot(self.config, self.terms, public)

    def room(self, stage: Stage, public: PublicInputs) -> Room:
        """Counts the documents at full length: they are kept, released and published."""
        del stage, public
        config = self.config
        documents = len(self.terms.labels) * config.documents_per_label + config.extra_documents
        texts = bytes_of_texts(documents, config.max_document_tokens)
        return Room(release=texts, kept=texts, corpus=texts)

    def release(
        self,
        stage: Stage,
        private: PrivateInputs,
        public: PublicInputs,
        checkpoint: Checkpoint,
        progress: ProgressCallback,
    ) -> Release[StageRelease]:
        """Writes every label's demonstrations, then extra documents after them.

        Each label opens the planned mechanism afresh and draws its T steps, no more; the planned
        object itself draws none.

        **Privacy** T Poisson-sampled Gaussian steps for each label, labels in parallel: the
        planned event, all of it charged. Extra documents read demonstrations alone.

        **Source** Tang et al. 2024, Algorithm 1, with Poisson samples (see
        `noisy_probabilities_event`).
        """
        del checkpoint
        mechanism = self.mechanism_of(stage, NoisyProbabilities)
        mechanisms = [replace(mechanism) for _ in self.terms.labels]
        task = FewShotTask(config=self.config, terms=self.terms, public=public)
        texts = texts_by_label(private.records, self.terms.labels)
        written = write_demonstrations(task, texts, mechanisms, progress, private.passes)
        corpus = few_shot_corpus(task, list(written), progress)
        kept = RowFilter.of(
            self.config.rejection, self.terms, public, self.terms.form(follows_schema=False)
        )
        rows, judged = kept_rows(corpus.rows, kept)
        facts = {**corpus.facts, **judged, "rows": rows.height}
        cost = Cost(guarantee=self.guarantee, event=mechanism.event())
        made = SyntheticCorpus(rows=rows, facts=facts)
        return Release(value=released(made), cost=cost)

    def key_task(self, plan: MethodPlan, model: Any) -> KeyTask:
        """Fits the method to keys, at the noise of its plan on fewer steps."""
        noise = self.mechanism_of(plan.stage(CANDIDATE_CORPUS), NoisyProbabilities)
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

    capabilities = (DrawsTokens(pass_shape), Attacks(reconstruct=reconstruct))
