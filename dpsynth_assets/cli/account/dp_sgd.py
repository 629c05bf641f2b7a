"""Prices of DP-SGD: Gaussian steps over Poisson samples, with the histogram of CTCL."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from dpsynth_assets.cli.account.options import (
    Accountant,
    AsJson,
    Delta,
    HistogramNoiseStd,
    Records,
    RecordsPerUnit,
    Relation,
    at_least_one,
    positive,
)
from dpsynth_assets.cli.account.printing import guarantee, refusals, say_epsilon, show, up
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.dp_sgd import dp_sgd_event
from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.histogram import histogram_event
from dpsynth_assets.privacy.renyi import check_delta
from dpsynth_assets.privacy.rounded import rounded_up
from dpsynth_assets.privacy.units import NeighboringRelation

SampleSize = Annotated[
    float, typer.Option(help="Expected records of one sample, B; each is drawn with B/N.")
]
Steps = Annotated[int, typer.Option(min=1, max=10**9, help="Optimizer steps, T.")]
MaxBatchSize = Annotated[
    int | None, typer.Option(help="Cut larger samples to this many records (truncated Poisson).")
]


@dataclass(frozen=True, kw_only=True)
class Training:
    """Public settings of DP-SGD, noise aside.

    Attributes:
        records: N, declared public.
        expected_batch_size: B.
        steps: T.
        relation: Declared neighbouring relation.
        max_records_per_unit: Records one unit may contribute.
        max_batch_size: Bound on a sample; None for pure Poisson sampling.
        histogram_noise_std: Of a Gaussian histogram over the same records; None for none.
    """

    records: int
    expected_batch_size: float
    steps: int
    relation: NeighboringRelation
    max_records_per_unit: int
    max_batch_size: int | None = None
    histogram_noise_std: float | None = None

    def __post_init__(self) -> None:
        """Refuses a batch that cannot be drawn."""
        at_least_one(records=self.records, steps=self.steps)
        positive(expected_batch_size=self.expected_batch_size)
        if self.expected_batch_size > self.records:
            raise ValueError(
                f"Expected expected_batch_size <= records, got {self.expected_batch_size:g} of "
                f"{self.records}."
            )

    @property
    def sampling_probability(self) -> float:
        """Chance q = B/N of each record in each step."""
        return self.expected_batch_size / self.records

    def training_event(self, noise_multiplier: float) -> Event:
        """All steps."""
        return dp_sgd_event(
            sampling_probability=self.sampling_probability,
            noise_multiplier=noise_multiplier,
            steps=self.steps,
            relation=self.relation,
            max_records_per_unit=self.max_records_per_unit,
            max_batch_size=self.max_batch_size,
            records=self.records,
        )

    @property
    def other_events(self) -> list[Event]:
        """The histogram, where there is one."""
        if self.histogram_noise_std is None:
            return []
        histogram = histogram_event(
            noise="gaussian",
            scale=self.histogram_noise_std,
            relation=self.relation,
            max_records_per_unit=self.max_records_per_unit,
        )
        return [histogram]

    def facts(self) -> dict[str, Any]:
        """The settings as result keys."""
        return {
            "records": self.records,
            "expected_batch_size": self.expected_batch_size,
            "sampling_probability": self.sampling_probability,
            "max_batch_size": self.max_batch_size,
            "steps": self.steps,
            "histogram_noise_std": self.histogram_noise_std,
            **guarantee(self.relation, self.max_records_per_unit),
        }


def dp_sgd(  # noqa: PLR0913 - one argument an option
    records: Records,
    expected_batch_size: SampleSize,
    steps: Steps,
    noise_multiplier: Annotated[float, typer.Option(help="Noise std / clipping bound, σ.")],
    delta: Delta,
    histogram_noise_std: HistogramNoiseStd = None,
    max_batch_size: MaxBatchSize = None,
    accountant: Accountant = "tight",
    relation: Relation = NeighboringRelation.ADD_REMOVE,
    max_records_per_unit: RecordsPerUnit = 1,
    as_json: AsJson = False,
) -> None:
    """Prices training with Poisson samples; batches of a shuffled dataset are not covered."""
    with refusals():
        check_delta(delta)
        settings = Training(
            records=records,
            expected_batch_size=expected_batch_size,
            steps=steps,
            relation=relation,
            max_records_per_unit=max_records_per_unit,
            max_batch_size=max_batch_size,
            histogram_noise_std=histogram_noise_std,
        )
        result = {
            "mechanism": "dp-sgd",
            **settings.facts(),
            **price_training(settings, noise_multiplier, delta, accountant),
        }
    show(result, say_training(result), as_json)


def price_training(
    settings: Training, noise_multiplier: float, delta: float, accountant: str
) -> dict[str, Any]:
    """Computes ε of training, of the histogram, and of both together."""
    training = settings.training_event(noise_multiplier)
    others = settings.other_events
    alone = epsilon_of([training], delta, accountant)
    return {
        "noise_multiplier": noise_multiplier,
        "delta": delta,
        "accountant": accountant,
        "epsilon": epsilon_of([*others, training], delta, accountant) if others else alone,
        "epsilon_training": alone,
        "epsilon_histogram": epsilon_of(others, delta, accountant),
    }


def say_training(result: dict[str, Any]) -> list[str]:
    """Says the price, and its parts where a histogram is released too."""
    sentences = [say_epsilon(result)]
    if result["histogram_noise_std"] is not None:
        sentences.append(
            f"Training alone: ε = {up(result['epsilon_training'])}; the histogram alone: "
            f"ε = {up(result['epsilon_histogram'])}."
        )
    sentences.append(
        f"Needs Poisson samples: every record drawn with probability "
        f"{rounded_up(result['sampling_probability'], '.6g')}, afresh at each of "
        f"{result['steps']} steps; the "
        f"number of records, {result['records']}, is declared public."
    )
    return sentences
