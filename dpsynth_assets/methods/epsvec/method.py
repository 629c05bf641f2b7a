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
from dpsynth_assets.methods.epsvec.candidates import (
    CANDIDATES_FILE,
    read_candidates,
    write_candidates,
)
from dpsynth_assets.methods.epsvec.config import EpsVecConfig
from dpsynth_assets.methods.epsvec.negatives import Negatives, make_negatives
from dpsynth_assets.methods.epsvec.plan import SHOTS, VECTORS, plan_epsvec, vector_noise
from dpsynth_assets.methods.epsvec.prompts import scaffold_of
from dpsynth_assets.methods.epsvec.shots import FixedShots, no_shots, random_shots, release_shots
from dpsynth_assets.methods.epsvec.states import (
    StateReader,
    reader_layers,
    require_private_engine,
)
from dpsynth_assets.methods.epsvec.vectors import DatasetVectors, VectorTask, release_vectors
from dpsynth_assets.methods.epsvec.writing import Writer, write_corpus
from dpsynth_assets.methods.staged import Checkpoint, Stage, StagedMethod, StageRelease
from dpsynth_assets.models.engines import Engine, Provenance
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.release import Release

CANDIDATES = "candidate_pool"
NEGATIVES = "negative_set"

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
_SHOTS_ON = _NEGATIVES_ON | {
    "shots", "shots_share", "shots_noise_std", "private_histogram", "use_fixed_shots",
}  # fmt: skip
_LATER: Mapping[str, frozenset[str]] = {
    CANDIDATES: _SHOTS_ON,
    SHOTS: _NEGATIVES_ON,
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
        if config.use_vectors and config.clip_bound is None:
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
        prepare = {CANDIDATES: _candidates, SHOTS: _random_shots, NEGATIVES: _negatives}[stage]
        facts = prepare(config, terms, public, folder, progress)
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
            return _noisy_shots(plan, config, terms, private, public, checkpoint)
        return _vectors(plan, config, terms, private, public, checkpoint, progress)

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
        engine = _engine(public)
        vectors = None
        if config.use_vectors:
            vectors = DatasetVectors.load(public.released[VECTORS].folder)
            _require_same_model(vectors.model, engine)
        writer = Writer(
            engine=engine,
            scaffold=scaffold_of(config, terms, engine),
            shots=_shots(config, terms, public),
            vectors=vectors,
            config=config,
            labels=terms.labels,
            seed=public.seed,
        )
        return write_corpus(writer, public, rows, progress)


def _candidates(
    config: EpsVecConfig,
    terms: CohortTerms,
    public: PublicInputs,
    folder: Path,
    progress: ProgressCallback,
) -> dict[str, Any]:
    engine = _engine(public)
    scaffold = scaffold_of(config, terms, engine)
    pool = write_candidates(engine, scaffold, config, public.seed, progress)
    pool.write_parquet(folder / CANDIDATES_FILE)
    return {"candidates": pool.height, "model": engine.name}


def _random_shots(
    config: EpsVecConfig,
    terms: CohortTerms,
    public: PublicInputs,
    folder: Path,
    progress: ProgressCallback,
) -> dict[str, Any]:
    del progress
    pool = read_candidates(public.released[CANDIDATES].folder)
    random_shots(pool, len(terms.labels), config.shots, public.seed).save(folder)
    return {"shots": config.shots, "chosen_by": "chance"}


def _negatives(
    config: EpsVecConfig,
    terms: CohortTerms,
    public: PublicInputs,
    folder: Path,
    progress: ProgressCallback,
) -> dict[str, Any]:
    shots = _shots(config, terms, public)
    reader = _reader(config, terms, public, shots, config.layers)
    provenance = Provenance.RELEASED if shots.noisy else Provenance.PUBLIC
    negatives = make_negatives(reader, config, public, provenance, progress)
    negatives.save(folder)
    return {
        "negatives": sum(map(len, negatives.texts)),
        "layers": list(negatives.layers),
        "clip_bounds": [round(float(bound), 6) for bound in negatives.clip_bounds],
        "model": negatives.model,
    }


def _noisy_shots(
    plan: MethodPlan,
    config: EpsVecConfig,
    terms: CohortTerms,
    private: PrivateInputs,
    public: PublicInputs,
    checkpoint: Checkpoint,
) -> Release[StageRelease]:
    pool = read_candidates(public.released[CANDIDATES].folder)
    if public.text_embedder is None:
        raise ValueError("Expected the text embedder of the public base, got none.")
    release = release_shots(
        private,
        pool,
        public.text_embedder.embed(pool["text"].to_list()),
        terms,
        shots=config.shots,
        noise_std=float(plan.parameters["shots_noise_std"]),
    )
    folder = checkpoint.scratch()
    release.value.save(folder)
    facts = {
        "shots": config.shots,
        "chosen_by": "noisy histogram",
        "candidates": pool.height,
        "noise_std": release.value.noise_std,
    }
    return Release(value=StageRelease(facts=facts, files=folder), cost=release.cost)


def _vectors(
    plan: MethodPlan,
    config: EpsVecConfig,
    terms: CohortTerms,
    private: PrivateInputs,
    public: PublicInputs,
    checkpoint: Checkpoint,
    progress: ProgressCallback,
) -> Release[StageRelease]:
    engine = _engine(public)
    require_private_engine(engine)
    negatives = Negatives.load(public.released[NEGATIVES].folder)
    _require_same_model(negatives.model, engine)
    task = VectorTask(
        reader=_reader(config, terms, public, _shots(config, terms, public), negatives.layers),
        negatives=negatives,
        noise=vector_noise(plan, terms),
        config=config,
        terms=terms,
        salt=public.salt,
    )
    release = release_vectors(task, private, progress)
    folder = checkpoint.scratch()
    release.value.save(folder)
    vectors = release.value
    facts = {
        "model": vectors.model,
        "layers": list(vectors.layers),
        "width": int(vectors.directions.shape[2]),
        "clip_bounds": [round(float(bound), 6) for bound in vectors.clip_bounds],
        "signal_over_noise": vectors.signal_over_noise.round(3).tolist(),
        "noise_multiplier": task.noise.noise_multiplier,
        "sampling_probability": task.noise.sampling_probability,
        "cost": vectors.cost,
    }
    return Release(value=StageRelease(facts=facts, files=folder), cost=release.cost)


def _shots(config: EpsVecConfig, terms: CohortTerms, public: PublicInputs) -> FixedShots:
    if not config.use_fixed_shots:
        return no_shots(len(terms.labels))
    return FixedShots.load(public.released[SHOTS].folder)


def _reader(
    config: EpsVecConfig,
    terms: CohortTerms,
    public: PublicInputs,
    shots: FixedShots,
    layers: tuple[int, ...] | None,
) -> StateReader:
    engine = _engine(public)
    return StateReader(
        engine=engine,
        scaffold=scaffold_of(config, terms, engine),
        shots=shots.shots,
        layers=reader_layers(layers, engine),
        max_tokens=config.max_document_tokens,
    )


def _engine(public: PublicInputs) -> Engine:
    if public.engine is None:
        raise ValueError("Expected the engine of the dataset file, got none. Open it first.")
    engine: Engine = public.engine
    return engine


def _require_same_model(name: str, engine: Engine) -> None:
    """Directions mean nothing in another model."""
    if name != engine.name:
        raise ValueError(
            f"Expected the engine to run {name}, whose states were read, got {engine.name}. Name "
            "that model in the dataset file, or release vectors of this one, which pays."
        )
