"""Work of each stage of EPSVec: public stages prepare, paid ones release."""

from dataclasses import dataclass
from pathlib import Path

from dpsynth_assets.methods.base import CohortTerms, mechanism_of
from dpsynth_assets.methods.epsvec.config import EpsVecConfig
from dpsynth_assets.methods.epsvec.negatives import Negatives, make_negatives
from dpsynth_assets.methods.epsvec.plan import VectorNoise
from dpsynth_assets.methods.epsvec.shots import (
    CANDIDATES_FILE,
    FixedShots,
    no_shots,
    public_candidates,
    public_texts,
    read_candidates,
    release_shots,
    write_candidates,
)
from dpsynth_assets.methods.epsvec.states import (
    BLOCK_SHARE,
    BLOCK_START,
    Scaffold,
    open_reader,
    scaffold_of,
)
from dpsynth_assets.methods.epsvec.vectors import (
    DatasetVectors,
    VectorTask,
    expected_records,
    release_vectors,
)
from dpsynth_assets.methods.inputs import (
    ProgressCallback,
    PublicInputs,
)
from dpsynth_assets.methods.rejection_sampling import accepted_work
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS, StageRelease, StageRun
from dpsynth_assets.methods.work import PublicSizes, Work
from dpsynth_assets.models.engines.decoder_engine import LocalEngine
from dpsynth_assets.models.engines.protocol import Provenance
from dpsynth_assets.privacy.guarantees import Release
from dpsynth_assets.privacy.histogram import NoisyHistogram
from dpsynth_assets.workers import Here

CANDIDATES = "candidate_pool"
SHOTS = "fixed_shots"
NEGATIVES = "negative_set"
VECTORS = "dataset_vectors"


@dataclass(frozen=True, kw_only=True)
class StageWork:
    """The work of every stage and of writing, over one set of public and released inputs.

    **Privacy** One discrete Gaussian histogram, and one joint discrete Gaussian mean. Both pass
    over the records in seconds to minutes and draw noise at the end, so a killed run starts its
    pass again: no reader saw what it drew.

    Attributes:
        config: Settings.
        terms: Declared facts.
        public: Public and released inputs, earlier stages in `public.released`.
    """

    config: EpsVecConfig
    terms: CohortTerms
    public: PublicInputs

    def make_candidates(self, folder: Path, progress: ProgressCallback) -> StageRelease:
        """Writes the candidate pool into a folder."""
        config, seed = self.config, self.public.seed
        if config.candidate_source == "model":
            pool = write_candidates(self.engine, self.scaffold, config, seed, progress)
        else:
            documents = public_texts(self.public, "candidates")
            pool = public_candidates(documents, len(self.terms.labels), config, seed)
        pool.write_parquet(folder / CANDIDATES_FILE)
        source, model = config.candidate_source, self.engine.name
        facts = {"candidates": pool.height, "source": source, "model": model}
        return StageRelease(facts=facts, files=folder)

    def make_negatives(self, folder: Path, progress: ProgressCallback) -> StageRelease:
        """Writes negatives, their states and the clip bounds into a folder."""
        shots = self.fixed_shots()
        config, leading = self.config, shots.leading(self.config.shots)
        reader = open_reader(self.engine, config, self.terms, leading, config.layers)
        provenance = Provenance.RELEASED if shots.noisy else Provenance.PUBLIC
        negatives = make_negatives(reader, shots, self.config, self.public, provenance, progress)
        negatives.save(folder)
        facts = {
            "negatives": sum(map(len, negatives.texts)),
            "layers": list(negatives.layers),
            "clip_bounds": [round(float(bound), 6) for bound in negatives.clip_bounds],
            "model": negatives.model,
        }
        return StageRelease(facts=facts, files=folder)

    def release_shots(self, run: StageRun) -> Release[StageRelease]:
        """Ranks candidates by the noisy votes of the records; see `shots.release_shots`."""
        pool = read_candidates(self.public.released[CANDIDATES].folder)
        embedder = self.public.required("text_embedder")
        embeddings = embedder.embed(pool["text"].to_list(), public=True)
        release = release_shots(
            mechanism_of(run.stage, NoisyHistogram),
            run.private,
            pool,
            embeddings,
            self.terms.labels,
        )
        folder = run.checkpoint.filled(release.value.save)
        facts = {
            "candidates": pool.height,
            "ranked_by": "noisy histogram",
            "noise_std": release.value.noise_std,
        }
        return Release(value=StageRelease(facts=facts, files=folder), cost=release.cost)

    def release_vectors(self, run: StageRun) -> Release[StageRelease]:
        """Releases the directions to steer along; see `vectors.release_vectors`."""
        noise = mechanism_of(run.stage, VectorNoise)
        release = release_vectors(self._vector_task(noise), run.private, run.progress)
        vectors = release.value
        folder = run.checkpoint.filled(vectors.save)
        facts = {
            "model": vectors.model,
            "layers": list(vectors.layers),
            "width": int(vectors.directions.shape[2]),
            "clip_bounds": [round(float(bound), 6) for bound in vectors.clip_bounds],
            "signal_over_noise": vectors.signal_over_noise.round(3).tolist(),
            "lengths": [] if vectors.lengths is None else vectors.lengths.round(4).tolist(),
            "noise_multiplier": noise.noise_multiplier,
            "sampling_probability": noise.sampling_probability,
            "cost": vectors.cost,
        }
        return Release(value=StageRelease(facts=facts, files=folder), cost=release.cost)

    @property
    def engine(self) -> LocalEngine:
        """The engine that the dataset file declares.

        Raises:
            ValueError: If none was opened.
        """
        engine: LocalEngine = self.public.required("engine")
        return engine

    @property
    def scaffold(self) -> Scaffold:
        """The words around every text."""
        return scaffold_of(self.config, self.terms, self.engine)

    def fixed_shots(self) -> FixedShots:
        """Reads the shots of a finished stage; none without fixed shots.

        Raises:
            ValueError: If fewer candidates were ranked than settings keep.
        """
        if not self.config.use_fixed_shots:
            return no_shots(len(self.terms.labels))
        shots = FixedShots.load(self.public.released[SHOTS].folder)
        fewest, kept = min(map(len, shots.ranked)), self.config.shots_kept
        if fewest < kept:
            raise ValueError(
                f"Expected {kept} fixed shots of each label, got {fewest} candidates of one. Keep "
                "fewer shots, or raise candidates, which needs another histogram."
            )
        return shots

    def released_vectors(self) -> DatasetVectors | None:
        """Reads the vectors of a finished stage; None without vectors.

        Raises:
            ValueError: If they belong to another model than the engine runs.
        """
        if not self.config.use_vectors:
            return None
        vectors = DatasetVectors.load(self.public.released[VECTORS].folder)
        self._require_same_model(vectors.model)
        return vectors

    def _vector_task(self, noise: VectorNoise) -> VectorTask:
        negatives = Negatives.load(self.public.released[NEGATIVES].folder)
        self._require_same_model(negatives.model)
        shots, config, terms = self.fixed_shots(), self.config, self.terms
        leading = shots.leading(config.shots)
        return VectorTask(
            reader=Here(open_reader(self.engine, config, terms, leading, negatives.layers)),
            opens_engine=self.public.opens_engine,
            shots=leading,
            negatives=negatives,
            expected_records=expected_records(terms, shots.dp_records, noise.sampling_probability),
            noise=noise,
            config=config,
            terms=terms,
            salt=self.public.salt,
        )

    def _require_same_model(self, name: str) -> None:
        """Refuses another model: directions mean nothing in it."""
        if name != self.engine.name:
            raise ValueError(
                f"Expected the engine to run {name}, whose states were read, got "
                f"{self.engine.name}. Name that model in the dataset file, or release vectors of "
                "this model, which is charged."
            )


def counted_work(config: EpsVecConfig, terms: CohortTerms, stage: str, sizes: PublicSizes) -> Work:
    """Work of one stage, or of writing the rows.

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
