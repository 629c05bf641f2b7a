"""Plans EPSVec from declared facts: noise of a histogram and of a joint mean; work of each step."""

import math
from dataclasses import dataclass
from typing import Any

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.epsvec.config import (
    CANDIDATES,
    NEGATIVES,
    SHOTS,
    VECTORS,
    EpsVecConfig,
)
from dpsynth_assets.methods.epsvec.states import BLOCK_SHARE, BLOCK_START
from dpsynth_assets.methods.plan_cache import remembered_call, sampled_noise, sampled_steps
from dpsynth_assets.methods.rejection_sampling import accepted_work
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS, MethodPlan
from dpsynth_assets.methods.work import PublicSizes, Work
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.calibration import (
    MIXED_TOLERANCE,
    dp_sgd_noise_multiplier,
    integer_noise_std,
    least_noise,
)
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import Event, GaussianEvent, PoissonGaussianEvent
from dpsynth_assets.privacy.gaussian_dp import gaussian_mu
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.histogram import NoisyHistogram, l2_sensitivity
from dpsynth_assets.privacy.renyi import zcdp_epsilon, zcdp_rho
from dpsynth_assets.privacy.vector_mean import VectorMean, stacked_l2_sensitivity

_UP = 1.0 + 2.0**-40
"""Covers the roundings between a multiplier and the noise it becomes."""


@dataclass(frozen=True, kw_only=True)
class VectorNoise:
    """Noise of the dataset vectors, and its price.

    Attributes:
        noise_multiplier: σ over what one unit moves the stacked mean; under sampling over what one
            record moves it, as the event of a sampled release counts units itself.
        sampling_probability: q in (0, 1] with which each record is drawn.
        relation: Declared neighbouring relation.
        max_records_per_unit: Records one unit may contribute.

    **Privacy** A record's difference stands in the blocks of its own label, layer by layer, each
    clipped to the (public) bound that the block is measured in. So the stack over labels and
    layers moves by √L for a record that enters or leaves, regardless of its label: labels are
    disjoint and share one price under every relation. A replaced record that also changes its label
    moves two labels by √L each, √(2L) together, within the 2√L that replacing within a label is
    charged (errata B-003.5). The divisor is public and never a count. With q < 1 every record
    tosses its own coin, so that the sampled release is one step of a Poisson-sampled Gaussian;
    the paper's subset of fixed size amplifies (ε, δ) under replace-one only (Theorem 4.2).

    **Source** EPSVec, Theorems 4.1 and 4.2; docs/proofs.md for the joint release.
    """

    noise_multiplier: float
    sampling_probability: float
    relation: NeighboringRelation
    max_records_per_unit: int

    def event(self) -> Event:
        """Prices the release."""
        if self.sampling_probability == 1:
            return GaussianEvent(noise_multiplier=self.noise_multiplier)
        return PoissonGaussianEvent(
            sampling_probability=self.sampling_probability,
            noise_multiplier=self.noise_multiplier,
            steps=1,
            max_records_per_unit=self.max_records_per_unit,
            replaced=self.relation is NeighboringRelation.REPLACE_ONE,
        )

    def mean(self, *, layers: int, dimensions: int, records: int) -> VectorMean:
        """Opens the mechanism: blocks of bound 1, with at least the noise that is charged.

        Args:
            layers: L.
            dimensions: Entries of one block, Y d.
            records: Public number that sums are divided by.

        Raises:
            UnaccountedReleaseError: If the mechanism would add less noise than is charged.
        """
        mean = VectorMean(
            l2_bounds=(1.0,) * layers,
            dimensions=dimensions,
            noise_std=self.noise_std(layers=layers, records=records),
            records=records,
            relation=self.relation,
            max_records_per_unit=self.max_records_per_unit,
        )
        if mean.event().noise_multiplier < self._of_a_unit:
            raise UnaccountedReleaseError(
                "Expected at least the noise that was charged, got less. Plan again."
            )
        return mean

    def noise_std(self, *, layers: int, records: int) -> float:
        """Standard deviation of the noise on each entry of the mean, in clip bounds."""
        moved = stacked_l2_sensitivity(
            l2_bounds=(1.0,) * layers,
            records=records,
            relation=self.relation,
            max_records_per_unit=self.max_records_per_unit,
        )
        return self._of_a_unit * moved * _UP

    @property
    def _of_a_unit(self) -> float:
        """σ over what one unit moves the stack, sampling forgotten."""
        if self.sampling_probability == 1:
            return self.noise_multiplier
        return self.noise_multiplier / (self.relation.records_changed * self.max_records_per_unit)


_BELOW = 1.0 - 1e-9
"""Keeps two parts of a budget from overspending by a rounding error."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Finds the least noise at which both releases together fit a target.

    Attributes:
        config: Settings; `shots_share` says how the two share it.
        terms: Declared facts; `terms.accountant` decides what the noise is calibrated to.
        target_epsilon: ε the method may cost alone at δ.

    **Source** EPSVec, Algorithm 2 and section 4.5, which adds ε by basic composition; μ² of two
    Gaussian releases adds up (errata B-003.2), but for what whole counts add to the histogram's.
    """

    config: EpsVecConfig
    terms: CohortTerms
    target_epsilon: float

    def shots(self) -> NoisyHistogram | None:
        """Finds the histogram of candidates: a record moves one bin, of its own label, by one.

        Alone it takes the target; beside vectors its share of μ², as continuous noise would.
        """
        if not self.config.use_fixed_shots:
            return None
        if not self.config.use_vectors and self.terms.accountant == "tight":
            noise_std = integer_noise_std(
                lambda noise_std: [self.terms.histogram(noise_std).event()],
                target_epsilon=self.target_epsilon,
                delta=self.terms.delta,
                accountant=self.terms.accountant,
            )
            return self.terms.histogram(noise_std)
        share = self.config.shots_share if self.config.use_vectors else 1.0
        moved = l2_sensitivity(self.terms.relation, self.terms.unit.max_records)
        return self.terms.histogram(max(1.0, moved / math.sqrt(self._room * share)))

    def vectors(self, shots: Event | None) -> VectorNoise | None:
        """Finds the noise of the vectors beside the histogram's event."""
        if not self.config.use_vectors:
            return None
        left = self._room - (2.0 * float(shots.rho) if shots is not None else 0.0)
        multiplier = 1.0 / math.sqrt(left)
        terms, tight = self.terms, self.terms.accountant == "tight"
        if self.sampling_probability < 1 and tight:
            multiplier = remembered_call(
                dp_sgd_noise_multiplier,
                training=sampled_steps(terms, self.sampling_probability, 1),
                target_epsilon=self.target_epsilon,
                delta=terms.delta,
                other_events=() if shots is None else (shots,),
            )
        elif self.sampling_probability < 1:
            multiplier = sampled_noise(
                terms,
                sampling_probability=self.sampling_probability,
                steps=1,
                target_epsilon=zcdp_epsilon(left / 2.0, terms.delta),
            )
        elif shots is not None and tight:
            multiplier = remembered_call(
                noise_beside,
                counts=shots,
                continuous=multiplier,
                target_epsilon=self.target_epsilon,
                delta=terms.delta,
            )
        return VectorNoise(
            noise_multiplier=multiplier,
            sampling_probability=self.sampling_probability,
            relation=self.terms.relation,
            max_records_per_unit=self.terms.unit.max_records,
        )

    @property
    def sampling_probability(self) -> float:
        """Chance q of a record, from declared facts; 1 where all records are used."""
        if self.config.vector_records is None or self.terms.public_records is None:
            return 1.0
        return min(1.0, self.config.vector_records / self.terms.public_records)

    def require_sound(self) -> None:
        """Checks public facts.

        Raises:
            ValueError: The method cannot run with them.
        """
        config, terms = self.config, self.terms
        _require_engine(config, terms)
        _require_records(config, terms)
        replaced = terms.relation is NeighboringRelation.REPLACE_ONE
        if self.sampling_probability < 1 and replaced and terms.accountant == "zcdp":
            raise ValueError(
                "Expected accountant tight or add-remove where vectors read a sample of records, "
                "got zcdp and replace-one, whose bound does not count the sampling. Drop "
                "vector_records, or set budget.accountant: tight."
            )

    @property
    def _room(self) -> float:
        """μ² of Gaussian releases that cost ε together: exact, or 2 ρ under the filter."""
        epsilon, delta = self.target_epsilon, self.terms.delta
        if self.terms.accountant == "tight":
            mu = float(remembered_call(gaussian_mu, epsilon=epsilon, delta=delta))
            return mu**2 * _BELOW
        return 2.0 * zcdp_rho(epsilon, delta) * _BELOW


def noise_beside(counts: Event, continuous: float, target_epsilon: float, delta: float) -> float:
    """Finds the least multiplier beside integer noise: a little above the continuous one."""

    def fits(multiplier: float) -> bool:
        events = [counts, GaussianEvent(noise_multiplier=multiplier)]
        return epsilon_of(events, delta, "tight") <= target_epsilon

    return least_noise(fits, continuous, tolerance=MIXED_TOLERANCE)


def _require_engine(config: EpsVecConfig, terms: CohortTerms) -> None:
    if terms.engine.is_endpoint and config.use_vectors:
        raise ValueError(
            "Expected an engine that runs the model on this machine for epsvec's dataset vectors, "
            "which read private text inside it, got an OpenAI-compatible endpoint, which never "
            "gets private text. Set engine.kind to transformers or vllm, or use_vectors: false."
        )
    if terms.engine.is_endpoint and terms.prompts is None:
        raise ValueError(
            "Expected prompts as text for an OpenAI-compatible endpoint, got the document format "
            "of a local model. Declare prompt in the dataset file, or a domain in its public base."
        )


def _require_records(config: EpsVecConfig, terms: CohortTerms) -> None:
    if terms.public_records is not None or not config.use_vectors:
        return
    uncounted = config.strength_unit == "difference" and not config.use_fixed_shots
    if config.vector_records is not None or uncounted:
        raise ValueError(
            "Expected a declared number of records for vector_records, or for strength_unit: "
            "difference without fixed shots, got none. Declare public_facts.records if the number "
            "is public, or drop vector_records and set strength_unit: clip_bound."
        )


def noise_parameters(shots: NoisyHistogram | None, vectors: VectorNoise | None) -> dict[str, Any]:
    """Writes the noise as the ledger keeps it: numbers, and a sentence for people."""
    parameters: dict[str, Any] = {}
    words = list[str]()
    if shots is not None:
        parameters["shots_noise_std"] = shots.scale
        words.append(
            f"discrete Gaussian of standard deviation {shots.scale:.3g} on each candidate's count"
        )
    if vectors is not None:
        parameters["vector_noise_multiplier"] = vectors.noise_multiplier
        parameters["sampling_probability"] = vectors.sampling_probability
        words.append(_words(vectors))
    return parameters | {"noise": "; ".join(words)}


def _words(noise: VectorNoise) -> str:
    sampled = (
        f", each record drawn with probability {noise.sampling_probability:.3g}"
        if noise.sampling_probability < 1
        else ""
    )
    return (
        f"discrete Gaussian of {noise.noise_multiplier:.4g} x the most that one unit changes, on "
        f"the clipped means of all layers together{sampled}"
    )


def counted_work(
    config: EpsVecConfig, terms: CohortTerms, stage: str, _plan: MethodPlan, sizes: PublicSizes
) -> Work:
    """Counts texts that are written, and texts whose states are read behind prompts.

    Args:
        config: Settings.
        terms: Declared labels, and the engine with the rows it writes together.
        stage: Name of a stage, or `candidate_corpus`.
        sizes: Declared numbers and public lengths.
    """
    labels, rows, longest = len(terms.labels), terms.engine.batch_rows, config.max_document_tokens
    shots = config.shots if config.use_fixed_shots else 0
    prompt = sizes.prompt(shots, longest)
    different = None if config.shots_kept > shots > 0 else labels
    if stage == CANDIDATES and config.candidate_source == "model":
        texts = labels * config.candidates
        return sizes.writing(texts, sizes.frame(0), longest, rows=rows, different=labels)
    if stage == SHOTS and config.use_fixed_shots:
        return Work(embedded=labels * config.candidates * sizes.text_tokens)
    if stage == NEGATIVES:
        texts = labels * config.negatives
        shown = texts + min(config.clip_documents, sizes.documents)
        read = _states(config, shown, prompt, labels, sizes)
        return sizes.writing(texts, prompt, longest, rows=rows, different=different) + read
    if stage == VECTORS:
        records = min(config.vector_records or sizes.records, sizes.records)
        return _states(config, records, prompt, labels, sizes)
    if stage == CANDIDATE_CORPUS:
        different = None if different is None else 1

        def write(texts: float) -> Work:
            """Labels are steered, and so written, one by one."""
            length = config.max_new_tokens
            share = texts / labels
            each = sizes.writing(share, prompt, length, rows=rows, different=different)
            return sum([each] * labels, start=Work())

        return accepted_work(config.rejection, config.rows, sizes, write)
    return Work()


def _states(
    config: EpsVecConfig, texts: float, prompt: float, labels: int, sizes: PublicSizes
) -> Work:
    """Reading behind a prompt that is read once a label, up to the last layer of the block."""
    depth = BLOCK_START + BLOCK_SHARE if config.layers is None else 1.0
    tokens = texts * sizes.text(config.max_document_tokens) + labels * prompt
    return Work(read=depth * tokens)
