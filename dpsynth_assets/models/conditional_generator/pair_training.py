"""Trains a named generator further on public (condition, document) pairs, as CTCL prepares its own.

Pairs are read from disk as they are needed. Weights and the moments of AdamW are kept at times, in
safetensors and JSON: a killed run continues from there and ends with the weights of an unbroken
one, bit for bit on one machine. Nothing is drawn: pairs come in the order of the file, and dropout
is off.

**Source** Tan et al. 2025, section 3.1: the task, AdamW and a cosine. [ctcl S3.1]
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch  # noqa: TID253 (opened with weights)

from dpsynth_assets.datasets.public_spec import PairTrainingSpec
from dpsynth_assets.files.kept import version_of
from dpsynth_assets.files.whole import digest_of, replaced_whole
from dpsynth_assets.models.conditional_generator.encoding import PairBatch, aspects_text
from dpsynth_assets.models.conditional_generator.generator import ConditionalGenerator
from dpsynth_assets.models.fine_tuning.training import RunState
from dpsynth_assets.models.language_model import in_parts, token_losses

Pair = tuple[str, str]
_WARMUP, _CLIP, _TOLD = 0.05, 1.0, 100
"""Share of the steps to warm up in; largest norm of a gradient; lines of progress at most."""


@dataclass(frozen=True)
class DiskCheckpoint:
    """A folder that holds the last state of an unfinished run (`files.whole.Checkpoint`).

    Attributes:
        place: The folder; a state that is not finished yet has another name beside it.
    """

    place: Path

    @property
    def saved(self) -> Path | None:
        """The folder, where there is one."""
        return self.place if self.place.is_dir() else None

    def filled(self, write: Callable[[Path], object]) -> Path:
        """Writes a state whole in the place of the last one."""
        with replaced_whole(self.place) as whole:
            write(whole)
        return self.place

    def save(self, folder: Path) -> None:
        """It is in its place already."""


def pairs_version(spec: PairTrainingSpec) -> str:
    """Digest of the pairs and of all settings that the weights depend on.

    Raises:
        ValueError: There is no such file.
    """
    _opened(spec)
    settings = spec.model_dump(exclude={"path", "checkpoint_minutes"})
    return version_of(settings, digest_of(Path(spec.path)))


def read_pairs(spec: PairTrainingSpec, start: int = 0) -> Iterator[Pair]:
    """Yields the pairs of the file in their order, again and again, from pair `start` on.

    Raises:
        ValueError: The file is missing or no Parquet, lacks a column, or has less than one batch.
    """
    file = _opened(spec)
    columns = [spec.document, *([spec.condition] if spec.condition else spec.aspects.values())]
    skipped = start % file.metadata.num_rows
    while True:
        for part in file.iter_batches(columns=list(dict.fromkeys(columns))):
            for row in part.slice(min(skipped, len(part))).to_pylist():
                yield _condition(spec, row), _text(row[spec.document])
            skipped = max(0, skipped - len(part))


def train_on_pairs(
    generator: ConditionalGenerator,
    spec: PairTrainingSpec,
    checkpoint: DiskCheckpoint,
    report: Callable[[float, str], None],
) -> None:
    """Trains a generator in place, from its last checkpoint on.

    Args:
        generator: Opened for this training alone, in float32.
        spec: Pairs and settings.
        checkpoint: Where an unfinished run of the same pairs, settings and model keeps its state.
        report: Told the share done and the mean loss of a token, in nats.

    Raises:
        ValueError: The pairs cannot be read, or the checkpoint is another run's.
    """
    model = generator.model.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    state = RunState(model, optimizer, {"pairs": pairs_version(spec), "start": generator.name})
    (step, _), saved = state.load(checkpoint), time.monotonic()
    pairs = read_pairs(spec, step * spec.batch)
    while step < spec.steps:
        loss = _step(generator, optimizer, list(islice(pairs, spec.batch)), step, spec)
        step += 1
        due = time.monotonic() - saved >= 60 * spec.checkpoint_minutes
        if due or step == spec.steps:
            state.save(checkpoint, step, [])
            saved = time.monotonic()
        if step % max(1, spec.steps // _TOLD) == 0:
            report(step / spec.steps, f"step {step} of {spec.steps}, public loss {loss:.3f}")
    model.requires_grad_(False)


def _step(
    generator: ConditionalGenerator,
    optimizer: Any,
    pairs: Sequence[Pair],
    step: int,
    spec: PairTrainingSpec,
) -> float:
    """Takes one step by the mean loss of the documents' tokens, and returns that."""
    model, total = generator.model, 0.0
    batches = [_encoded(generator, part) for part in in_parts(pairs, spec.together)]
    tokens = sum(int((batch.labels >= 0).sum()) for batch in batches)
    for batch in batches:
        logits = model(**batch.inputs, use_cache=False).logits
        loss = token_losses(logits, batch.labels).sum() / tokens
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
    for group in optimizer.param_groups:
        group["lr"] = spec.learning_rate * _share_of_rate(step / spec.steps)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total


def _share_of_rate(done: float) -> float:
    """Linear warm-up, then half a cosine, never zero."""
    if done < _WARMUP:
        return 0.1 + 0.9 * done / _WARMUP
    return 0.02 + 0.49 * (1.0 + math.cos(math.pi * (done - _WARMUP) / (1.0 - _WARMUP)))


def _encoded(generator: ConditionalGenerator, pairs: Sequence[Pair]) -> PairBatch:
    encoder = generator.encoder
    conditions = encoder.condition_ids([pair[0] for pair in pairs], generator.max_condition_tokens)
    documents = encoder.document_ids([pair[1] for pair in pairs], generator.max_document_tokens)
    return encoder.pad(conditions, documents).to(generator.device)


def _opened(spec: PairTrainingSpec) -> Any:
    """Opens the file; reads its head alone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = {spec.document, *([spec.condition] if spec.condition else spec.aspects.values())}
    try:
        file = pq.ParquetFile(spec.path)
        missing = wanted.difference(file.schema_arrow.names)
    except (OSError, pa.ArrowInvalid):
        missing = wanted
    if missing:
        raise ValueError(
            f"Expected a Parquet file of pairs at {spec.path}, got none with column "
            f"{min(missing)}. Correct conditional_generator.pairs."
        )
    if file.metadata.num_rows < spec.batch:
        raise ValueError(
            f"Expected at least one batch of {spec.batch} pairs in {spec.path}, got "
            f"{file.metadata.num_rows}. Lower conditional_generator.pairs.batch, or add pairs."
        )
    return file


def _condition(spec: PairTrainingSpec, row: Mapping[str, Any]) -> str:
    if spec.condition is not None:
        return _text(row[spec.condition])
    return aspects_text({name: _text(row[column]) for name, column in spec.aspects.items()})


def _text(value: Any) -> str:
    """A value as text; lists, of keywords say, with commas between."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
