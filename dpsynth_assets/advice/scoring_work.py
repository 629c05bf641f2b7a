"""Counts the work of an evaluation: references, embedded rows, and models trained or queried.

**Privacy** Settings and declared facts alone.
"""

from collections.abc import Iterator
from math import ceil

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.dataset_plan import DatasetPlan
from dpsynth_assets.methods.planning import SPARE, examples_shown, reference_settings
from dpsynth_assets.methods.work import LANGUAGE_MODEL, PublicSizes, Work

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


def _read_rows(spec: PrivateDatasetSpec, sizes: PublicSizes, scored: int) -> Work:
    """Texts that the language model reads, in float weights, to score rows of each corpus."""
    from dpsynth_assets.metrics import in_context, judged
    from dpsynth_assets.metrics.text import FLUENCY_ROWS

    if not spec.evaluation.reads_rows:
        return Work()
    rows = scored * FLUENCY_ROWS
    if spec.evaluation.judged:
        rows += 2 * judged.CONTROL_ROWS + scored * judged.JUDGED_ROWS
    if spec.evaluation.in_context:
        rows += scored * in_context.RUNS * (in_context.TESTED_ROWS + in_context.SHOTS)
    tokens = rows * sizes.text(judged.TOKENS)
    return Work(trained=tokens * sizes.parameters[LANGUAGE_MODEL] / 1e9)
