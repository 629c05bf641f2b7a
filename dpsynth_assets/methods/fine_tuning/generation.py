"""Methods that fine-tune a generator: one paid stage, then any number of free rows."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dpsynth_assets.files.whole import Room
from dpsynth_assets.methods.base import form_of
from dpsynth_assets.methods.capabilities import (
    FINE_TUNED,
    NUMBER,
    TOPICS,
    Advice,
    Candidate,
    DeclaredFacts,
    RowSource,
)
from dpsynth_assets.methods.fine_tuning.config import (
    ROWS_PER_FORWARD,
    CtclConfig,
    DpFineTuningConfig,
    GeneratorConfig,
    adapted_layers,
    generator_settings,
)
from dpsynth_assets.methods.fine_tuning.generators import (
    Conditioning,
    GeneratorInputs,
    bytes_beside_weights,
    generator_of,
    generator_prompts,
    public_pairs,
    stored_shapes,
    take_trained,
    training_room,
    trial_pairs,
)
from dpsynth_assets.methods.fine_tuning.private_training import (
    TrainingMethod,
    training_examples,
)
from dpsynth_assets.methods.fine_tuning.writing import (
    NO_TOPIC,
    TOPICS_DRAWN,
    DocumentWriter,
    equal_cells,
    open_writer,
    released_histogram,
    rows_on_demand,
    write_rows,
)
from dpsynth_assets.methods.inputs import (
    ProgressCallback,
    PublicInputs,
)
from dpsynth_assets.methods.rejection_sampling import RowFilter, accepted_work, settings_of
from dpsynth_assets.methods.stages import (
    FINETUNED_GENERATOR,
    MethodPlan,
    Stage,
    StageRelease,
    StageRun,
    Step,
    SyntheticCorpus,
    Writing,
)
from dpsynth_assets.methods.work import (
    CONDITIONAL_GENERATOR,
    LANGUAGE_MODEL,
    LANGUAGE_MODEL_WEIGHTS,
    PublicSizes,
    RunModel,
    Work,
)
from dpsynth_assets.models.conditional_generator.generator import load_conditional_generator
from dpsynth_assets.models.prompt_templates import PromptTemplates
from dpsynth_assets.privacy.guarantees import Release

GeneratorConfigT = TypeVar("GeneratorConfigT", bound=GeneratorConfig)


_PACKED_STEP = 0.01
"""Seconds of a step of the packed decoder beside its products."""


class GeneratorMethod(TrainingMethod[GeneratorConfigT]):
    """DP-Adam on (condition, document) pairs, then sampling from what came out."""

    def settings(self) -> dict[str, Any]:
        """Says beside which layers adapters are trained, where not beside all."""
        modules = None if self.config.lora_rank is None else adapted_layers(self.terms)
        named = {} if modules is None else {"lora_modules": list(modules)}
        return super().settings() | named

    has_keywords: bool = True
    """Whether conditions carry the keywords of a record's topic; rows then follow topics."""
    decoder_only: bool = False
    """Whether the base's language model is trained instead of its generator."""

    @property
    def public_inputs(self) -> frozenset[str]:
        """The model, topics for keywords, and public text for the loss that is reported."""
        model = "public_language_model" if self.decoder_only else "conditional_generator"
        topics = {"topic_model", "text_embedder"} if self.has_keywords else set()
        return frozenset({"public_corpus", model, *topics})

    def starts_from(self, public: PublicInputs) -> Any:
        """The loaded public model whose weights training starts from; only its name is used."""
        if self.decoder_only:
            return public.required("language_model")
        return public.required("conditional_generator")

    def cells(self, public: PublicInputs, known: Conditioning, rows: int) -> np.ndarray:
        """Label and topic of each row to be written: int64 (rows, 2).

        In the proportions of the released histogram, or labels equally often.

        Raises:
            ValueError: If there is no histogram, or its labels are not the declared ones.

        **Source** CTCL, section 3.4: rows in the proportions of the released histogram.
        """
        if not self.has_keywords:
            return equal_cells(known, rows)
        return released_histogram(public, known.labels).sample_cells(rows, public.seed)

    @property
    def fine_tunes_language_model(self) -> bool:
        """Whether a decoder is trained, or the base's generator is its language model."""
        declared = self.terms.generator
        return self.decoder_only or (declared is not None and declared.kind == "language_model")

    @property
    def follows_schema(self) -> bool:  # type: ignore[override]
        """Whether an engine serves the weights: an encoder-decoder follows no schema."""
        return self.fine_tunes_language_model and not self.terms.engine.is_endpoint

    @property
    def templates(self) -> PromptTemplates | None:
        """Prompts of the base's language model; None where conditions are aspect lines."""
        return generator_prompts(self.terms, self.config.document_type, keywords=self.has_keywords)

    def writing(self) -> Writing:
        """Rows are sampled by the engine that serves the weights, and judged."""
        config, judge = self.config, settings_of(self.config.rejection)
        served = () if self.fine_tunes_language_model else self._trained
        return Writing(
            reads=self.public_inputs | judge.public_inputs(),
            runs=(*served, self.terms.engine, *judge.models_run()),
            rows=config.rows,
            row_tokens=config.max_document_tokens,
            follows_topics=self.has_keywords,
            work=self.rows_work,
            write=self.write,
        )

    @property
    def _trained(self) -> tuple[RunModel, ...]:
        """Models that training computes with: weights in floating point."""
        in_floats = {LANGUAGE_MODEL: LANGUAGE_MODEL_WEIGHTS}
        return tuple(
            in_floats.get(str(each), each) for each in Step(reads=self.public_inputs).models
        )

    def _parameters(self, sizes: PublicSizes) -> float:
        served = self.fine_tunes_language_model
        return sizes.parameters.get(LANGUAGE_MODEL if served else CONDITIONAL_GENERATOR, 0.0)

    def stage_work(self, _plan: MethodPlan, sizes: PublicSizes) -> Work:
        """Counts the training."""
        tokens = sizes.text(self.config.max_document_tokens)
        if self.fine_tunes_language_model:
            tokens += sizes.frame(0)
        return self.training_work(self._parameters(sizes), tokens, sizes)

    def rows_work(self, _plan: MethodPlan, sizes: PublicSizes) -> Work:
        """Counts the rows that the engine or the packed decoder writes."""
        config = self.config
        longest, together = config.max_document_tokens, ROWS_PER_FORWARD

        def write(texts: float) -> Work:
            if not self.fine_tunes_language_model:
                products = texts * sizes.text(longest) * self._parameters(sizes) / 1e9
                return Work(
                    trained=products, seconds=ceil(texts / together) * longest * _PACKED_STEP
                )
            different = None if self.has_keywords else len(self.terms.labels)
            frame = sizes.frame(0)
            return sizes.writing(texts, frame, longest, rows=together, different=different)

        return accepted_work(config.rejection, config.rows, sizes, write)

    def stages(self) -> tuple[Stage, ...]:
        """The fine-tuned generator."""
        stage = Stage(
            name=FINETUNED_GENERATOR,
            title="Generator fine-tuned on the private records by DP-Adam.",
            needs_embeddings=self.has_keywords,
            in_parts=self.config.exact_sums,
            releases_language_model=self.fine_tunes_language_model,
            reads=self.public_inputs,
            runs=self._trained,
            work=self.stage_work,
            check=self.check_public,
            takes=self.room,
            draws=self.release,
        )
        return (stage,)

    def check_public(self, public: PublicInputs) -> None:
        """Takes the public model through half a step: one that cannot be trained costs nothing.

        Its weights are dropped afterwards, and read again once the stage is charged.

        Raises:
            TypeError: If a parameter cannot be clipped by example, or a layer mixes examples.
            ValueError: If an artifact is missing, or the trained model could not be decoded.
        """
        inputs = self.inputs(public)
        start = inputs.open(decodes_here=self.terms.engine.kind != "vllm")
        pairs = trial_pairs(inputs.known, self.config.max_document_tokens)
        self.check_trainable(start, inputs.encoded(start, pairs))

    def room(self, _stage: Stage, public: PublicInputs) -> Room:
        """Counts the weights and files of the public model, where they are in a folder here."""
        folder = Path(self.starts_from(public).source)
        trained = training_room(stored_shapes(folder), self.config.lora_rank)
        release = trained.release + bytes_beside_weights(folder)
        return Room(release=release, kept=trained.kept)

    def release(self, run: StageRun) -> Release[StageRelease]:
        """Trains a copy of the public generator and releases its weights.

        **Privacy** T Poisson-sampled Gaussian steps: the planned event, regardless of the records.
        The weights are post-processing of the noisy gradients; conditions are part of each record's
        own gradient.

        **Source** CTCL, section 3.3 (DP finetuning) and 4.1.3.
        """
        inputs = self.inputs(run.public)
        start = inputs.open()
        shown = inputs.encoded(start, public_pairs(run.public, inputs.known))
        start = replace(start, public_examples=shown)
        with training_examples(run.private, inputs, start) as private_examples:
            trained = self.train(run, start, private_examples)
        generator = generator_of(start)
        take_trained(generator, start.model, self.config.lora_rank)
        folder = run.checkpoint.filled(generator.save)
        return Release(value=StageRelease(facts=trained.value, files=folder), cost=trained.cost)

    def write(self, public: PublicInputs, rows: int, progress: ProgressCallback) -> SyntheticCorpus:
        """Samples rows from the released generator, through the dataset's engine.

        **Privacy** Post-processing of released weights and counts: any number of rows is free.
        """
        kind, known = self.terms.engine.kind, self.conditioning(public)
        cells = self.cells(public, known, rows)
        kept = RowFilter.of(self, public)
        with self._opened(public) as writer:
            if writer.kind != kind:
                progress(0.0, f"engine {writer.kind} writes: {kind} cannot serve this model")
            corpus = write_rows(writer, known, cells, public.seed, progress, kept=kept)
        return replace(corpus, facts={**corpus.facts, "engine_kind": writer.kind})

    @contextmanager
    def open_rows(self, public: PublicInputs) -> Iterator[RowSource]:
        """Opens the released generator for rows on demand, through the dataset's engine.

        **Privacy** Post-processing of released weights and counts: any number of rows is free.
        """
        from transformers import AutoTokenizer

        folder, known = public.released[FINETUNED_GENERATOR].folder, self.conditioning(public)
        with self._opened(public) as writer:
            tokenizer = AutoTokenizer.from_pretrained(folder)
            yield rows_on_demand(
                writer,
                known,
                self.cells(public, known, TOPICS_DRAWN),
                lambda text: len(tokenizer.encode(text, add_special_tokens=False)),
            )

    def _opened(self, public: PublicInputs) -> AbstractContextManager[DocumentWriter]:
        return open_writer(
            public.released[FINETUNED_GENERATOR].folder,
            self.terms.engine,
            self.config,
            device=self.starts_from(public).device,
            templates=self.templates,
            form=form_of(self),
        )

    def prompts(self, folder: Path) -> dict[str, str]:
        """Text that a row of each label is written after, where no topic is asked for.

        Args:
            folder: Released weights.
        """
        generator = load_conditional_generator(folder, device="cpu", templates=self.templates)
        known = self.conditioning(PublicInputs(), keywords=False)
        encoder, bound = generator.encoder, generator.max_condition_tokens
        conditions = [known.text(label, NO_TOPIC) for label in range(len(known.labels))]
        return {
            label: str(generator.tokenizer.decode(ids))
            for label, ids in zip(
                known.labels, encoder.condition_ids(conditions, bound), strict=True
            )
        }

    def inputs(self, public: PublicInputs) -> GeneratorInputs:
        """What a training starts from, in any process."""
        start = self.starts_from(public)
        return GeneratorInputs(
            source=start.source,
            device=start.device,
            config=self.config,
            modules=adapted_layers(self.terms),
            known=self.conditioning(public),
        )

    def conditioning(self, public: PublicInputs, *, keywords: bool = True) -> Conditioning:
        """Reads off declared facts how conditions are written.

        Args:
            public: Holds the topics.
            keywords: Whether conditions carry those of a record's topic, where the method has any.

        Raises:
            ValueError: If keywords are asked for and there is no topic model.
        """
        terms, templates = self.terms, self.templates
        said = len(terms.labels) > 1 or templates is not None
        asked = keywords and self.has_keywords
        return Conditioning(
            labels=terms.labels,
            label_texts=terms.label_texts if said else ("",) * len(terms.labels),
            document_type=self.config.document_type,
            topic_model=public.required("topic_model") if asked else None,
            templates=templates,
        )


LIKELY = 0.9
"""Rows come from tokens of this probability together: with .95 long ones wander off their subject.

Reviews of 160 tokens closed 73 % of MAUVE's gap with .9, 57 with .95 and 61 with .8.
"""


def _of_language_model(facts: DeclaredFacts) -> tuple[Candidate, ...]:
    """The base's language model, fine-tuned at the settings that suit it."""
    settings = {"max_document_tokens": facts.text_tokens, "rows": facts.rows, "top_p": LIKELY}
    asks = f"{NUMBER}; topic_histogram"
    return (Candidate(line="ctcl", settings=settings, declared=TOPICS, base=FINE_TUNED, asks=asks),)


class Ctcl(GeneratorMethod[CtclConfig]):
    """Tan et al. 2025: topic keywords as conditions, rows in the proportions of the histogram."""

    name = "ctcl"
    title = "CTCL: conditional generator and topic histogram"
    paper = (
        "Tan et al. 2025, Synthesizing privacy-preserving text data via finetuning without "
        "finetuning billion-scale LLMs"
    )
    arxiv = "2503.12347"
    config_type = CtclConfig
    advice = Advice(defaults=generator_settings, candidates=_of_language_model)


class DpFineTuning(GeneratorMethod[DpFineTuningConfig]):
    """Yue et al. 2023, on an encoder-decoder or a decoder-only model, whole or by LoRA."""

    name = "dp_fine_tuning"
    title = "DP fine-tuning (Yue et al. 2023)"
    paper = (
        "Yue et al. 2023, Synthetic text generation with differential privacy: a simple and "
        "practical recipe"
    )
    arxiv = "2210.14348"
    config_type = DpFineTuningConfig
    advice = Advice(
        defaults=generator_settings,
        unadvised="it is ctcl without topics; on Yelp ctcl was better (docs/benchmarks.md)",
    )

    @property
    def has_keywords(self) -> bool:  # type: ignore[override]
        """Whether the settings ask for keywords."""
        return self.config.keywords

    @property
    def decoder_only(self) -> bool:  # type: ignore[override]
        """Whether the base's language model is trained instead of its generator."""
        return self.config.architecture == "decoder_only"
