"""Methods that train a model by DP-SGD in one paid stage, and one run of such a training.

Where records are in shards, each step of DP-Adam is one count over the shards. The driver gives the
trained weights of the step; every worker tosses the coins of its shard's records, clips and adds up
those that were drawn, and returns whole numbers (`privacy.poisson_sampling`); the driver adds them
up, adds noise once, and steps the optimizer.

- *The sample* of a shard is drawn by the worker that holds it, again in every step and after a
  restart. It is stored nowhere: the union over shards is the Poisson sample of the whole.
- *Weights* of a step travel as a file of the sensitive store, for as long as the step lasts. They
  follow from noisy gradients that were paid for, and are not shown before the stage is committed.
  The public model is opened once a process and kept (`workers.kept`).
- *Sums* have no noise yet: they are private, and travel as files of that store, too.
- Only sums that are exact can be split (`exact_sums: true`): another grouping of records would show
  in the last bits of float32 sums, and the number of records that may share a pass is one of the
  whole sample. No batch is cut to a size, which would need the whole sample, too.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from dpsynth_assets.methods.base import Method, mechanism_of, planned
from dpsynth_assets.methods.fine_tuning.config import (
    WARMUP_SHARE,
    WEIGHT_DECAY,
    PrivateTrainingConfig,
)
from dpsynth_assets.methods.inputs import PrivateInputs, Shards
from dpsynth_assets.methods.plan_cache import sampled_noise
from dpsynth_assets.methods.stages import MethodPlan, StageRun
from dpsynth_assets.methods.work import PublicSizes, Work
from dpsynth_assets.models.fine_tuning.sources import (
    ExampleLoss,
    FineTuningSettings,
    PartGradients,
    SplitExamples,
    mean_loss,
    refuse_untrainable,
)
from dpsynth_assets.models.fine_tuning.training import fine_tune_privately
from dpsynth_assets.models.row_rules import SCHEMA
from dpsynth_assets.privacy.cpu import LARGE
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.guarantees import GRADIENTS, Cost, Release
from dpsynth_assets.privacy.per_example import GRADIENT_SLACK, Products, most_in_company
from dpsynth_assets.privacy.poisson_sampling import SampledSum
from dpsynth_assets.workers import forget, kept

TrainingConfigT = TypeVar("TrainingConfigT", bound=PrivateTrainingConfig)

_ALONE = 3.0
"""Passes of one record take so much longer than shared ones (docs/benchmarks.md)."""

_IN_INTEGERS, _AROUND_INTEGERS = 1.75, 1.6
"""Where frozen weights multiply as whole numbers: tokens that the decoder reads in the time of one
pass of a token, and multiply-adds of gradients and layers in floats, in multiples of the model's
parameters a token (measured: cohort `savings` on both kernel paths, docs/benchmarks.md)."""

_SMALL = 2.7
"""Products of a small model's passes are too short to be as fast as long ones (measured: ctcl)."""

REPORTED_EXAMPLES = 32
"""Public examples whose mean loss a run reports: the same ones each time, so that few show whether
it falls. All of them would slow the demo's trainings by a tenth."""


@dataclass(frozen=True, kw_only=True)
class TrainingStart:
    """A model to be trained, how its examples are scored, and which public ones there are.

    Attributes:
        model: Has public weights; must be used by nothing else, since training makes it private.
        loss: Losses of single examples.
        name: Identity of the public weights.
        public_examples: Public examples like the private ones, for the loss that is reported and
            for the choice of a learning rate; may be empty.
    """

    model: Any
    loss: ExampleLoss
    name: str
    public_examples: Sequence[Any] = ()


class TrainingMethod(Method[TrainingConfigT]):
    """A method whose one paid stage trains a model by DP-SGD."""

    free_settings = frozenset(
        {"rows", "top_p", "temperature", "label_shares", "rows_per_forward"}
        | {"micro_batch_records", "checkpoint_minutes", SCHEMA}
    )

    @property
    def sampling_probability(self) -> float | None:
        """q: the given one, or B / declared records, at most 1; None if nothing public gives it.

        **Privacy** Under add/remove the number of records is private: a q computed from it would be
        another mechanism for each neighbour (errata B-002.4). Any public q is sound for any
        records: a step then draws q n of them, a number that is never shown.
        """
        if self.config.sampling_probability is not None:
            return self.config.sampling_probability
        if self.terms.public_records is None:
            return None
        return min(1.0, self.config.expected_batch_size / self.terms.public_records)

    @property
    def batch_denominator(self) -> float:
        """Divisor of noisy sums: B, or all declared records where B would be more."""
        if self.config.sampling_probability is None and self.terms.public_records is not None:
            return float(min(self.config.expected_batch_size, self.terms.public_records))
        return float(self.config.expected_batch_size)

    @property
    def records_in_company(self) -> int:
        """M: the records of a batch up to which several share a pass; 0 where each is alone."""
        if self.config.exact_sums:
            return 0
        chance, known = self.sampling_probability, self.terms.public_records
        drawn = None if chance is None or known is None else chance * known
        most = self.config.expected_batch_size if drawn is None else drawn
        return most_in_company(most, self._slack)

    @property
    def slack_of_shared_passes(self) -> float | None:
        """Share of C that is charged for records sharing a pass; None where each is alone."""
        return None if self.records_in_company == 0 else self._slack

    @property
    def _slack(self) -> float:
        declared = self.config.gradient_slack
        return GRADIENT_SLACK if declared is None else declared

    @property
    def takes_slack_of_float32(self) -> bool:
        """Whether several records share a pass and it is not declared what that may change."""
        return self.config.gradient_slack is None and self.records_in_company > 0

    def training(self, target_epsilon: float) -> DpSgdMechanism:
        """Plans T steps with the least noise that fits `target_epsilon` alone at δ.

        Calibration takes seconds and is remembered in `DPSYNTH_HOME`; regardless of that value, the
        event states the noise that will be drawn, and the ledger prices the event itself.

        Raises:
            ValueError: A public fact is missing, or settings that need each other disagree.

        **Source** CTCL, section 4.1.3 and appendices D and E, with Poisson batches (errata
        B-002.1).
        """
        chance = self.sampling_probability
        if chance is None:
            raise ValueError(
                "Expected a declared number of records, from which the probability of drawing a "
                "record is computed, got none. Declare public_facts.records if the number is "
                "public, or give sampling_probability, a constant that does not come from the "
                "records."
            )
        if self.config.trains_in_integers and not self.config.exact_sums:
            raise ValueError(
                "Expected exact_sums: true with frozen_products: int8, got false: with rounding to "
                "int8, one record could change the gradients of the others in its pass. Set "
                "exact_sums: true, or frozen_products: float32."
            )
        noise_multiplier = sampled_noise(
            self.terms,
            sampling_probability=chance,
            steps=self.config.steps,
            target_epsilon=target_epsilon,
        )
        return DpSgdMechanism(
            l2_bound=self.config.clip_bound,
            noise_multiplier=noise_multiplier,
            sampling_probability=chance,
            steps=self.config.steps,
            expected_batch_size=self.batch_denominator,
            relation=self.terms.relation,
            max_records_per_unit=self.terms.unit.max_records,
            most_in_company=self.records_in_company,
            gradient_slack=self.config.gradient_slack,
        )

    def plan(self, target_epsilon: float) -> MethodPlan:
        """Finds the least noise at which all steps cost at most `target_epsilon`."""
        training = self.training(target_epsilon)
        (stage,) = self.stages()
        found = {
            "sampling_probability": training.sampling_probability,
            "noise_multiplier": training.noise_multiplier,
            "noise": (
                f"Gaussian of {training.noise_multiplier:.4g} x the clipping bound on each of "
                f"{training.steps} summed gradients, each record drawn with probability "
                f"{training.sampling_probability:.3g}"
            ),
        }
        return planned(
            self,
            {stage.name: training},
            {**self.settings(), **found},
            rests_on={stage.name: {GRADIENTS: passes_of(training)}},
        )

    def settings(self) -> dict[str, Any]:
        """Writes the settings as the ledger keeps them."""
        return self.config.stated()

    def training_work(self, parameters: float, text_tokens: float, sizes: PublicSizes) -> Work:
        """Counts the steps' passes: forward, and backward to the inputs and to what is trained."""
        config = self.config
        records = float(config.expected_batch_size)
        if config.sampling_probability is not None:
            records = min(records, config.sampling_probability * sizes.records)
        tokens = config.steps * min(records, sizes.records) * text_tokens
        passes = 2 if config.freezes_weights else 3
        alone = _ALONE if config.exact_sums else 1.0
        if config.trains_in_integers:
            floats = _AROUND_INTEGERS * tokens * parameters / 1e9
            return Work(read=passes * _IN_INTEGERS * tokens, trained=floats)
        small = _SMALL if parameters < LARGE else 1.0
        return Work(trained=passes * alone * small * tokens * parameters / 1e9)

    def check_trainable(self, start: TrainingStart, examples: Sequence[Any]) -> None:
        """Takes the model through half a step on made-up examples.

        Raises:
            TypeError: If a parameter cannot be clipped by example, or a layer mixes examples.
        """
        refuse_untrainable(
            start.model,
            examples,
            start.loss,
            self.config.clip_bound,
            shared_passes=self.takes_slack_of_float32,
            slack=self.slack_of_shared_passes,
        )

    def train(
        self,
        run: StageRun,
        start: TrainingStart,
        private_examples: Sequence[Any] | SplitExamples,
    ) -> Release[dict[str, Any]]:
        """Trains `start.model` in place under the stage's charge; resumes a killed run.

        Args:
            run: Its stage has the planned training. Its progress is told steps, ε so far of what
                is planned, and the loss on public text, all after steps that follow from T alone.
            start: What is trained.
            private_examples: n examples as `start.loss` takes them; or those that are in shards.

        Returns:
            Public facts of the run.

        Raises:
            TypeError: If the stage has no planned training.

        **Privacy** The planned event and no more: what is reported was computed on public text.
        """
        mechanism = replace(mechanism_of(run.stage, DpSgdMechanism))  # It counts its steps.
        settings = training_settings(self.config)
        facts = fine_tune_privately(
            start.model,
            private_examples,
            start.loss,
            mechanism,
            settings,
            checkpoint=run.checkpoint,
            public_evaluation=_public_loss(start, settings.micro_batch),
            progress=run.progress,
        )
        told = {
            "steps": facts.steps,
            "trained_parameters": facts.parameters,
            "noise_multiplier": mechanism.noise_multiplier,
            "sampling_probability": mechanism.sampling_probability,
            "expected_batch_size": mechanism.expected_batch_size,
            "clip_bound": mechanism.l2_bound,
            "learning_rate": settings.learning_rate,
            "start": start.name,
            "public_losses": [[step, round(loss, 4)] for step, loss in facts.public_losses],
        }
        return Release(value=told, cost=Cost(guarantee=self.guarantee, event=mechanism.event()))


def passes_of(mechanism: DpSgdMechanism) -> Mapping[str, Any]:
    """What the bound on one record's gradient rests on, for the label."""
    if mechanism.most_in_company == 0:
        return {"passes": "alone"}
    return {
        "passes": "shared",
        "gradient_slack": mechanism.slack,
        "most_in_company": mechanism.most_in_company,
    }


def training_settings(config: PrivateTrainingConfig) -> FineTuningSettings:
    """What the optimizer is told."""
    return FineTuningSettings(
        learning_rate=config.learning_rate,
        warmup_steps=round(WARMUP_SHARE * config.steps),
        weight_decay=WEIGHT_DECAY,
        micro_batch=config.micro_batch_records,
        products=Products.FLOAT64 if config.exact_sums else Products.NATIVE,
        checkpoint_seconds=60.0 * config.checkpoint_minutes,
    )


def _public_loss(start: TrainingStart, size: int) -> Callable[[Any], float] | None:
    """Mean loss of a model on some public examples; None without any."""
    examples = start.public_examples
    if not len(examples):
        return None
    chosen = examples[:: max(1, len(examples) // REPORTED_EXAMPLES)][:REPORTED_EXAMPLES]
    return lambda model: mean_loss(model, chosen, start.loss, size)


_START, _GRADIENTS = "start of a training", "gradients of a training"


class TrainingInputs(Protocol):
    """What a training starts from and what it makes of a record, in any process: public values."""

    def open(self) -> TrainingStart:
        """Opens the public weights."""

    def examples(self, start: TrainingStart, private: PrivateInputs) -> Sequence[Any]:
        """Turns records into what `start.loss` takes, each by itself; some may be left out."""


@dataclass(frozen=True, kw_only=True)
class StepOfPart:
    """One step's clipped sum over a sample of some records, for `Shards.summed`.

    Attributes:
        run: Name of the training's run, for which a process keeps the model open.
        inputs: What the training starts from.
        settings: Arithmetic and threads.
        sampled: What is drawn, and the clip bound.
    """

    run: str
    inputs: TrainingInputs
    settings: FineTuningSettings
    sampled: SampledSum

    def __call__(self, private: PrivateInputs) -> np.ndarray:
        """Draws, clips and adds up; see `SampledSum.counted`. Private."""
        start = kept(_START, self.run, self.inputs.open)
        gradients = kept(
            _GRADIENTS, self.run, lambda: PartGradients(start.model, start.loss, self.settings)
        )
        gradients.take(private.state)
        drawn = self.sampled.drawn(private.records.height)
        examples = self.inputs.examples(start, private.rows(drawn)) if len(drawn) else ()
        return gradients.counted(examples, self.sampled)


@contextmanager
def training_examples(
    private: PrivateInputs, inputs: TrainingInputs, start: TrainingStart
) -> Iterator[Sequence[Any] | SplitExamples]:
    """The private examples of a training, wherever the records lie, until the block ends.

    Args:
        private: All records, or their shards.
        inputs: What the training starts from.
        start: What `inputs` opened, which is trained in place. A worker that is this very process
            takes it instead of opening another.
    """
    if private.parts is None:
        yield inputs.examples(start, private)
        return
    run = secrets.token_hex(8)
    kept(_START, run, lambda: start)
    try:
        yield _split(private.parts, inputs, run, gpus=_gpus(start.model))
    finally:
        forget()


def _split(parts: Shards, inputs: TrainingInputs, run: str, *, gpus: float) -> SplitExamples:
    def summed(
        settings: FineTuningSettings, sampled: SampledSum, weights: Sequence[np.ndarray]
    ) -> np.ndarray:
        step = StepOfPart(run=run, inputs=inputs, settings=settings, sampled=sampled)
        return parts.summed(step, weights, gpus=gpus)

    return summed


def _gpus(model: Any) -> float:
    """A worker needs a GPU where the driver's model is on one: both have to round alike."""
    return 0.0 if next(model.parameters()).device.type == "cpu" else 1.0
