"""EPSVec as a staged method: which stages there are, and what each reads and releases."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from dpsynth_assets.methods.base import (
    CohortTerms,
    MethodPlan,
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
    SyntheticCorpus,
)
from dpsynth_assets.methods.epsvec.config import EpsVecConfig
from dpsynth_assets.methods.epsvec.plan import SHOTS, VECTORS, plan_epsvec
from dpsynth_assets.methods.epsvec.prompts import scaffold_of
from dpsynth_assets.methods.epsvec.stages import (
    CANDIDATES,
    NEGATIVES,
    draw_shots,
    engine_of,
    fixed_shots,
    make_candidates,
    make_negative_set,
    release_dataset_vectors,
    release_fixed_shots,
    require_same_model,
)
from dpsynth_assets.methods.epsvec.vectors import DatasetVectors
from dpsynth_assets.methods.epsvec.writing import Writer, write_corpus
from dpsynth_assets.methods.staged import Checkpoint, Stage, StagedMethod, StageRelease
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.release import Release

_WRITING = frozenset(
    {"rows", "temperature", "top_p", "max_new_tokens", "steering_layers", "strengths"}
    | {"strength_unit", "rejection", "records_per_pass", "noise"}
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


class EpsVec(StagedMethod):
    """Banayeeanzade et al. 2026: fixed shots and dataset vectors, then steered decoding."""

    name: ClassVar[str] = "epsvec"
    title: ClassVar[str] = "EPSVec: fixed shots and dataset vectors"
    paper: ClassVar[str] = (
        "Banayeeanzade et al. 2026, EPSVec: efficient and private synthetic data generation via "
        "dataset vectors"
    )
    guarantee: ClassVar[GuaranteeType] = GuaranteeType.DP
    config_type = EpsVecConfig
    needs_embeddings = True
    free_settings: ClassVar[frozenset[str]] = _WRITING

    def uses_engine(self, config: Any) -> bool:
        """Everything is written and read through the engine."""
        del config
        return True

    def public_inputs(self, config: Any) -> frozenset[str]:
        """The model, the embedder that votes are cast in, and public text for clip bounds."""
        needed = {"public_language_model"}
        if config.noisy_shots:
            needed.add("text_embedder")
        from_public = config.use_fixed_shots and config.candidate_source == "public_corpus"
        if from_public or (config.use_vectors and config.clip_bound is None):
            needed.add("public_corpus")
        return frozenset(needed)

    def writing_inputs(self, config: Any) -> frozenset[str]:
        """What the judge of written rows reads."""
        return frozenset() if config.rejection is None else config.rejection.public_inputs()

    def plan(self, config: Any, terms: CohortTerms, *, target_epsilon: float) -> MethodPlan:
        """Finds the least noise at which both releases cost at most `target_epsilon`."""
        return plan_epsvec(config, terms, target_epsilon)

    def stages(self, config: Any, terms: CohortTerms) -> tuple[Stage, ...]:
        """Candidates and fixed shots, negatives and vectors, as far as settings use them."""
        del terms
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
                needs_embeddings=config.private_histogram,
                after=(CANDIDATES,),
                public=not config.private_histogram,
            ),
        ]
        before = (SHOTS,) if config.use_fixed_shots else ()
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
                after=(*before, NEGATIVES),
            ),
        ]
        return (
            *(shots if config.use_fixed_shots else []),
            *(vectors if config.use_vectors else []),
        )

    def stage_settings(self, stage: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Leaves out what only later stages and writing depend on."""
        free = self.free_settings | _LATER[stage]
        return {name: value for name, value in parameters.items() if name not in free}

    def prepare_stage(
        self,
        stage: str,
        plan: MethodPlan,
        config: Any,
        terms: CohortTerms,
        public: PublicInputs,
        folder: Path,
        progress: ProgressCallback,
    ) -> StageRelease:
        """Writes candidates or negatives, or draws shots without a histogram."""
        del plan
        prepare = {CANDIDATES: make_candidates, SHOTS: draw_shots, NEGATIVES: make_negative_set}
        facts = prepare[stage](config, terms, public, folder, progress)
        return StageRelease(facts=facts, files=folder)

    def release_stage(
        self,
        stage: str,
        plan: MethodPlan,
        config: Any,
        terms: CohortTerms,
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
        if stage == SHOTS:
            return release_fixed_shots(plan, terms, private, public, checkpoint)
        return release_dataset_vectors(plan, config, terms, private, public, checkpoint, progress)

    def write(
        self,
        plan: MethodPlan,
        config: Any,
        terms: CohortTerms,
        public: PublicInputs,
        rows: int,
        progress: ProgressCallback,
    ) -> SyntheticCorpus:
        """Writes rows from released shots, steered along released vectors.

        **Privacy** Post-processing: any number and length of rows is free.

        Raises:
            ValueError: If the vectors belong to another model than the engine runs.
        """
        del plan
        engine = engine_of(public)
        vectors = None
        if config.use_vectors:
            vectors = DatasetVectors.load(public.released[VECTORS].folder)
            require_same_model(vectors.model, engine)
        writer = Writer(
            engine=engine,
            scaffold=scaffold_of(config, terms, engine),
            shots=fixed_shots(config, terms, public),
            vectors=vectors,
            config=config,
            labels=terms.labels,
            seed=public.seed,
        )
        return write_corpus(writer, public, rows, progress)
