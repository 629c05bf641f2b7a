"""Estimates the minutes of a run on this machine: the work of every step times measured speed.

They are of a run from an empty home; what is stored already takes none of them.

**Privacy** Settings, declared facts and public texts alone: where no number of records is declared,
as many are counted as there are public documents.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dpsynth_assets.advice.scoring_work import work_of_scores
from dpsynth_assets.advice.speed import MachineSpeed, SpeedUnknownError, machine_speed
from dpsynth_assets.attacks.catalogue import Attack
from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.datasets.standing import declared_base
from dpsynth_assets.methods.attack_runs import attacked
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod, PlannedShared
from dpsynth_assets.methods.plan_cache import remembered
from dpsynth_assets.methods.work import CONDITIONAL_GENERATOR, LANGUAGE_MODEL, PublicSizes, Work
from dpsynth_assets.public_base.making import (
    documents_here,
)

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


def _elsewhere(part: PlannedMethod | PlannedShared) -> str:
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
