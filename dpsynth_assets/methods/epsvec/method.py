"""EPSVec as a method: which stages there are, and what each reads and releases."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from dpsynth_assets.files.disk_room import Room
from dpsynth_assets.methods.base import CohortTerms, Method
from dpsynth_assets.methods.candidates import Candidate, DeclaredFacts, behind
from dpsynth_assets.methods.epsvec.config import EpsVecConfig, vector_settings
from dpsynth_assets.methods.epsvec.plan import Calibration, noise_parameters
from dpsynth_assets.methods.epsvec.stages import (
    CANDIDATES,
    NEGATIVES,
    SHOTS,
    VECTORS,
    StageWork,
    counted_work,
)
from dpsynth_assets.methods.epsvec.vector_noise import VectorNoise
from dpsynth_assets.methods.epsvec.writing import VectorRows, Writer, write_corpus
from dpsynth_assets.methods.inputs import (
    Checkpoint,
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
)
from dpsynth_assets.methods.models_run import TEXT_EMBEDDER, RunModel
from dpsynth_assets.methods.on_generator import GeneratorChoice, OnGenerator
from dpsynth_assets.methods.stages import (
    CANDIDATE_CORPUS,
    Mechanism,
    MethodPlan,
    Stage,
    StageRelease,
    SyntheticCorpus,
)
from dpsynth_assets.methods.work import PublicSizes, Work
from dpsynth_assets.privacy.guarantees import STATES, GuaranteeType
from dpsynth_assets.privacy.histogram import NoisyHistogram
from dpsynth_assets.privacy.release import Release

_WRITING = frozenset(
    {"rows", "temperature", "top_p", "max_new_tokens", "steering_layers", "strengths"}
    | {"strength_unit", "records_per_pass", "noise"}
)
_VECTORS_ONLY = frozenset(
    {"vector_records", "vector_noise_multiplier", "sampling_probability", "use_vectors"}
)
_NEGATIVES_ON = _VECTORS_ONLY | {
    "layers", "negatives", "pairing", "clip_bound", "clip_quantile", "clip_documents",
}  # fmt: skip
_PROMPTS_ON = _NEGATIVES_ON | {"shots", "kept_shots"}
_SHOTS_ON = _PROMPTS_ON | {
    "shots_share", "shots_noise_std", "private_histogram", "use_fixed_shots",
}  # fmt: skip
_LATER: Mapping[str, frozenset[str]] = {
    CANDIDATES: _SHOTS_ON,
    SHOTS: _PROMPTS_ON,
    NEGATIVES: _VECTORS_ONLY,
    VECTORS: frozenset(),
}
"""Settings that only later stages depend on: with others, what a stage released is used again."""


PRETRAINED_TOP_P = 0.95
"""Rows come from tokens of this probability together (docs/methods.md has the figures)."""


class EpsVec(Method[EpsVecConfig]):
    """Banayeeanzade et al. 2026: fixed shots and dataset vectors, then steered decoding."""

    name: ClassVar[str] = "epsvec"
    title: ClassVar[str] = "EPSVec: fixed shots and dataset vectors"
    paper: ClassVar[str] = (
        "Banayeeanzade et al. 2026, EPSVec: efficient and private synthetic data generation via "
        "dataset vectors"
    )
    arxiv: ClassVar[str] = "2602.21218"
    guarantee: ClassVar[GuaranteeType] = GuaranteeType.DP
    config_type = EpsVecConfig
    free_settings: ClassVar[frozenset[str]] = _WRITING

    @classmethod
    def candidates(cls, facts: DeclaredFacts) -> tuple[Candidate, ...]:
        """Each row behind one of twelve public texts that records voted for, steered by vectors."""
        return (Candidate(line=cls.name, settings=vector_settings(facts)),)

    @classmethod
    def default_settings(cls, terms: CohortTerms) -> Mapping[str, Any]:
        """Leaves out the least likely tokens where a dataset file declares the base.

        A pretrained model has tens of thousands of tokens, and its tail writes words that are none.
        """
        return {} if terms.language_model is None else {"top_p": PRETRAINED_TOP_P}

    @property
    def follows_schema(self) -> bool:
        """Always: candidates, negatives and rows are written under the schema."""
        return True

    @property
    def uses_engine(self) -> bool:
        """Always: everything is written and read through the engine."""
        return True

    @property
    def public_inputs(self) -> frozenset[str]:
        """The model, the embedder that votes are cast in, and public text for clip bounds."""
        config, needed = self.config, {"public_language_model"}
        if config.noisy_shots:
            needed.add("text_embedder")
        from_public = config.use_fixed_shots and config.candidate_source == "public_corpus"
        if from_public or (config.use_vectors and config.clip_bound is None):
            needed.add("public_corpus")
        return frozenset(needed)

    def models_run(self, stage: str) -> tuple[RunModel, ...]:
        """The embedder of votes, and the engine of all else with the judge of rows."""
        if stage == SHOTS:
            return (TEXT_EMBEDDER,) if self.config.noisy_shots else ()
        judge = self.config.rejection if stage == CANDIDATE_CORPUS else None
        return (self.terms.engine, *(() if judge is None else judge.models_run()))

    def work(self, stage: str, plan: MethodPlan, sizes: PublicSizes) -> Work:
        """Counts texts that are written, and texts whose states are read behind prompts."""
        del plan
        return counted_work(self.config, self.terms, stage, sizes)

    @property
    def examples_in_prompt(self) -> int:
        """Fixed shots of a prompt."""
        return self.config.shots if self.config.use_fixed_shots else 1

    def plan(self, target_epsilon: float) -> MethodPlan:
        """Finds the least noise at which both releases cost at most `target_epsilon`."""
        settings = self.config.model_dump(mode="json")
        calibration = Calibration(
            config=self.config, terms=self.terms, target_epsilon=target_epsilon
        )
        refusal = calibration.refusal()
        if refusal is not None:
            return self.refused(refusal, settings)
        shots = calibration.shots()
        vectors = calibration.vectors(None if shots is None else shots.event())
        found: dict[str, Mechanism | None] = {SHOTS: shots, VECTORS: vectors}
        return self.planned(
            {stage: mechanism for stage, mechanism in found.items() if mechanism is not None},
            {**settings, **noise_parameters(shots, vectors)},
            epsilon=calibration.epsilon(shots, vectors),
            rows_estimate=self.config.rows,
            rests_on={VECTORS: {STATES: {"passes": "alone"}}},
        )

    def stages(self) -> tuple[Stage, ...]:
        """Candidates and fixed shots, negatives and vectors, as far as settings use them."""
        shots = [
            Stage(
                name=CANDIDATES,
                title="Texts the model writes of each label, without any record.",
                public=True,
            ),
            Stage(
                name=SHOTS,
                title="Candidates nearest to most records, by a noisy histogram.",
                kinds=("python",),
                needs_embeddings=self.config.private_histogram,
                in_parts=self.config.private_histogram,
                after=(CANDIDATES,),
                public=not self.config.private_histogram,
            ),
        ]
        before = (SHOTS,) if self.config.use_fixed_shots else ()
        vectors = [
            Stage(
                name=NEGATIVES,
                title="What the model writes from the fixed shots, and its states inside it.",
                after=before,
                public=True,
            ),
            Stage(
                name=VECTORS,
                title="Directions from the model's texts to the records, at chosen layers.",
                in_parts=True,
                in_model=True,
                after=(*before, NEGATIVES),
            ),
        ]
        return (
            *(shots if self.config.use_fixed_shots else []),
            *(vectors if self.config.use_vectors else []),
        )

    def check_public(self, stage: Stage, public: PublicInputs) -> None:
        """Reads the schema in the model's tokens, where there is one."""
        del stage
        if self.form.schema is not None and public.engine is not None:
            public.engine.require_schema(self.form.schema, self.form.text_start)

    def stage_settings(self, stage: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Leaves out what only later stages and writing depend on."""
        free = self.free_settings | _LATER[stage]
        return {name: value for name, value in parameters.items() if name not in free}

    def room(self, stage: Stage, public: PublicInputs) -> Room:
        """Counts the states of the negatives: vectors are means of as many or fewer of them."""
        room = super().room(stage, public)
        if stage.name != VECTORS:
            return room
        states = public.released[NEGATIVES].folder.iterdir()
        return replace(room, release=sum(file.stat().st_size for file in states))

    def make_public(
        self, stage: Stage, public: PublicInputs, folder: Path, progress: ProgressCallback
    ) -> StageRelease:
        """Writes candidates or negatives, or draws shots without a histogram."""
        work = self._work(public)
        make = {
            CANDIDATES: work.make_candidates,
            SHOTS: work.draw_shots,
            NEGATIVES: work.make_negatives,
        }
        return StageRelease(facts=make[stage.name](folder, progress), files=folder)

    def release(
        self,
        stage: Stage,
        private: PrivateInputs,
        public: PublicInputs,
        checkpoint: Checkpoint,
        progress: ProgressCallback,
    ) -> Release[StageRelease]:
        """Releases fixed shots, or dataset vectors, under the planned charge.

        **Privacy** One discrete Gaussian histogram, and one joint discrete Gaussian mean; see
        `shots.release_shots` and `vectors.release_vectors`. Both pass over the records in seconds
        to minutes and draw noise at the end, so a killed run starts its pass anew: nobody saw what
        it drew.
        """
        work = self._work(public)
        if isinstance(stage.mechanism, NoisyHistogram):
            return work.release_shots(stage.mechanism, private, checkpoint)
        if isinstance(stage.mechanism, VectorNoise):
            return work.release_vectors(stage.mechanism, private, checkpoint, progress)
        raise TypeError("Expected a planned histogram or planned vectors, got none. Plan first.")

    def write(self, public: PublicInputs, rows: int, progress: ProgressCallback) -> SyntheticCorpus:
        """Writes rows from released shots, steered along released vectors.

        **Privacy** Post-processing: any number and length of rows is free.

        Raises:
            ValueError: If the vectors belong to another model than the engine runs.
        """
        return write_corpus(self._writer(public), self.row_filter(public), rows, progress)

    @contextmanager
    def open_rows(self, public: PublicInputs) -> Iterator[VectorRows]:
        """Opens released shots and vectors for rows on demand.

        **Privacy** Post-processing: any number and length of rows is free.

        Raises:
            ValueError: If the vectors belong to another model than the engine runs.
        """
        yield VectorRows(self._writer(public))

    def _writer(self, public: PublicInputs) -> Writer:
        work = self._work(public)
        return Writer(
            engine=work.engine,
            scaffold=work.scaffold,
            shots=work.fixed_shots(),
            vectors=work.released_vectors(),
            config=self.config,
            labels=self.terms.labels,
            seed=public.seed,
        )

    def _work(self, public: PublicInputs) -> StageWork:
        return StageWork(config=self.config, terms=self.terms, public=public)


class EpsVecOnGeneratorConfig(GeneratorChoice, EpsVecConfig):
    """Those of EPSVec, and whose generator is steered."""

    method: Literal["epsvec_on_generator"] = "epsvec_on_generator"  # type: ignore[assignment]


class EpsVecOnGenerator(OnGenerator, EpsVec):
    """Fixed shots and dataset vectors of a generator that was fine-tuned on the same cohort.

    Vectors then point from what the fine-tuned model writes to the records: to what fine-tuning
    has left over. Its budget is what fine-tuning leaves, and the label states both together.
    """

    name: ClassVar[str] = "epsvec_on_generator"
    title: ClassVar[str] = "EPSVec on a fine-tuned generator"
    config_type = EpsVecOnGeneratorConfig

    @classmethod
    def candidates(cls, facts: DeclaredFacts) -> tuple[Candidate, ...]:
        """After ctcl, with what it leaves of the budget."""
        settings = {"generator": "ctcl", **vector_settings(facts)}
        return (Candidate(line="epsvec_on_ctcl", settings=settings, **behind("ctcl")),)

    @contextmanager
    def open_rows(self, public: PublicInputs) -> Iterator[VectorRows]:
        """Opens released shots and vectors on the generator they were made with."""
        with super().open_rows(self._on_generator(public)) as rows:
            yield rows
