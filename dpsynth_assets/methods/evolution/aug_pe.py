"""Aug-PE: a population of texts evolves under noisy nearest-neighbour votes of the records.

It starts from random texts of a public model, or from the rows of another released corpus of the
cohort: random texts lie far from the records, and the first votes are spent on leaving them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from dpsynth_assets.methods.base import planned, refused
from dpsynth_assets.methods.candidates import Advice, Candidate, Choice, DeclaredFacts, behind
from dpsynth_assets.methods.capabilities import BuildsOn, Evolves
from dpsynth_assets.methods.counted_labels import LabelCounts
from dpsynth_assets.methods.evolution.apis import ShareCallback, TextApi
from dpsynth_assets.methods.evolution.config import (
    LABEL_BUDGET_SHARE,
    AugPeConfig,
    AugPeFromCorpusConfig,
    VotedConfig,
)
from dpsynth_assets.methods.evolution.method import (
    FREE_SETTINGS,
    STAGE,
    EvolutionMethod,
    evolution_settings,
)
from dpsynth_assets.methods.evolution.votes import (
    VOTES_PER_RECORD,
    PrivateVotes,
    VotingRounds,
)
from dpsynth_assets.methods.inputs import (
    Checkpoint,
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
    rows_behind,
)
from dpsynth_assets.methods.plan_cache import remembered
from dpsynth_assets.methods.stages import MethodPlan, Stage, StageRelease
from dpsynth_assets.methods.topic_histogram import project_to_total
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.calibration import gaussian_noise_multiplier
from dpsynth_assets.privacy.events import event_to_json
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.histogram import NoisyHistogram, l2_sensitivity
from dpsynth_assets.privacy.monotone_search import FINE_TOLERANCE, MIXED_TOLERANCE, least_noise
from dpsynth_assets.privacy.release import Cost, Release
from dpsynth_assets.privacy.voting import voting_noise_std

LABEL_STAGE = "label_histogram"
"""Name of the stage that releases noisy label counts."""

_OF_LABELS = ("method", "label_noise_std")
"""Parameters that the label histogram depends on."""


VotedT = TypeVar("VotedT", bound=VotedConfig)


class VotedEvolution(EvolutionMethod[VotedT]):
    """Rounds of noisy votes of the records, and the noise on them."""

    paper: ClassVar[str] = (
        "Xie et al. 2024, Differentially private synthetic data via foundation model APIs 2: text"
    )
    arxiv: ClassVar[str] = "2403.01749"
    guarantee = GuaranteeType.DP

    def stages(self) -> tuple[Stage, ...]:
        """The histogram of labels, where shares are released, and the population."""
        released = self.config.label_shares == "released"
        labels = self.stage(
            LABEL_STAGE,
            title="Noisy numbers of records of each label, which share out the population.",
            kinds=("polars",),
            in_parts=True,
            draws=self.release,
        )
        population = self.stage(
            STAGE,
            title="Texts that won the noisy votes of the private records, round by round.",
            kinds=("pytorch", "polars"),
            needs_embeddings=True,
            in_parts=True,
            after=(LABEL_STAGE,) if released else (),
            draws=self.release,
        )
        return (labels, population) if released else (population,)

    def plan(self, target_epsilon: float) -> MethodPlan:
        """Finds the least noise at which all rounds of votes cost at most `target_epsilon`.

        T rounds of integer noise σ on a histogram are one block whose privacy loss is known
        exactly, so no budget is lost to composition and none is left over. Beside a histogram of
        labels their losses are composed, and σ is at most 1e-4 larger than needed, relative.

        **Source** Xie et al. 2024, section 3 and appendix; docs/proofs.md.
        """
        refusal = self.refusal(target_epsilon)
        if refusal is not None:
            return refused(self, refusal, self.config.stated())
        found = remembered(
            self._cache_key(target_epsilon), lambda: self._calibrated(target_epsilon)
        )
        epsilon = float(found.pop("epsilon"))
        noise = (
            f"Gaussian of {found['noise_std']:.4g} votes on each candidate in each of "
            f"{self.config.iterations} rounds"
        )
        parameters = {**self.settings(), **found, "noise": noise}
        of_labels = {name: parameters[name] for name in _OF_LABELS if name in parameters}
        return planned(
            self,
            self._mechanisms(found),
            parameters,
            form=self.form,
            free=FREE_SETTINGS,
            settings={LABEL_STAGE: of_labels},
            epsilon=epsilon,
            rows_estimate=self.config.rows,
        )

    def label_shares(self, public: PublicInputs) -> np.ndarray:
        """Computes equal shares, or those of the released histogram, denoised.

        **Privacy** True counts of labels are never read here: they are private, whatever a
        published implementation assumes.
        """
        if self.config.label_shares == "equal":
            return super().label_shares(public)
        dp_counts = np.asarray(public.released[LABEL_STAGE].facts["dp_counts"], dtype=np.float64)
        return project_to_total(dp_counts, dp_counts.sum())

    def release(
        self,
        stage: Stage,
        private: PrivateInputs,
        public: PublicInputs,
        checkpoint: Checkpoint,
        progress: ProgressCallback,
    ) -> Release[StageRelease]:
        """Releases the noisy label counts, or runs the rounds of votes.

        **Privacy** The planned event and no more. Everything between two rounds (selection,
        variations, embeddings of candidates) is post-processing of released votes.

        **Source** Xie et al. 2024, Algorithm 1.
        """
        if isinstance(stage.mechanism, NoisyHistogram):
            return self._label_counts(stage.mechanism, private)
        if not isinstance(stage.mechanism, VotingRounds):
            raise TypeError("Expected planned rounds of votes, got none. Plan first.")
        event = stage.mechanism.event()
        made = self.evolve(
            public,
            PrivateVotes(stage.mechanism, self.terms.labels, private),
            identity={"event": event_to_json(event), "settings": dict(stage.settings)},
            checkpoint=checkpoint,
            progress=progress,
        )
        return Release(value=made, cost=Cost(guarantee=self.guarantee, event=event))

    def _label_counts(
        self, histogram: NoisyHistogram, private: PrivateInputs
    ) -> Release[StageRelease]:
        """Releases the number of records of every declared label with noise."""
        made = histogram.release(private.counted(LabelCounts(labels=self.terms.labels)))
        facts = {
            "labels": list(self.terms.labels),
            "dp_counts": made.value.tolist(),
            "noise_std": histogram.scale,
        }
        return Release(value=StageRelease(facts=facts), cost=made.cost)

    def _mechanisms(self, noise: Mapping[str, float]) -> dict[str, NoisyHistogram | VotingRounds]:
        """Makes what is released from the noise on votes, and on label counts if there are any."""
        terms = self.terms
        mechanisms: dict[str, NoisyHistogram | VotingRounds] = {}
        if self.config.label_shares == "released":
            mechanisms[LABEL_STAGE] = NoisyHistogram(
                noise="gaussian",
                scale=noise["label_noise_std"],
                relation=terms.relation,
                max_records_per_unit=terms.unit.max_records,
            )
        mechanisms[STAGE] = VotingRounds(
            noise_std=noise["noise_std"],
            iterations=self.config.iterations,
            relation=terms.relation,
            max_records_per_unit=terms.unit.max_records,
        )
        return mechanisms

    def _epsilon(self, noise: Mapping[str, float]) -> float:
        events = [mechanism.event() for mechanism in self._mechanisms(noise).values()]
        return epsilon_of(events, self.terms.delta, self.terms.accountant)

    def _calibrated(self, target_epsilon: float) -> dict[str, float]:
        """Finds the noise of the votes, and of the label counts if they are released."""
        if self.config.label_shares == "released":
            found = self._noise_of_both(target_epsilon)
        else:
            noise_std = voting_noise_std(
                target_epsilon=target_epsilon,
                delta=self.terms.delta,
                accountant=self.terms.accountant,
                iterations=self.config.iterations,
                votes_per_record=VOTES_PER_RECORD,
                relation=self.terms.relation,
                max_records_per_unit=self.terms.unit.max_records,
            )
            found = {"noise_std": noise_std}
        return {**found, "epsilon": self._epsilon(found)}

    def _noise_of_both(self, target_epsilon: float) -> dict[str, float]:
        """Divides ρ: a share s of it is worth √s of the whole release's μ."""
        terms, share = self.terms, LABEL_BUDGET_SHARE
        whole = l2_sensitivity(terms.relation, terms.unit.max_records) * gaussian_noise_multiplier(
            target_epsilon=target_epsilon, delta=terms.delta, accountant=terms.accountant
        )
        rounds = math.sqrt(self.config.iterations / (1.0 - share))

        def noise(scale: float) -> dict[str, float]:
            return {
                "label_noise_std": max(1.0, scale * whole / math.sqrt(share)),
                "noise_std": max(1.0, scale * whole * rounds),
            }

        def fits(scale: float) -> bool:
            return self._epsilon(noise(scale)) <= target_epsilon

        tolerance = MIXED_TOLERANCE if terms.accountant == "tight" else FINE_TOLERANCE
        return noise(least_noise(fits, 1.0, tolerance=tolerance))

    def _cache_key(self, target_epsilon: float) -> dict[str, Any]:
        released = self.config.label_shares == "released"
        return {
            "calibration": "votes",
            "iterations": self.config.iterations,
            "label_budget_share": LABEL_BUDGET_SHARE if released else None,
            "target_epsilon": target_epsilon,
            "delta": self.terms.delta,
            "accountant": self.terms.accountant,
            "relation": str(self.terms.relation),
            "max_records_per_unit": self.terms.unit.max_records,
        }


class AugPe(VotedEvolution[AugPeConfig]):
    """Xie et al. 2024: random texts, private votes, survivors, variations; T times."""

    name: ClassVar[str] = "aug_pe"
    title: ClassVar[str] = "Aug-PE: private evolution of texts"
    config_type = AugPeConfig
    # A population as large as the corpus: votes choose its rows themselves.
    advice = Advice(
        candidates=lambda facts: (Candidate(line="aug_pe", settings=evolution_settings(facts)),),
        splits=(
            Choice(place=("settings", "iterations"), splits="rounds of votes", values=(1, 2, 3, 5)),
        ),
        for_rows=lambda rows: {"population": rows},
    )


@dataclass(frozen=True, kw_only=True)
class StartingRows:
    """Gives released rows where random texts are asked for; variations are the writer's own.

    Attributes:
        api: Writes variations, and random texts where a label has too few rows.
        rows: Label -> released rows of the form that is asked for.
    """

    api: TextApi
    rows: Mapping[str, Sequence[str]] = field(repr=False)

    def random(
        self, labels: Sequence[str], *, seed: int, progress: ShareCallback | None = None
    ) -> list[str]:
        """Takes each label's rows in their order, then writes what is lacking."""
        left = {label: iter(texts) for label, texts in self.rows.items()}
        found = [next(left.get(label, iter(())), None) for label in labels]
        lacking = [label for label, text in zip(labels, found, strict=True) if text is None]
        written = iter(self.api.random(lacking, seed=seed, progress=progress) if lacking else [])
        return [next(written) if text is None else text for text in found]

    def vary(
        self,
        texts: Sequence[str],
        labels: Sequence[str],
        *,
        degree: float,
        seed: int,
        progress: ShareCallback | None = None,
    ) -> list[str]:
        """See `TextApi.vary`."""
        return self.api.vary(texts, labels, degree=degree, seed=seed, progress=progress)


def _after_ctcl(facts: DeclaredFacts) -> tuple[Candidate, ...]:
    """After ctcl, whose rows lie near the records: one round less."""
    settings = {"corpus": "ctcl", **evolution_settings(facts), "iterations": 2}
    return (Candidate(line="aug_pe_from_ctcl", settings=settings, **behind("ctcl")),)


class AugPeFromCorpus(VotedEvolution[AugPeFromCorpusConfig]):
    """Aug-PE (Xie et al. 2024) from the rows of another DP corpus of the same cohort.

    **Privacy** The corpus was paid for by its own releases; starting from it is post-processing.
    The votes cost what those of `aug_pe` cost, and the label states both together.
    """

    name: ClassVar[str] = "aug_pe_from_corpus"
    title: ClassVar[str] = "Aug-PE from another corpus"
    config_type = AugPeFromCorpusConfig
    advice = Advice(candidates=_after_ctcl)
    capabilities = (Evolves(STAGE), BuildsOn(corpora=lambda own: (own.config.corpus,)))

    def stages(self) -> tuple[Stage, ...]:
        """Those of Aug-PE; the population reads the other corpus."""
        *before, population = super().stages()
        own = replace(population, reads_corpora=True, check=self.check_with_corpus)
        return (*before, own)

    def check_with_corpus(self, public: PublicInputs) -> None:
        """Asks for the other corpus, beside what Aug-PE asks for."""
        self.check_public(public)
        rows_behind(self.config.corpus, public)

    def writer(self, public: PublicInputs) -> TextApi:
        """Opens the writer, which begins with released rows."""
        rows = rows_behind(self.config.corpus, public)
        by_label = {
            label: list(filter(self.form.read, rows.filter(rows["label"] == label)["text"]))
            for label in self.terms.labels
        }
        return StartingRows(api=super().writer(public), rows=by_label)
