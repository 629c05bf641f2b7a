"""Aug-PE: a population of texts evolves under noisy nearest-neighbour votes of the records.

It starts from random texts of a public model, or from the rows of another released corpus of the
cohort: random texts lie far from the records, and the first votes are spent on leaving them.
"""

from dataclasses import replace
from typing import ClassVar, TypeVar

from dpsynth_assets.methods.base import mechanism_of, planned
from dpsynth_assets.methods.capabilities import (
    Advice,
    Candidate,
    DeclaredFacts,
    behind,
)
from dpsynth_assets.methods.evolution.config import (
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
from dpsynth_assets.methods.evolution.population import write_generations
from dpsynth_assets.methods.evolution.votes import (
    PrivateVotes,
    VotingRounds,
)
from dpsynth_assets.methods.inputs import (
    PublicInputs,
    rows_behind,
)
from dpsynth_assets.methods.plan_cache import remembered_call
from dpsynth_assets.methods.stages import MethodPlan, Stage, StageRelease, StageRun
from dpsynth_assets.privacy.calibration import integer_noise_std
from dpsynth_assets.privacy.events import event_to_json
from dpsynth_assets.privacy.guarantees import Cost, GuaranteeType, Release

VotedT = TypeVar("VotedT", bound=VotedConfig)


class VotedEvolution(EvolutionMethod[VotedT]):
    """Rounds of noisy votes of the records, and the noise on them."""

    paper: ClassVar[str] = (
        "Xie et al. 2024, Differentially private synthetic data via foundation model APIs 2: text"
    )
    arxiv: ClassVar[str] = "2403.01749"
    guarantee = GuaranteeType.DP

    def stages(self) -> tuple[Stage, ...]:
        """The population."""
        stage = self.stage(
            STAGE,
            title="Texts that won the noisy votes of the private records, round by round.",
            kinds=("pytorch", "polars"),
            needs_embeddings=True,
            in_parts=True,
            draws=self.release,
        )
        return (stage,)

    def plan(self, target_epsilon: float) -> MethodPlan:
        """Finds the least noise at which all rounds of votes cost at most `target_epsilon`.

        T rounds of integer noise σ on a histogram are one block whose privacy loss is known
        exactly, so no budget is lost to composition and none is left over.

        **Source** Xie et al. 2024, section 3 and appendix; docs/proofs.md.
        """
        self.require_sound()
        terms = self.terms
        rounds = VotingRounds(
            noise_std=1.0,
            iterations=self.config.iterations,
            relation=terms.relation,
            max_records_per_unit=terms.unit.max_records,
        )
        noise_std = remembered_call(
            least_noise_std,
            rounds=rounds,
            target_epsilon=target_epsilon,
            delta=terms.delta,
            accountant=terms.accountant,
        )
        rounds = replace(rounds, noise_std=noise_std)
        noise = (
            f"Gaussian of {noise_std:.4g} votes on each candidate in each of "
            f"{self.config.iterations} rounds"
        )
        return planned(
            self,
            {STAGE: rounds},
            {**self.settings(), "noise_std": noise_std, "noise": noise},
            form=self.form,
            free=FREE_SETTINGS,
        )

    def release(self, run: StageRun) -> Release[StageRelease]:
        """Runs the rounds of votes.

        **Privacy** The planned event and no more. Everything between two rounds (selection,
        variations, embeddings of candidates) is post-processing of released votes.

        **Source** Xie et al. 2024, Algorithm 1.
        """
        rounds = mechanism_of(run.stage, VotingRounds)
        event = rounds.event()
        evolved = self.evolution(run.public).run(
            PrivateVotes(rounds, self.terms.labels, run.private),
            run.progress,
            identity={"event": event_to_json(event), "settings": dict(run.stage.settings)},
            checkpoint=run.checkpoint,
        )
        generations = evolved.generations
        folder = run.checkpoint.filled(lambda files: write_generations(files, generations))
        made = StageRelease(facts=self.facts_of(generations), files=folder)
        return Release(value=made, cost=Cost(guarantee=self.guarantee, event=event))


def least_noise_std(
    rounds: VotingRounds, target_epsilon: float, delta: float, accountant: str
) -> float:
    """Finds the least noise at which all rounds together cost at most `target_epsilon`."""
    return integer_noise_std(
        lambda noise_std: [replace(rounds, noise_std=noise_std).event()],
        target_epsilon=target_epsilon,
        delta=delta,
        accountant=accountant,
    )


class AugPe(VotedEvolution[AugPeConfig]):
    """Xie et al. 2024: random texts, private votes, survivors, variations; T times."""

    name: ClassVar[str] = "aug_pe"
    title: ClassVar[str] = "Aug-PE: private evolution of texts"
    config_type = AugPeConfig
    # A population as large as the corpus: votes choose its rows themselves.
    advice = Advice(
        candidates=lambda facts: (Candidate(line="aug_pe", settings=evolution_settings(facts)),),
    )


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

    @property
    def corpora(self) -> tuple[str, ...]:
        """The corpus that the evolution starts from."""
        return (self.config.corpus,)

    def check_public(self, public: PublicInputs) -> None:
        """Refuses a corpus that is not there, too."""
        super().check_public(public)
        rows_behind(self.config.corpus, public)

    def starting_rows(self, public: PublicInputs) -> dict[str, list[str]]:
        """The rows of the other corpus that are of the form, by label."""
        rows = rows_behind(self.config.corpus, public)
        return {
            label: list(filter(self.form.read, rows.filter(rows["label"] == label)["text"]))
            for label in self.terms.labels
        }
