"""What each stage of EPSVec does with its inputs: public stages prepare, paid ones release."""

from pathlib import Path
from typing import Any

from dpsynth_assets.methods.base import (
    CohortTerms,
    MethodPlan,
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
)
from dpsynth_assets.methods.epsvec.candidates import (
    CANDIDATES_FILE,
    public_candidates,
    public_texts,
    read_candidates,
    write_candidates,
)
from dpsynth_assets.methods.epsvec.config import EpsVecConfig
from dpsynth_assets.methods.epsvec.negatives import Negatives, make_negatives
from dpsynth_assets.methods.epsvec.plan import SHOTS, vector_noise
from dpsynth_assets.methods.epsvec.prompts import scaffold_of
from dpsynth_assets.methods.epsvec.shots import FixedShots, no_shots, random_shots, release_shots
from dpsynth_assets.methods.epsvec.states import StateReader, reader_layers, require_private_engine
from dpsynth_assets.methods.epsvec.vectors import VectorTask, expected_records, release_vectors
from dpsynth_assets.methods.staged import Checkpoint, StageRelease
from dpsynth_assets.models.engines import Engine, Provenance
from dpsynth_assets.privacy.release import Release

CANDIDATES = "candidate_pool"
NEGATIVES = "negative_set"


def make_candidates(
    config: EpsVecConfig,
    terms: CohortTerms,
    public: PublicInputs,
    folder: Path,
    progress: ProgressCallback,
) -> dict[str, Any]:
    """Writes the candidate pool into a folder; returns facts about it."""
    engine = engine_of(public)
    scaffold = scaffold_of(config, terms, engine)
    if config.candidate_source == "model":
        pool = write_candidates(engine, scaffold, config, public.seed, progress)
    else:
        pool = public_candidates(
            public_texts(public, "candidates"), len(terms.labels), config, public.seed
        )
    pool.write_parquet(folder / CANDIDATES_FILE)
    return {"candidates": pool.height, "source": config.candidate_source, "model": engine.name}


def draw_shots(
    config: EpsVecConfig,
    terms: CohortTerms,
    public: PublicInputs,
    folder: Path,
    progress: ProgressCallback,
) -> dict[str, Any]:
    """Orders candidates by chance, where no histogram is paid for."""
    del config, progress
    pool = read_candidates(public.released[CANDIDATES].folder)
    random_shots(pool, len(terms.labels), public.seed).save(folder)
    return {"candidates": pool.height, "ranked_by": "chance"}


def make_negative_set(
    config: EpsVecConfig,
    terms: CohortTerms,
    public: PublicInputs,
    folder: Path,
    progress: ProgressCallback,
) -> dict[str, Any]:
    """Writes negatives, their states and the clip bounds into a folder."""
    shots = fixed_shots(config, terms, public)
    reader = _reader(config, terms, public, shots, config.layers)
    provenance = Provenance.RELEASED if shots.noisy else Provenance.PUBLIC
    negatives = make_negatives(reader, shots, config, public, provenance, progress)
    negatives.save(folder)
    return {
        "negatives": sum(map(len, negatives.texts)),
        "layers": list(negatives.layers),
        "clip_bounds": [round(float(bound), 6) for bound in negatives.clip_bounds],
        "model": negatives.model,
    }


def release_fixed_shots(
    plan: MethodPlan,
    terms: CohortTerms,
    private: PrivateInputs,
    public: PublicInputs,
    checkpoint: Checkpoint,
) -> Release[StageRelease]:
    """Ranks candidates by the noisy votes of the records; see `shots.release_shots`."""
    pool = read_candidates(public.released[CANDIDATES].folder)
    if public.text_embedder is None:
        raise ValueError("Expected the text embedder of the public base, got none.")
    release = release_shots(
        private,
        pool,
        public.text_embedder.embed(pool["text"].to_list(), public=True),
        terms,
        noise_std=float(plan.parameters["shots_noise_std"]),
    )
    folder = checkpoint.scratch()
    release.value.save(folder)
    facts = {
        "candidates": pool.height,
        "ranked_by": "noisy histogram",
        "noise_std": release.value.noise_std,
    }
    return Release(value=StageRelease(facts=facts, files=folder), cost=release.cost)


def release_dataset_vectors(
    plan: MethodPlan,
    config: EpsVecConfig,
    terms: CohortTerms,
    private: PrivateInputs,
    public: PublicInputs,
    checkpoint: Checkpoint,
    progress: ProgressCallback,
) -> Release[StageRelease]:
    """Releases the directions to steer along; see `vectors.release_vectors`."""
    engine = engine_of(public)
    require_private_engine(engine)
    negatives = Negatives.load(public.released[NEGATIVES].folder)
    require_same_model(negatives.model, engine)
    shots, noise = fixed_shots(config, terms, public), vector_noise(plan, terms)
    task = VectorTask(
        reader=_reader(config, terms, public, shots, negatives.layers),
        negatives=negatives,
        expected_records=expected_records(terms, shots.dp_records, noise.sampling_probability),
        noise=noise,
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
        "lengths": [] if vectors.lengths is None else vectors.lengths.round(4).tolist(),
        "noise_multiplier": task.noise.noise_multiplier,
        "sampling_probability": task.noise.sampling_probability,
        "cost": vectors.cost,
    }
    return Release(value=StageRelease(facts=facts, files=folder), cost=release.cost)


def fixed_shots(config: EpsVecConfig, terms: CohortTerms, public: PublicInputs) -> FixedShots:
    """The shots of a finished stage; none without fixed shots.

    Raises:
        ValueError: If fewer candidates were ranked than settings keep.
    """
    if not config.use_fixed_shots:
        return no_shots(len(terms.labels))
    shots = FixedShots.load(public.released[SHOTS].folder)
    fewest = min(map(len, shots.ranked))
    if fewest < config.shots_kept:
        raise ValueError(
            f"Expected {config.shots_kept} fixed shots of each label, got {fewest} candidates of "
            "one. Keep fewer shots, or raise candidates, which asks for another histogram."
        )
    return shots


def _reader(
    config: EpsVecConfig,
    terms: CohortTerms,
    public: PublicInputs,
    shots: FixedShots,
    layers: tuple[int, ...] | None,
) -> StateReader:
    engine = engine_of(public)
    return StateReader(
        engine=engine,
        scaffold=scaffold_of(config, terms, engine),
        shots=shots.leading(config.shots),
        layers=reader_layers(layers, engine),
        max_tokens=config.max_document_tokens,
    )


def engine_of(public: PublicInputs) -> Engine:
    """The engine that the dataset file declares.

    Raises:
        ValueError: If none was opened.
    """
    if public.engine is None:
        raise ValueError("Expected the engine of the dataset file, got none. Open it first.")
    engine: Engine = public.engine
    return engine


def require_same_model(name: str, engine: Engine) -> None:
    """Directions mean nothing in another model.

    Raises:
        ValueError: If the engine runs another one.
    """
    if name != engine.name:
        raise ValueError(
            f"Expected the engine to run {name}, whose states were read, got {engine.name}. Name "
            "that model in the dataset file, or release vectors of this one, which pays."
        )
