"""DP-SGD, Gaussian steps over Poisson samples, with the histogram of CTCL: price and noise."""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from dpsynth_assets.cli.pricing.commands import Answer, Settings, command
from dpsynth_assets.cli.pricing.counts import Histogram
from dpsynth_assets.cli.pricing.options import (
    Accountant,
    Delta,
    HistogramNoiseStd,
    Records,
    TargetEpsilon,
    at_least_one,
    positive,
)
from dpsynth_assets.cli.pricing.printing import say_epsilon, up, up_significant
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.calibration import dp_sgd_noise_multiplier
from dpsynth_assets.privacy.directed_rounding import rounded_up
from dpsynth_assets.privacy.dp_sgd import dp_sgd_event
from dpsynth_assets.privacy.errors import check_delta
from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.units import NeighboringRelation


@dataclass(frozen=True, kw_only=True)
class Training(Settings):
    """DP-SGD, and a Gaussian histogram over the same records where there is one."""

    records: Records
    expected_batch_size: Annotated[
        float, typer.Option(help="Expected records of one sample, B; each is drawn with B/N.")
    ]
    steps: Annotated[int, typer.Option(min=1, max=10**7, help="Optimizer steps, T.")]
    noise_multiplier: Annotated[float, typer.Option(help="Noise std / clipping bound, σ.")]
    histogram_noise_std: HistogramNoiseStd = None
    max_batch_size: Annotated[
        int | None,
        typer.Option(help="Cut larger samples to this many records (truncated Poisson)."),
    ] = None

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

    def event(self) -> Event:
        """Prices all steps."""
        return dp_sgd_event(
            sampling_probability=self.sampling_probability,
            noise_multiplier=self.noise_multiplier,
            steps=self.steps,
            relation=self.relation,
            max_records_per_unit=self.max_records_per_unit,
            max_batch_size=self.max_batch_size,
            records=self.records,
        )

    @property
    def other_events(self) -> list[Event]:
        """The histogram, where there is one."""
        return histogram_of(self, self.histogram_noise_std)

    def within(self, epsilon: float, delta: float, accountant: str) -> "Training":
        """Finds the smallest noise multiplier."""
        found = dp_sgd_noise_multiplier(
            sampling_probability=self.sampling_probability,
            steps=self.steps,
            target_epsilon=epsilon,
            delta=delta,
            accountant=accountant,
            other_events=self.other_events,
            max_records_per_unit=self.max_records_per_unit,
            replaced=self.relation is NeighboringRelation.REPLACE_ONE,
        )
        return replace(self, noise_multiplier=found)

    def cost(self, delta: float, accountant: str) -> dict[str, Any]:
        """Lists the settings with ε of training, of the histogram, and of both together."""
        training, others = self.event(), self.other_events
        alone = epsilon_of([training], delta, accountant)
        named = "records expected_batch_size sampling_probability max_batch_size steps"
        return {
            **self.facts(f"{named} histogram_noise_std"),
            "noise_multiplier": self.noise_multiplier,
            "delta": delta,
            "accountant": accountant,
            "epsilon": epsilon_of([*others, training], delta, accountant) if others else alone,
            "epsilon_training": alone,
            "epsilon_histogram": epsilon_of(others, delta, accountant),
        }


def histogram_of(settings: Settings, noise_std: float | None) -> list[Event]:
    """Lists the event of a Gaussian histogram over the same records; none without noise."""
    if noise_std is None:
        return []
    histogram = Histogram(
        noise="gaussian",
        scale=noise_std,
        relation=settings.relation,
        max_records_per_unit=settings.max_records_per_unit,
    )
    return [histogram.event()]


@command(
    Training,
    "records expected_batch_size steps noise_multiplier delta histogram_noise_std max_batch_size "
    "accountant relation max_records_per_unit",
)
def price(settings: Training, delta: Delta, accountant: Accountant = "tight") -> Answer:
    """Prices training with Poisson samples; batches of a shuffled dataset are not covered."""
    check_delta(delta)
    result = {"mechanism": "dp-sgd", **settings.cost(delta, accountant)}
    return result, _say(result)


@command(
    Training,
    "records expected_batch_size steps epsilon delta histogram_noise_std accountant relation "
    "max_records_per_unit",
)
def calibrate(
    settings: Training, epsilon: TargetEpsilon, delta: Delta, accountant: Accountant = "tight"
) -> Answer:
    """Finds the smallest noise multiplier (noise std / clipping bound) within ε at δ."""
    check_delta(delta)
    positive(epsilon=epsilon)
    found = settings.within(epsilon, delta, accountant)
    result = {
        "mechanism": "dp-sgd",
        "target_epsilon": epsilon,
        **found.cost(delta, accountant),
    }
    multiplier = up_significant(found.noise_multiplier, 5)
    return result, [f"Noise multiplier {multiplier} of the clipping bound.", *_say(result)]


def _say(result: dict[str, Any]) -> list[str]:
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
