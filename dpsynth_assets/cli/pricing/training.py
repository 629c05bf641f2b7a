"""DP-SGD, Gaussian steps over Poisson samples, beside which a histogram may be released (CTCL)."""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from dpsynth_assets.cli.pricing.commands import (
    Accountant,
    Answer,
    Count,
    Delta,
    Positive,
    Settings,
    TargetEpsilon,
    command,
    say_epsilon,
    up,
    up_significant,
)
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.calibration import dp_sgd_noise_multiplier
from dpsynth_assets.privacy.directed_rounding import rounded_up
from dpsynth_assets.privacy.dp_sgd import dp_sgd_event
from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.histogram import NoisyHistogram


@dataclass(frozen=True, kw_only=True)
class Training(Settings):
    """DP-SGD, and a Gaussian histogram over the same records where there is one.

    Attributes:
        records: Number of private records, declared public.
        histogram_noise_std: Std of Gaussian noise on a histogram released too, in records.
        expected_batch_size: Expected records of one sample, B; each is drawn with B/N.
        steps: Optimizer steps, T.
        noise_multiplier: Noise std / clipping bound, σ.
    """

    mechanism = "dp-sgd"

    records: Count
    histogram_noise_std: float | None = None
    expected_batch_size: Positive
    steps: Annotated[int, typer.Option(min=1, max=10**7)]
    noise_multiplier: float

    @property
    def histogram(self) -> list[Event]:
        """The event of the histogram, where there is one."""
        if self.histogram_noise_std is None:
            return []
        histogram = NoisyHistogram(
            noise="gaussian",
            scale=self.histogram_noise_std,
            relation=self.relation,
            max_records_per_unit=self.max_records_per_unit,
        )
        return [histogram.event()]

    @property
    def sampling_probability(self) -> float:
        """Chance q = B/N of each record in each step."""
        return self.expected_batch_size / self.records

    def event(self) -> Event:
        """Prices all steps."""
        unpriced = ("expected_batch_size", "histogram_noise_std", "records")
        own = {name: value for name, value in vars(self).items() if name not in unpriced}
        return dp_sgd_event(sampling_probability=self.sampling_probability, **own)

    def within(self, epsilon: float, delta: float, accountant: str) -> "Training":
        """Finds the smallest noise multiplier."""
        found = dp_sgd_noise_multiplier(
            sampling_probability=self.sampling_probability,
            steps=self.steps,
            target_epsilon=epsilon,
            delta=delta,
            accountant=accountant,
            other_events=self.histogram,
            max_records_per_unit=self.max_records_per_unit,
            replaced=self.relation is NeighboringRelation.REPLACE_ONE,
        )
        return replace(self, noise_multiplier=found)

    def cost(self, delta: float, accountant: str) -> dict[str, Any]:
        """Lists the settings with ε of training, of the histogram, and of both together."""
        training, others = self.event(), self.histogram
        return self.priced(
            [*others, training],
            delta,
            accountant,
            sampling_probability=self.sampling_probability,
            epsilon_training=epsilon_of([training], delta, accountant),
            epsilon_histogram=epsilon_of(others, delta, accountant),
        )


@command()
def price(settings: Training, delta: Delta, accountant: Accountant = "tight") -> Answer:
    """Prices training with Poisson samples; batches of a shuffled dataset are not covered."""
    result = settings.cost(delta, accountant)
    return result, _say(result)


@command(without="noise_multiplier")
def calibrate(
    settings: Training, epsilon: TargetEpsilon, delta: Delta, accountant: Accountant = "tight"
) -> Answer:
    """Finds the smallest noise multiplier (noise std / clipping bound) within ε at δ."""
    found = settings.within(epsilon, delta, accountant)
    result = {"target_epsilon": epsilon, **found.cost(delta, accountant)}
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
        f"{rounded_up(result['sampling_probability'], '.6g')}, again at each of "
        f"{result['steps']} steps; the number of records, {result['records']}, is declared public."
    )
    return sentences
