"""EPSVec as a method: which stages there are, and what each reads and releases."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from dpsynth_assets.files.whole import Room
from dpsynth_assets.methods.base import CohortTerms, Method, form_of, mechanism_of, planned
from dpsynth_assets.methods.capabilities import (
    Advice,
    Candidate,
    DeclaredFacts,
    RowSource,
    behind,
)
from dpsynth_assets.methods.epsvec.config import (
    CANDIDATES,
    NEGATIVES,
    SHOTS,
    VECTORS,
    EpsVecConfig,
    vector_settings,
)
from dpsynth_assets.methods.epsvec.negatives import Negatives, make_negatives
from dpsynth_assets.methods.epsvec.plan import (
    Calibration,
    VectorNoise,
    counted_work,
    noise_parameters,
)
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
from dpsynth_assets.methods.epsvec.states import open_reader, scaffold_of
from dpsynth_assets.methods.epsvec.vectors import (
    DatasetVectors,
    VectorTask,
    expected_records,
    release_vectors,
)
from dpsynth_assets.methods.epsvec.writing import Writer, rows_on_demand, write_corpus
from dpsynth_assets.methods.inputs import ProgressCallback, PublicInputs
from dpsynth_assets.methods.on_generator import GeneratorChoice, OnGenerator
from dpsynth_assets.methods.rejection_sampling import RowFilter, settings_of
from dpsynth_assets.methods.stages import (
    CANDIDATE_CORPUS,
    MethodPlan,
    Stage,
    StageRelease,
    StageRun,
    SyntheticCorpus,
    Writing,
)
from dpsynth_assets.methods.work import TEXT_EMBEDDER
from dpsynth_assets.models.engines.decoder_engine import LocalEngine
from dpsynth_assets.models.engines.protocol import Provenance
from dpsynth_assets.privacy.guarantees import STATES, GuaranteeType, Release
from dpsynth_assets.privacy.histogram import NoisyHistogram
from dpsynth_assets.workers import Here

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
"""Rows come from tokens of this probability together."""


def _defaults(terms: CohortTerms) -> Mapping[str, Any]:
    """Leaves out the least likely tokens where a dataset file declares the base.

    A pretrained model has tens of thousands of tokens, and its tail writes words that are none.
    """
    return {} if terms.language_model is None else {"top_p": PRETRAINED_TOP_P}


def _after_ctcl(facts: DeclaredFacts) -> tuple[Candidate, ...]:
    """After ctcl, with what it leaves of the budget."""
    settings = {"generator": "ctcl", **vector_settings(facts)}
    return (Candidate(line="epsvec_on_ctcl", settings=settings, **behind("ctcl")),)


class EpsVec(Method[EpsVecConfig]):
    """Banayeeanzade et al. 2026: fixed shots and dataset vectors, then steered decoding.

    **Privacy** One discrete Gaussian histogram, and one joint discrete Gaussian mean. Both pass
    over the records in seconds to minutes and draw noise at the end, so a killed run starts its
    pass again: no reader saw what it drew.
    """

    name: ClassVar[str] = "epsvec"
    title: ClassVar[str] = "EPSVec: fixed shots and dataset vectors"
    paper: ClassVar[str] = (
        "Banayeeanzade et al. 2026, EPSVec: efficient and private synthetic data generation via "
        "dataset vectors"
    )
    arxiv: ClassVar[str] = "2602.21218"
    guarantee: ClassVar[GuaranteeType] = GuaranteeType.DP
    config_type = EpsVecConfig
    # Each row behind one of twelve public texts that records voted for, steered by vectors.
    advice = Advice(
        defaults=_defaults,
        candidates=lambda facts: (Candidate(line="epsvec", settings=vector_settings(facts)),),
    )

    follows_schema = True
    """Candidates, negatives and rows: all are written under the schema."""
    free_settings = frozenset(
        {"rows", "temperature", "top_p", "max_new_tokens", "steering_layers", "strengths"}
        | {"strength_unit", "records_per_pass", "noise"}
    )

    @property
    def public_inputs(self) -> frozenset[str]:
        """The model, the embedder that votes are cast in, and public text for clip bounds."""
        config, needed = self.config, {"public_language_model"}
        if config.use_fixed_shots:
            needed.add("text_embedder")
        from_public = config.use_fixed_shots and config.candidate_source == "public_corpus"
        if from_public or config.use_vectors:
            needed.add("public_corpus")
        return frozenset(needed)

    def writing(self) -> Writing:
        """Rows are written by the engine from shots and vectors, and judged."""
        config, judge = self.config, settings_of(self.config.rejection)
        return Writing(
            reads=self.public_inputs | judge.public_inputs(),
            engine=self.terms.engine,
            runs=(self.terms.engine, *judge.models_run()),
            examples_in_prompt=config.shots if config.use_fixed_shots else 1,
            rows=config.rows,
            row_tokens=config.max_new_tokens,
            work=partial(counted_work, config, self.terms, CANDIDATE_CORPUS),
            write=self.write,
        )

    def plan(self, target_epsilon: float) -> MethodPlan:
        """Finds the least noise at which both releases cost at most `target_epsilon`."""
        calibration = Calibration(
            config=self.config, terms=self.terms, target_epsilon=target_epsilon
        )
        calibration.require_sound()
        shots = calibration.shots()
        vectors = calibration.vectors(None if shots is None else shots.event())
        found = {SHOTS: shots, VECTORS: vectors}
        paid = {stage: mechanism for stage, mechanism in found.items() if mechanism is not None}
        return planned(
            self,
            paid,
            {**self.config.stated(), **noise_parameters(shots, vectors)},
            rests_on={VECTORS: {STATES: {"passes": "alone"}}},
        )

    def stages(self) -> tuple[Stage, ...]:
        """Candidates and fixed shots, negatives and vectors, as far as settings use them."""
        shots = [
            Stage(
                name=CANDIDATES,
                title="Texts that the model writes for each label, without any record.",
                make=self.make_candidates,
                **self._step(CANDIDATES),
            ),
            Stage(
                name=SHOTS,
                title=("Candidates that are nearest to most records, by a noisy histogram."),
                kinds=("python",),
                needs_embeddings=True,
                in_parts=True,
                after=(CANDIDATES,),
                draws=self.release_shots,
                **self._step(SHOTS),
            ),
        ]
        before = (SHOTS,) if self.config.use_fixed_shots else ()
        vectors = [
            Stage(
                name=NEGATIVES,
                title=(
                    "Texts that the model writes from the fixed shots, and the model's hidden "
                    "states for these texts."
                ),
                after=before,
                make=self.make_negatives,
                **self._step(NEGATIVES),
            ),
            Stage(
                name=VECTORS,
                title="Directions from the model's texts to the records, at chosen layers.",
                in_parts=not self.reads_weights,
                in_model=True,
                after=(*before, NEGATIVES),
                draws=self.release_vectors,
                takes=room_of_vectors,
                **self._step(VECTORS),
            ),
        ]
        return (
            *(shots if self.config.use_fixed_shots else []),
            *(vectors if self.config.use_vectors else []),
        )

    def _step(self, name: str) -> dict[str, Any]:
        """Keywords of every stage: the embedder casts votes, and all else is the engine's."""
        return {
            "reads": self.public_inputs,
            "engine": self.terms.engine,
            "runs": (TEXT_EMBEDDER if name == SHOTS else self.terms.engine,),
            "work": partial(counted_work, self.config, self.terms, name),
            "check": self.check_public,
            "free": _LATER[name],
        }

    def check_public(self, public: PublicInputs) -> None:
        """Reads the schema in the model's tokens, where there is one."""
        if form_of(self).schema is not None and public.engine is not None:
            public.engine.require_schema(form_of(self).schema, form_of(self).text_start)

    def write(self, public: PublicInputs, rows: int, progress: ProgressCallback) -> SyntheticCorpus:
        """Writes rows from released shots, steered along released vectors.

        **Privacy** Post-processing: any number and length of rows is free.

        Raises:
            ValueError: If the vectors belong to another model than the engine runs.
        """
        return write_corpus(self._writer(public), RowFilter.of(self, public), rows, progress)

    @contextmanager
    def open_rows(self, public: PublicInputs) -> Iterator[RowSource]:
        """Opens released shots and vectors for rows on demand.

        **Privacy** Post-processing: any number and length of rows is free.

        Raises:
            ValueError: If the vectors belong to another model than the engine runs.
        """
        yield rows_on_demand(self._writer(public))

    def make_candidates(
        self, public: PublicInputs, folder: Path, progress: ProgressCallback
    ) -> StageRelease:
        """Writes the candidate pool into a folder."""
        config, terms, engine = self.config, self.terms, public.required("engine")
        if config.candidate_source == "model":
            scaffold = scaffold_of(config, terms, engine)
            pool = write_candidates(engine, scaffold, config, public.seed, progress)
        else:
            documents = public_texts(public, "candidates")
            pool = public_candidates(documents, len(terms.labels), config, public.seed)
        pool.write_parquet(folder / CANDIDATES_FILE)
        source, model = config.candidate_source, engine.name
        facts = {"candidates": pool.height, "source": source, "model": model}
        return StageRelease(facts=facts, files=folder)

    def release_shots(self, run: StageRun) -> Release[StageRelease]:
        """Ranks candidates by the noisy votes of the records; see `shots.release_shots`."""
        pool = read_candidates(run.public.released[CANDIDATES].folder)
        embed, texts = run.public.required("text_embedder").embed, pool["text"].to_list()
        release = release_shots(
            mechanism_of(run.stage, NoisyHistogram),
            run.private,
            pool,
            embed(texts, public=True),
            self.terms.labels,
        )
        folder = run.checkpoint.filled(release.value.save)
        facts = {
            "candidates": pool.height,
            "ranked_by": "noisy histogram",
            "noise_std": release.value.noise_std,
        }
        return Release(value=StageRelease(facts=facts, files=folder), cost=release.cost)

    def make_negatives(
        self, public: PublicInputs, folder: Path, progress: ProgressCallback
    ) -> StageRelease:
        """Writes negatives, their states and the clip bounds into a folder."""
        config, shots, engine = self.config, self.fixed_shots(public), public.required("engine")
        leading = shots.leading(config.shots)
        reader = open_reader(engine, config, self.terms, leading, config.layers)
        provenance = Provenance.RELEASED if shots.noisy else Provenance.PUBLIC
        negatives = make_negatives(reader, shots, config, public, provenance, progress)
        negatives.save(folder)
        facts = {
            "negatives": sum(map(len, negatives.texts)),
            "layers": list(negatives.layers),
            "clip_bounds": [round(float(bound), 6) for bound in negatives.clip_bounds],
            "model": negatives.model,
        }
        return StageRelease(facts=facts, files=folder)

    def release_vectors(self, run: StageRun) -> Release[StageRelease]:
        """Releases the directions to steer along; see `vectors.release_vectors`."""
        noise = mechanism_of(run.stage, VectorNoise)
        task = self._vector_task(noise, run.public)
        release = release_vectors(task, run.private, run.progress)
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

    def _vector_task(self, noise: VectorNoise, public: PublicInputs) -> VectorTask:
        engine: LocalEngine = public.required("engine")
        negatives = Negatives.load(public.released[NEGATIVES].folder)
        _require_same_model(negatives.model, engine)
        shots, config, terms = self.fixed_shots(public), self.config, self.terms
        leading = shots.leading(config.shots)
        return VectorTask(
            reader=Here(open_reader(engine, config, terms, leading, negatives.layers)),
            reopened=public.reopened,
            shots=leading,
            negatives=negatives,
            expected_records=expected_records(terms, shots.dp_records, noise.sampling_probability),
            noise=noise,
            config=config,
            terms=terms,
            salt=public.salt,
        )

    def fixed_shots(self, public: PublicInputs) -> FixedShots:
        """Reads the shots of a finished stage; none without fixed shots.

        Raises:
            ValueError: If fewer candidates were ranked than settings keep.
        """
        if not self.config.use_fixed_shots:
            return no_shots(len(self.terms.labels))
        shots = FixedShots.load(public.released[SHOTS].folder)
        fewest, kept = min(map(len, shots.ranked)), self.config.shots_kept
        if fewest < kept:
            raise ValueError(
                f"Expected {kept} fixed shots of each label, got {fewest} candidates of one. Keep "
                "fewer shots, or raise candidates, which needs another histogram."
            )
        return shots

    def _writer(self, public: PublicInputs) -> Writer:
        engine, vectors = public.required("engine"), None
        if self.config.use_vectors:
            vectors = DatasetVectors.load(public.released[VECTORS].folder)
            _require_same_model(vectors.model, engine)
        return Writer(
            engine=engine,
            scaffold=scaffold_of(self.config, self.terms, engine),
            shots=self.fixed_shots(public),
            vectors=vectors,
            config=self.config,
            labels=self.terms.labels,
            seed=public.seed,
        )


def _require_same_model(name: str, engine: LocalEngine) -> None:
    """Refuses another model: directions mean nothing in it."""
    if name != engine.name:
        raise ValueError(
            f"Expected the engine to run {name}, whose states were read, got {engine.name}. Name "
            "that model in the dataset file, or release vectors of this model, which is charged."
        )


def room_of_vectors(_stage: Stage, public: PublicInputs) -> Room:
    """Counts the states of the negatives: vectors are means of as many or fewer of them."""
    states = public.released[NEGATIVES].folder.iterdir()
    return Room(release=sum(file.stat().st_size for file in states))


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
    advice = Advice(defaults=_defaults, candidates=_after_ctcl)
