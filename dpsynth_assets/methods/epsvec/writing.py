"""Rows from released shots and vectors: any number of them, of any length, at no further cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpsynth_assets.methods.capabilities import RowSampling, RowSource
from dpsynth_assets.methods.epsvec.config import EpsVecConfig
from dpsynth_assets.methods.epsvec.shots import FixedShots, public_seed
from dpsynth_assets.methods.epsvec.states import Scaffold
from dpsynth_assets.methods.epsvec.vectors import DatasetVectors
from dpsynth_assets.methods.inputs import ProgressCallback
from dpsynth_assets.methods.rejection_sampling import (
    RowFilter,
    accepted_rows,
    round_seed,
    write_accepted,
)
from dpsynth_assets.methods.stages import SyntheticCorpus
from dpsynth_assets.models.engines.decoder_engine import LocalEngine
from dpsynth_assets.models.engines.protocol import Generation, Provenance, Sampling


@dataclass(frozen=True, kw_only=True)
class Writer:
    """Writes rows of given labels; a pure function of released and public values.

    Attributes:
        engine: Runs the model.
        scaffold: Writes the prompts.
        shots: Fixed shots of each label.
        vectors: Released directions; None without steering.
        config: How rows are sampled and steered.
        labels: The declared labels.
        seed: Seed of public randomness.
    """

    engine: LocalEngine
    scaffold: Scaffold
    shots: FixedShots
    vectors: DatasetVectors | None
    config: EpsVecConfig
    labels: tuple[str, ...]
    seed: int

    def label_of(self, row: int) -> int:
        """Labels take turns: each gets as many rows."""
        return row % len(self.labels)

    def __call__(
        self, places: Sequence[int], round_number: int, progress: ProgressCallback
    ) -> list[Generation]:
        """Writes one text for each place of the corpus, label by label.

        **Source** EPSVec, equation 3; Algorithm 2, lines 5 to 9.
        """
        written: dict[int, Generation] = {}  # [epsvec A2:L5]
        for label in range(len(self.labels)):
            mine = [place for place in places if self.label_of(place) == label]
            if mine:
                done = len(written)

                def report(share: float, done: int = done, count: int = len(mine)) -> None:
                    progress((done + share * count) / len(places), "writing rows")

                texts = self.texts(label, len(mine), round_number, report)
                written |= dict(zip(mine, texts, strict=True))
        return [written[place] for place in places]

    def texts(self, label: int, count: int, round_number: int, report: Any) -> list[Generation]:
        """Writes texts of one label; another round gives other texts."""
        seed = round_seed(self.seed, round_number)
        free = Sampling(
            temperature=self.config.temperature,
            top_p=self.config.top_p,
            max_new_tokens=self.config.max_new_tokens,
            seed=public_seed(seed, "rows", label),
            stop=self.scaffold.stop,
        )
        sampling = self.scaffold.form.constrained(free)
        shots = self.shots.drawn(label, count, self.config, public_seed(seed, "prompts", label))
        prompts = [self.scaffold.prompt(label, each) for each in shots]
        engine = self._steered(label)  # [epsvec A2:L6]
        return engine.generate(
            prompts, sampling, provenance=self.provenance, progress=report
        )  # [epsvec A2:L7] [epsvec A2:L8]

    @property
    def provenance(self) -> Provenance:
        """Provenance of prompts: fixed shots that records chose are released text."""
        return Provenance.RELEASED if self.shots.noisy else Provenance.PUBLIC

    def _steered(self, label: int) -> LocalEngine:
        if self.vectors is None:
            return self.engine
        directions = dict(zip(self.vectors.layers, self.vectors.directions[label], strict=True))
        strengths = steering_strengths(self.config, self.vectors, label)
        added = {layer: strength * directions[layer] for layer, strength in strengths.items()}
        return self.engine.steered(added)


def rows_on_demand(writer: Writer) -> RowSource:
    """Rows of chosen labels from released shots and vectors, the rows of a label together.

    Tokens are words, where an endpoint does not tell its tokens.
    """
    codec = writer.scaffold.codec

    def write(labels: Sequence[int], sampling: RowSampling, seed: int) -> list[str]:
        config = writer.config.model_copy(update=sampling.asked)
        asked = replace(writer, config=config, seed=seed)
        rows: dict[int, str] = {}
        for label in sorted(set(labels)):
            mine = [place for place, each in enumerate(labels) if each == label]
            made = asked.texts(label, len(mine), 0, None)
            rows |= dict(zip(mine, (writer.scaffold.read(each) for each in made), strict=True))
        return [rows[place].strip() for place in range(len(labels))]

    return RowSource(
        labels=writer.labels,
        engine=writer.engine.name,
        longest=writer.config.max_new_tokens,
        write=write,
        tokens=lambda text: len(text.split() if codec is None else codec.encode(text)),
    )


def steering_strengths(
    config: EpsVecConfig, vectors: DatasetVectors, label: int
) -> dict[int, float]:
    """Computes how much of each layer's direction is added, in units of the residual stream.

    Raises:
        ValueError: If strengths are as many as neither one nor layers, or it is unknown how far
            records lie from negatives.
    """
    layers = config.layers or vectors.layers
    strengths = config.strengths if len(config.strengths) > 1 else config.strengths * len(layers)
    if len(strengths) != len(layers):
        raise ValueError(
            f"Expected one strength, or one for each of {len(layers)} layers, got {len(strengths)}."
        )
    units = dict(zip(vectors.layers, _units(config, vectors, label), strict=True))
    return {
        layer: strength * units[layer] for layer, strength in zip(layers, strengths, strict=True)
    }


def _units(config: EpsVecConfig, vectors: DatasetVectors, label: int) -> list[float]:
    """Computes what strength 1 is at each released layer.

    What is added to a residual stream stays in it, so layers share a difference between them.
    """
    if config.strength_unit == "absolute":
        return [1.0] * len(vectors.layers)
    if config.strength_unit == "clip_bound":
        bounds: list[float] = vectors.clip_bounds.tolist()
        return bounds
    if vectors.lengths is None:
        raise ValueError(
            "Expected vectors stored with the distance of records from negatives for "
            "strength_unit: difference, got others. Set strength_unit: clip_bound, or declare "
            "public_facts.records and release vectors again, which is charged."
        )
    lengths: list[float] = (vectors.lengths[label] / len(vectors.layers)).tolist()
    return lengths


def write_corpus(
    writer: Writer, kept: RowFilter, rows: int, progress: ProgressCallback
) -> SyntheticCorpus:
    """Writes rows, as many of each label; those that are not kept are written again.

    **Privacy** Post-processing of released shots and vectors: any number of rows is free.

    **Source** EPSVec, Algorithm 2, lines 5 to 10; rejection by a judge: appendix D.4.
    """
    before, read = writer.engine.spent, writer.scaffold.read
    made, judged = write_accepted(writer, kept, rows, progress, text_of=read)
    labels = [writer.labels[writer.label_of(row)] for row in range(len(made))]
    texts = [None if each is None else read(each) for each in made]
    frame = accepted_rows(texts, label=labels)
    finished = [each.finished for each in made if each is not None]
    facts = {
        "rows": frame.height,
        "ended_by_the_model": round(sum(finished) / max(1, len(finished)), 4),
        "engine": writer.engine.name,
        **writer.engine.spent_since(before),
        **judged,
    }
    return SyntheticCorpus(rows=frame, facts=facts)  # [epsvec A2:L10]
