"""Estimates the minutes of a run on this machine: the work of every step times measured speed.

They are of a run from an empty home; what is stored already takes none of them.

**Privacy** Settings, declared facts and public texts alone: where no number of records is declared,
as many are counted as there are public documents.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from dpsynth_assets.advice.speed import MachineSpeed, SpeedUnknownError, machine_speed
from dpsynth_assets.attacks.catalogue import Attack
from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.datasets.standing import declared_base
from dpsynth_assets.methods.attack_runs import attacked
from dpsynth_assets.methods.dataset_plan import DatasetPlan, Planned
from dpsynth_assets.methods.plan_cache import remembered
from dpsynth_assets.methods.planning import SPARE, examples_shown, reference_settings
from dpsynth_assets.methods.work import CONDITIONAL_GENERATOR, LANGUAGE_MODEL, PublicSizes, Work
from dpsynth_assets.public_base.making import documents_here

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
_CLUSTERS = Work(seconds=3.0)
_TOPICS = Work(seconds=8.0)
_KEYS = Work(read=23_000.0, steps=90.0, written=8_300.0)  # planted keys in front of one method
_READING_A_RECORD = 2e-4


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


TRIAL = "Measuring the speed of this machine, which is done once and takes seconds"
"""What a person is told who waits for a trial."""


def whole_in_words(minutes: float | None, unknown: str) -> str:
    """Says how long a run takes here, or why that is unknown."""
    if minutes is None:
        return f"Minutes on this machine are not known, since {unknown}."
    about = "1 minute" if minutes < 1.5 else f"{minutes:.0f} minutes"
    return (
        f"The whole run takes about {about} on this machine if its folder is empty and nothing "
        "else runs; stored results make it shorter."
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
        each.folder: sum((step.work(each.plan, sizes) for step in each.steps), start=Work())
        for each in parts
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


def _elsewhere(part: Planned) -> str:
    """Why a method's minutes are unknown: its models run where no trial was made."""
    for step in part.steps:
        for model in step.models:
            if not isinstance(model, EngineSpec):
                continue
            if model.is_endpoint or model.takes_devices:
                return f"{part.folder} uses an unmeasured engine of kind {model.kind}"
            if model.model is not None:
                return f"{part.folder} runs {model.model}, whose speed was not measured"
    return ""


def _around(
    spec: PrivateDatasetSpec, planned: DatasetPlan, base: PublicDataSpec, sizes: PublicSizes
) -> Work:
    """What is no method's: public base, records, audits, references and scores."""
    embedded = sizes.text(base.text_embedder.max_tokens)
    works = [
        _START,
        _AUDITS,
        _base_work(planned, base, sizes),
        *work_of_scores(spec, planned, sizes, embedded),
        Work(embedded=sizes.records * embedded, seconds=sizes.records * _READING_A_RECORD),
        *[_KEYS] * len(attacked(planned, Attack.RECONSTRUCTION)),
    ]
    return sum(works, start=Work())


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


# Counts the work of an evaluation: references, embedded rows, and models trained or queried.
#
# **Privacy** Settings and declared facts alone.


_SCORES_OF_A_CORPUS = Work(seconds=3.0)
"""By benchmarks/run_times.py, as the constants of `minutes.py`."""

_OF_TRAINING = 3.0
"""Passes that a step of training counts as: one forwards, and twice that backwards (measured with
the default encoder on 160 news reports: 29 s expected, 31 s taken)."""

_BERT = 85e6
"""Numbers in the layers of BERT, which an encoder that is not on this machine counts as."""


def work_of_scores(
    spec: PrivateDatasetSpec, planned: DatasetPlan, sizes: PublicSizes, embedded: float
) -> Iterator[Work]:
    """Yields the work of references and scores.

    Args:
        spec: A cohort's declaration.
        planned: Its plan.
        sizes: Lengths of texts and numbers of records.
        embedded: Tokens of a text that the base's embedder reads.
    """
    scored = 1 + 2 * int(spec.evaluation.references) + len(planned.corpora)  # 1: real data.
    yield _references(spec, planned, sizes)
    yield Work(embedded=_scored_texts(spec, planned) * embedded)
    yield from [_SCORES_OF_A_CORPUS] * scored
    yield _encoders(spec, planned, sizes, scored)
    yield _read_rows(spec, sizes, scored)


def _references(spec: PrivateDatasetSpec, planned: DatasetPlan, sizes: PublicSizes) -> Work:
    """The floor, without examples, and the ceiling, with real ones in its prompts."""
    if not spec.evaluation.references:
        return Work()
    config = reference_settings(planned)
    rows, longest = ceil(SPARE * spec.evaluation.reference_rows), config.max_document_tokens
    prompts = (sizes.frame(0), sizes.prompt(examples_shown(planned), config.max_example_tokens))
    return sum([sizes.writing(rows, prompt, longest, rows=256) for prompt in prompts], start=Work())


def _scored_texts(spec: PrivateDatasetSpec, planned: DatasetPlan) -> float:
    """Rows that are embedded to be scored."""
    asked = spec.evaluation
    return 2 * asked.reference_rows * int(asked.references) + sum(
        min(asked.rows, each.writing.rows) for each in planned.corpora if each.writing is not None
    )


def _encoders(
    spec: PrivateDatasetSpec, planned: DatasetPlan, sizes: PublicSizes, scored: int
) -> Work:
    """Encoders that are fine-tuned on real data and on every corpus, all passes, and tested."""
    from dpsynth_assets.models.classifiers import multiplications

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


def _read_rows(spec: PrivateDatasetSpec, sizes: PublicSizes, scored: int) -> Work:
    """Texts that the language model reads, in float weights, to score rows of each corpus."""
    from dpsynth_assets.metrics import read_rows
    from dpsynth_assets.metrics.text import FLUENCY_ROWS

    if not spec.evaluation.reads_rows:
        return Work()
    rows = scored * FLUENCY_ROWS
    if spec.evaluation.judged:
        rows += 2 * read_rows.CONTROL_ROWS + scored * read_rows.JUDGED_ROWS
    if spec.evaluation.in_context:
        rows += scored * read_rows.RUNS * (read_rows.TESTED_ROWS + read_rows.SHOTS)
    tokens = rows * sizes.text(read_rows.JUDGED_TOKENS)
    return Work(trained=tokens * sizes.parameters[LANGUAGE_MODEL] / 1e9)
