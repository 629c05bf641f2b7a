"""DP-SGD: true Poisson batches, per-example clipping, noise from operating-system entropy.

Shape letters: n private records, B records of one batch, T steps.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.privacy.cpu import one_thread_each
from dpsynth_assets.privacy.errors import (
    UnaccountedReleaseError,
    check_at_least,
    check_positive,
)
from dpsynth_assets.privacy.events import PoissonGaussianEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.noise import gaussian_like
from dpsynth_assets.privacy.per_example.arithmetic import GRADIENT_SLACK
from dpsynth_assets.privacy.poisson_sampling import SampledSum, StepMeter, poisson_sample

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.privacy.per_example import LossOfPart, PerExampleGradients

NOISE_THREADS = 4
"""Threads that draw noise while a device computes gradients."""


def dp_sgd_event(
    *,
    sampling_probability: float,
    noise_multiplier: float,
    steps: int,
    relation: NeighboringRelation,
    max_records_per_unit: int = 1,
) -> PoissonGaussianEvent:
    """Prices T noisy gradients, each of a fresh Poisson sample of the records.

    Args:
        sampling_probability: q in (0, 1] of every record in every step.
        noise_multiplier: σ / clip bound of one record, for every relation.
        steps: T >= 0, all of them, also those a run may not reach.
        relation: Declared neighbouring relation.
        max_records_per_unit: Records one unit may contribute; each is sampled on its own.

    Raises:
        ValueError: If an argument is outside its domain.

    **Privacy** Each gradient is a subsampled Gaussian; the sampling differs between neighbours
    by the unit's records alone, because every record tosses its own coin and sums are divided by
    a fixed number. Shuffled epochs have no such event: they must not be priced here.

    **Source** CTCL, section 4.1 and appendix A; its code trains on shuffled epochs but accounts
    for Poisson samples (errata B-002.1).
    """
    return PoissonGaussianEvent(
        sampling_probability=sampling_probability,
        noise_multiplier=noise_multiplier,
        steps=steps,
        max_records_per_unit=max_records_per_unit,
        replaced=NeighboringRelation(relation) is NeighboringRelation.REPLACE_ONE,
    )


@dataclass(frozen=True, kw_only=True)
class DpSgdMechanism:
    """One training run: T Poisson batches, and one noisy clipped gradient of each.

    Attributes:
        l2_bound: C > 0, bound on the L2 norm of one record's gradient over all parameters.
        noise_multiplier: σ / C, for every relation.
        sampling_probability: q in (0, 1].
        steps: T.
        expected_batch_size: What every sum is divided by: a public constant such as
            q · (public number of records), never the size of the batch.
        relation: Declared neighbouring relation.
        max_records_per_unit: Records one unit may contribute.
        most_in_company: M >= 0, most records of a batch of which several may share a pass. Records
            of larger batches pass alone; 0, the default: all of them do.
        gradient_slack: s >= 0, largest move of one record's clipped gradient, as a share of its
            bound, when the records of its pass change. None: that of float32 (`GRADIENT_SLACK`).

    **Privacy** The clipped sum moves by at most C for each record that enters or leaves
    (`PerExampleGradients`). Where several share a pass, each is clipped to `record_bound` =
    C / (1 + M s). Let a unit add j of its records to a batch of B others. If B + j <= M, the others
    move by at most s each, and if B <= M < B + j they pass alone from then on, which is another
    change of the records of their passes; in larger batches every record passes alone and none
    moves. So the sum moves by at most (j + M s) `record_bound` <= j C. It is the same where a
    record leaves or is replaced, and nothing is assumed of how many records there are. The cost is
    `event()`, charged for all T steps before the first batch is drawn; a run that stops early has
    paid for all of them. What optimizers make of the gradients is post-processing. Sums and noise
    meet in float64: unlike integer noise this is Gaussian up to rounding, see `gaussian_like`.

    **Source** CTCL, section 3.3 and appendix A (DP-Adam), with Poisson batches as its accounting
    assumes but its code does not draw (errata B-002.1), and without a seed (B-002.2).
    """

    l2_bound: float
    noise_multiplier: float
    sampling_probability: float
    steps: int
    expected_batch_size: float
    relation: NeighboringRelation
    max_records_per_unit: int = 1
    most_in_company: int = 0
    gradient_slack: float | None = None
    _meter: StepMeter = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuses settings without an event, and opens the meter."""
        self.event()
        check_positive("l2_bound", self.l2_bound)
        check_positive("expected_batch_size", self.expected_batch_size)
        check_at_least(0, most_in_company=self.most_in_company, gradient_slack=self.slack)
        object.__setattr__(self, "_meter", StepMeter(self.steps))

    def event(self) -> PoissonGaussianEvent:
        """Prices the whole run."""
        return dp_sgd_event(
            sampling_probability=self.sampling_probability,
            noise_multiplier=self.noise_multiplier,
            steps=self.steps,
            relation=self.relation,
            max_records_per_unit=self.max_records_per_unit,
        )

    @property
    def slack(self) -> float:
        """s: largest move of a record's clipped gradient by its pass, as a share of its bound."""
        return GRADIENT_SLACK if self.gradient_slack is None else self.gradient_slack

    @property
    def record_bound(self) -> float:
        """C / (1 + M s): the bound of one record's gradient; the rest is for shared passes."""
        return self.l2_bound / (1.0 + self.most_in_company * self.slack) * (1.0 - 2.0**-50)

    def may_share_passes(self, private_records: int) -> bool:
        """Says whether records of a batch of this many may be passed through the model together."""
        return private_records <= self.most_in_company

    @property
    def released_steps(self) -> int:
        """Steps whose gradient was released, those before `resume_at` included. Public."""
        return self._meter.released

    def resume_at(self, step: int) -> None:
        """Resumes after `step` released gradients of an interrupted run, under its charge.

        Args:
            step: Gradients whose effect the caller has back: from the run's last checkpoint.

        Raises:
            UnaccountedReleaseError: If this run drew a batch already, or `step` is not in [0, T].

        **Privacy** Steps that were drawn after the checkpoint are drawn again, with fresh batches
        and noise. That is covered by the charge only where nothing of the lost draws was kept or
        shown; see `Checkpoint` in `methods.inputs`.
        """
        self._meter.resume_at(step)

    def batches(self, private_records: int) -> Iterator[np.ndarray]:
        """Yields the run's remaining batches, (B,) int64 record indices each, B >= 0.

        Empty batches are yielded too and need their gradient: skipping one would reveal it.

        Args:
            private_records: n, the records there are.

        Raises:
            UnaccountedReleaseError: If all T batches were drawn before.
        """
        self._meter.check()
        return self._batches(private_records)

    def _batches(self, private_records: int) -> Iterator[np.ndarray]:
        while self._meter.left:
            batch = poisson_sample(private_records, self.sampling_probability)
            self._meter.draw(len(batch))
            yield batch

    def private_gradient_of_losses(
        self, gradients: "PerExampleGradients", private_parts: Iterable["LossOfPart"]
    ) -> list["torch.Tensor"]:
        """Releases the noisy mean gradient of the oldest batch that has none yet.

        The caller passes losses and gets noisy gradients. No unclipped sum can be passed, since
        none is; the clip bound and the number that sums are divided by are this mechanism's.

        Args:
            gradients: Clips the gradients of a model's trainable parameters.
            private_parts: Disjoint parts of the batch; may be lazy, and without parts where the
                batch is empty. Parts of several records only where `may_share_passes` says so.

        Returns:
            For each of `gradients.parameters` a tensor of its shape, type and device: the clipped
            sum plus N(0, (σ C)²), over `expected_batch_size`.

        Raises:
            UnaccountedReleaseError: If no batch waits for its gradient, there is not one row for
                each record of the batch, or records share a pass that may not.
            TypeError: If the model's gradients cannot be clipped record by record.
            ValueError: If there is not one loss for each record.
        """
        on_device = any(each.device.type != "cpu" for each in gradients.parameters)
        with one_thread_each(NOISE_THREADS) if on_device else nullcontext() as threads:
            ahead = [] if threads is None else self._noise_ahead(gradients.parameters, threads)
            parts = self._refusing_shared_passes(private_parts)
            sums, rows = gradients.private_clipped_sums(parts, self.record_bound)
            if gradients.threads == 1:
                return self._release(sums, rows, gradients.parameters, ahead)
        with one_thread_each(gradients.threads) as threads:
            self._meter.release(rows)
            return list(threads.map(self._with_noise, sums, gradients.parameters))

    def sampled_sum(self) -> SampledSum:
        """What workers are told of a step, each of which draws and clips records of its own.

        Raises:
            ValueError: Records may share passes, whose number would have to be that of the whole
                sample.
        """
        if self.most_in_company:
            raise ValueError(
                "Expected no most_in_company where workers share a batch, got one: it needs the "
                "size of the whole sample. Set exact_sums: true."
            )
        return SampledSum(
            sampling_probability=self.sampling_probability, l2_bound=self.record_bound
        )

    def private_gradient_of_workers(
        self,
        counted: "Callable[[SampledSum], np.ndarray]",
        parameters: Sequence["torch.Tensor"],
    ) -> list["torch.Tensor"]:
        """Draws one batch with workers, and releases its noisy mean gradient.

        Args:
            counted: Has every worker draw and clip its records (`SampledSum`), each record with one
                of them and once, and adds up what they return. Private.
            parameters: (*shape) tensors that give shape, type and device of the results.

        Raises:
            UnaccountedReleaseError: All T batches were drawn before.
            ValueError: As `sampled_sum`, or the sums are not of these parameters.

        **Privacy** The batch is counted before workers draw it. Noise is drawn here alone, once a
        step, for the whole sum.
        """
        sampled = self.sampled_sum()
        self._meter.begin()
        sums, rows = sampled.sums_of(counted(sampled), parameters)
        self._meter.drawn(rows)
        return self._release(sums, rows, parameters)

    def _refusing_shared_passes(
        self, private_parts: Iterable["LossOfPart"]
    ) -> Iterator["LossOfPart"]:
        """Yields parts, none of several records where the batch is larger than M."""
        for part in private_parts:
            if part.examples > 1 and not self.may_share_passes(self._meter.private_size or 0):
                raise UnaccountedReleaseError(
                    "Expected each record of this batch in a pass of its own, got parts of several "
                    "records. Cut it as may_share_passes says, or plan with most_in_company."
                )
            yield part

    def _noise_ahead(
        self, parameters: Sequence["torch.Tensor"], threads: ThreadPoolExecutor
    ) -> list["Future[torch.Tensor] | None"]:
        """Starts drawing the noise of parameters on a device: its processor idles meanwhile."""
        std = self.noise_multiplier * self.l2_bound
        return [
            threads.submit(gaussian_like, _float64(each.shape), std)
            if each.device.type != "cpu"
            else None
            for each in parameters
        ]

    def _release(
        self,
        sums: list["torch.Tensor"],
        rows: int,
        parameters: Sequence["torch.Tensor"],
        ahead: Sequence["Future[torch.Tensor] | None"] = (),
    ) -> list["torch.Tensor"]:
        """Adds noise to clipped sums of `rows` records; empties the list to free their memory.

        Args:
            sums: Of each parameter.
            rows: How many records they are of.
            parameters: As in `private_gradient_of_workers`.
            ahead: Noise of each parameter that was drawn ahead, or None.
        """
        self._meter.release(rows)
        released = []
        for parameter, drawn in zip_longest(parameters, ahead):
            noise = None if drawn is None else drawn.result()
            released.append(self._with_noise(sums.pop(0), parameter, noise))
        return released

    def _with_noise(
        self,
        private_sum: "torch.Tensor",
        parameter: "torch.Tensor",
        noise: "torch.Tensor | None" = None,
    ) -> "torch.Tensor":
        """One parameter's noisy mean: [ctcl S3.3]. Noise is drawn here unless it was before."""
        if noise is None:
            noise = gaussian_like(private_sum, self.noise_multiplier * self.l2_bound)
        private_sum.add_(noise.to(private_sum.device)).div_(self.expected_batch_size)
        return private_sum.to(parameter.dtype)


def _float64(shape: Sequence[int]) -> "torch.Tensor":
    """A tensor of this shape, without values, that gives noise its type."""
    import torch

    return torch.empty(1, dtype=torch.float64).expand(tuple(shape))
