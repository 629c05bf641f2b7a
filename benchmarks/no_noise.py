"""The methods without clipping and without noise, for public records alone: ε = ∞.

What a method loses to privacy is the distance to these, and what it loses anyway is their distance
to real data. A large ε is not the same: records are still clipped. Nothing here is part of the
product, whose mechanisms have no such setting. Each writer calls public parts of a method and puts
in the place of its mechanism a plain mean of logits, a plain mean of vectors, plain votes or plain
AdamW.

**Privacy** None. Every writer asks for a dataset of a benchmark that is declared `public: true`.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from dpsynth_assets.clustering import nearest_center
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.benchmark_spec import BenchmarkDataset
from dpsynth_assets.methods.base import form_of
from dpsynth_assets.methods.dataset_plan import cohort_terms
from dpsynth_assets.methods.epsvec.config import CANDIDATES, NEGATIVES, SHOTS
from dpsynth_assets.methods.epsvec.negatives import Negatives
from dpsynth_assets.methods.epsvec.shots import FixedShots, ShotVotes, read_candidates
from dpsynth_assets.methods.epsvec.states import open_reader
from dpsynth_assets.methods.epsvec.vectors import DatasetVectors
from dpsynth_assets.methods.epsvec.writing import Writer, write_corpus
from dpsynth_assets.methods.evolution.apis import open_api
from dpsynth_assets.methods.evolution.method import write_rows as write_survivors
from dpsynth_assets.methods.evolution.population import last_survivors
from dpsynth_assets.methods.evolution.votes import nearest_candidates
from dpsynth_assets.methods.fine_tuning.generators import (
    Conditioning,
    generator_of,
    take_trained,
)
from dpsynth_assets.methods.fine_tuning.private_training import training_settings
from dpsynth_assets.methods.fine_tuning.writing import equal_cells, open_writer, write_rows
from dpsynth_assets.methods.inputs import (
    PrivateInputs,
    PublicInputs,
    Released,
    label_indices,
    silent,
)
from dpsynth_assets.methods.private_prediction.corpus import corpus_rows
from dpsynth_assets.methods.private_prediction.decoding import (
    context_prompts,
    decoder_of,
    prompt_columns,
)
from dpsynth_assets.methods.private_prediction.loop import (
    Draws,
    GenerationRules,
    generate_documents,
)
from dpsynth_assets.methods.registry import bound_method
from dpsynth_assets.methods.rejection_sampling import RowFilter
from dpsynth_assets.privacy.token_selection import NextLogits
from dpsynth_assets.public_base import PublicBase
from dpsynth_assets.public_base.making import load_public_inputs

if TYPE_CHECKING:
    import torch


_READ = ("public_clusters", "public_corpus", "public_language_model", "text_embedder")
"""What some writer reads beside what its method names."""


@dataclass(frozen=True, kw_only=True)
class Plain:
    """A method bound to public records.

    Attributes:
        method: The method, with its settings and terms.
        public: What its stages read.
        records: The records with their embeddings; anyone may read them.
        clusters: Public centres; None where the method has none.
    """

    method: Any
    public: PublicInputs
    records: PrivateInputs
    clusters: np.ndarray | None = field(default=None, repr=False)

    @property
    def labels(self) -> np.ndarray:
        """(N,) place of each record's label."""
        return label_indices(self.records.records["label"], self.method.terms.labels)

    def kept(self) -> RowFilter:
        """Decides which rows are kept, as the method does."""
        method = self.method
        return RowFilter.of(method, self.public)


def require_public(dataset: object) -> None:
    """Refuses records that are not declared to be public.

    Args:
        dataset: A declaration in a benchmark; a dataset file of private records is none.

    Raises:
        ValueError: As said.
    """
    if not isinstance(dataset, BenchmarkDataset) or dataset.public is not True:
        raise ValueError(
            "Expected a dataset of a benchmark with public: true, got another. Without noise a "
            "corpus repeats its records: there is no such corpus of private ones."
        )


def without_noise(
    method: str,
    dataset: BenchmarkDataset,
    records: pl.DataFrame,
    base: PublicBase,
    settings: Mapping[str, Any],
    *,
    rows: int,
    seed: int,
) -> pl.DataFrame:
    """Writes a corpus by a method without clipping and noise.

    Args:
        method: A name in `WRITERS`.
        dataset: Declaration of the records, `public: true`.
        records: Columns `text` and `label`.
        base: Public documents and models.
        settings: Of the method, as in a dataset file.
        rows: Rows to write.
        seed: Of everything that is drawn.

    Returns:
        Columns `text` and `label`.

    Raises:
        ValueError: The dataset is not declared to be public.
    """
    require_public(dataset)
    plain = _bound(method, dataset, records, base, settings, seed)
    return WRITERS[method](plain, rows).select("text", "label").head(rows)


def _bound(
    method: str,
    dataset: BenchmarkDataset,
    records: pl.DataFrame,
    base: PublicBase,
    settings: Mapping[str, Any],
    seed: int,
) -> Plain:
    """Binds a method as a dataset file would; nothing is planned or charged."""
    labels = sorted(set(records["label"]) - {""})
    facts = {"labels": {"label": {each: dataset.label_texts.get(each, each) for each in labels}}}
    fields = {
        "name": "public_records",
        "source": {"path": "a frame in memory", "version": "1"},
        "columns": {"text": "text", **({"labels": ["label"]} if labels else {})},
        "public_facts": facts if labels else {},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "methods": [{"method": method, "settings": dict(settings)}],
        "public_data": base.spec.name,
        "cluster_histogram": {},
        "topic_histogram": {},
    }
    spec = PrivateDatasetSpec.model_validate(fields)
    bound = bound_method(method, dict(settings), cohort_terms(spec, base.spec))
    steps = [*bound.stages(), bound.writing()]
    names = {name for step in steps if step is not None for name in step.reads}
    values = base.values(sorted({*names, *_READ}))
    public = load_public_inputs(
        values, base.models, bound.terms, bound.terms.engine, salt="public", seed=seed
    )
    numbered = [str(number) for number in range(records.height)]
    ids = pl.DataFrame({"record_id": numbered, "unit_id": numbered})
    given = pl.concat([ids, records.select("text", "label")], how="horizontal")
    vectors = public.text_embedder.embed(given["text"].to_list(), public=True)
    return Plain(
        method=bound,
        public=public,
        records=PrivateInputs(records=given, embeddings=vectors),
        clusters=values["public_clusters"],
    )


@dataclass(frozen=True)
class PlainMean:
    """Draws from the mean of a batch's logits as they are.

    Attributes:
        temperature: Of the draws.
        generator: Seeded: nothing here is private.
    """

    temperature: float
    generator: "torch.Generator"

    def __call__(self, logits: NextLogits) -> Draws:
        """Draws one token for each active batch; see `TokenSelector`."""
        import torch

        rows_of = (logits.private[logits.batch_of_row == batch] for batch in logits.active)
        means = torch.stack([rows.float().mean(0) for rows in rows_of])
        shares = torch.softmax(means / self.temperature, dim=1)
        return Draws.all_private(
            torch.multinomial(shares, 1, generator=self.generator)[:, 0].numpy()
        )


def predicted(plain: Plain, rows: int) -> pl.DataFrame:
    """Private prediction in clusters: documents from the plain mean of a batch's logits.

    One document a batch, whose records are of one label and cluster; clusters by their size.
    """
    import torch

    method, model = plain.method, plain.public.language_model
    config, terms = method.config, method.terms
    columns = prompt_columns(
        model, terms.label_texts, config.examples_per_context, config.max_example_tokens
    )
    rules = GenerationRules(
        tokens_per_batch=config.max_document_tokens,
        max_document_tokens=config.max_document_tokens,
        min_tokens_for_new_document=config.max_document_tokens,
        end_token_id=model.end_token_id,
        pad_token_id=model.pad_token_id,
        prompt_columns=columns,
    )
    generator = torch.Generator().manual_seed(plain.public.seed)
    batches = _batches(plain, rows)
    select, decoder = PlainMean(config.temperature, generator), decoder_of(terms, model)
    texts = plain.records.records["text"].to_list()
    tokens, labels = [], []
    for start in range(0, len(batches), config.batches_per_forward):
        wave = batches[start : start + config.batches_per_forward]
        prompts = [
            context_prompts(
                model,
                terms.label_texts[label],
                [[texts[row] for row in context] for context in contexts],
                max_example_tokens=config.max_example_tokens,
                columns=columns,
            )
            for label, contexts in wave
        ]
        for document in generate_documents(decoder, prompts, select, rules):
            tokens.append(document.tokens)
            labels.append(terms.labels[wave[document.batch][0]])
    return corpus_rows(
        model, form_of(method), longest=config.max_document_tokens, tokens=tokens, labels=labels,
        batches=[None] * len(tokens), clusters=[None] * len(tokens),
    )  # fmt: skip


def _batches(plain: Plain, count: int) -> list[tuple[int, list[list[int]]]]:
    """Label and contexts of each batch, drawn from the records of a drawn record's cell."""
    draw, config = np.random.default_rng(plain.public.seed), plain.method.config
    cells = plain.labels * len(plain.clusters)
    cells = cells + nearest_center(plain.records.vectors, plain.clusters)
    found = []
    for first in draw.integers(len(cells), size=count).tolist():
        alike = np.flatnonzero(cells == cells[first])
        size = min(config.expected_batch_size * config.examples_per_context, len(alike))
        chosen = draw.choice(alike, size=size, replace=False).tolist()
        step = config.examples_per_context
        contexts = [chosen[start : start + step] for start in range(0, len(chosen), step)]
        found.append((int(plain.labels[first]), contexts))
    return found


def steered(plain: Plain, rows: int) -> pl.DataFrame:
    """EPSVec: shots by plain votes, and the plain mean difference as the vector."""
    method, terms = plain.method, plain.method.terms
    with tempfile.TemporaryDirectory() as scratch:
        folders = {name: Path(scratch) / name for name in (CANDIDATES, SHOTS, NEGATIVES)}
        for folder in folders.values():
            folder.mkdir()
        done = {
            name: Released(reservation="", facts={}, folder=folder)
            for name, folder in folders.items()
        }
        method.make_candidates(plain.public, folders[CANDIDATES], silent)
        shots = plain_shots(plain, read_candidates(folders[CANDIDATES]))
        shots.save(folders[SHOTS])
        public = replace(plain.public, released=done)
        method.make_negatives(public, folders[NEGATIVES], silent)
        negatives = Negatives.load(folders[NEGATIVES])
    engine = plain.public.engine
    leading = shots.leading(method.config.shots)
    reader = open_reader(engine, method.config, terms, leading, negatives.layers)
    writer = Writer(
        engine=engine,
        scaffold=reader.scaffold,
        shots=shots,
        vectors=plain_vectors(plain, reader, negatives),
        config=method.config,
        labels=terms.labels,
        seed=plain.public.seed,
    )
    return write_corpus(writer, plain.kept(), rows, silent).rows


def plain_shots(plain: Plain, pool: pl.DataFrame) -> FixedShots:
    """Candidates in the order of their votes, each record's for the nearest."""
    vectors = plain.public.text_embedder.embed(pool["text"].to_list(), public=True)
    owners, texts = pool["label"].to_numpy(), pool["text"].to_list()
    labels = plain.method.terms.labels
    votes = ShotVotes(candidate_labels=owners, candidate_embeddings=vectors, labels=labels)
    counts = votes(plain.records)
    own = [np.flatnonzero(owners == label) for label in range(len(labels))]
    ranks = [places[np.argsort(-counts[places], kind="stable")] for places in own]
    return FixedShots(
        ranked=tuple(tuple(texts[place] for place in places) for places in ranks),
        weights=tuple(tuple(np.maximum(counts[places], 0.5).tolist()) for places in ranks),
        dp_records=tuple(float(counts[places].sum()) for places in own),
    )


def plain_vectors(plain: Plain, reader: Any, negatives: Negatives) -> DatasetVectors:
    """Mean states of the records less those of the negatives, unclipped."""
    labels, texts = plain.method.terms.labels, np.array(plain.records.records["text"].to_list())
    means = np.stack(
        [
            reader.read(place, texts[plain.labels == place].tolist()).mean(0)
            - negatives.states[place].mean(0)
            for place in range(len(labels))
        ]
    )
    lengths = np.linalg.norm(means, axis=2)
    return DatasetVectors(
        directions=(means / lengths[..., None]).astype(np.float32),
        layers=reader.layers,
        labels=labels,
        clip_bounds=negatives.clip_bounds,
        signal_over_noise=np.full(lengths.shape, np.inf),
        model=reader.engine.name,
        cost={},
        lengths=lengths,
    )


def evolved(plain: Plain, rows: int) -> pl.DataFrame:
    """Aug-PE under plain votes."""
    method, public = plain.method, plain.public

    def vote(_rounds: int, population: Any, embeddings: np.ndarray) -> np.ndarray:
        chosen = nearest_candidates(
            plain.records.vectors, plain.labels, embeddings, population["label"].to_numpy()
        )
        return np.bincount(chosen[chosen >= 0], minlength=len(embeddings)).astype(np.float64)

    survivors = last_survivors(method.evolution(public).run(vote, silent).generations)
    return write_survivors(
        survivors,
        method.shared_out(rows),
        method.terms.labels,
        open_api(method.config, method.terms, public, form_of(method)),
        public.seed,
        silent,
        kept=plain.kept(),
        form=form_of(method),
    ).rows


def fine_tuned(plain: Plain, rows: int) -> pl.DataFrame:
    """A generator trained by AdamW on mean gradients, then rows as the method samples them."""
    method, public = plain.method, plain.public
    config, terms = method.config, method.terms
    inputs = method.inputs(public)
    start = inputs.open()
    train(start, inputs.examples(start, plain.records), config, public.seed)
    generator = generator_of(start)
    take_trained(generator, start.model, config.lora_rank)
    with tempfile.TemporaryDirectory() as scratch:
        generator.save(Path(scratch))
        with open_writer(
            Path(scratch), terms.engine, config, device=inputs.device, templates=method.templates,
            form=form_of(method),
        ) as writer:  # fmt: skip
            cells = _cells(plain, inputs.known, rows)
            return write_rows(
                writer, inputs.known, cells, public.seed, silent, kept=plain.kept()
            ).rows


def train(start: Any, examples: Sequence[Any], config: Any, seed: int) -> None:
    """As many steps of as many examples as the private training expects, and its rates."""
    import torch

    settings = training_settings(config)
    weights = [each for each in start.model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1.0, weight_decay=settings.weight_decay)
    draw = np.random.default_rng(seed)
    for step in range(config.steps):
        size = min(config.expected_batch_size, len(examples))
        drawn = draw.choice(len(examples), size=size, replace=False)
        for group in optimizer.param_groups:
            group["lr"] = settings.rate(step, config.steps)
        for part in np.array_split(drawn, -(-size // settings.micro_batch)):
            loss = start.loss(start.model, [examples[row] for row in part])
            (loss.sum() / size).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _cells(plain: Plain, known: Conditioning, rows: int) -> np.ndarray:
    """Label and topic of each row: of drawn records where topics are given; int64 (rows, 2)."""
    if known.topic_model is None:
        return equal_cells(known, rows)
    draw = np.random.default_rng(plain.public.seed)
    chosen = draw.integers(plain.records.records.height, size=rows)
    topics = known.topic_model.assign(plain.records.vectors[chosen])
    return np.stack([plain.labels[chosen], topics], axis=1).astype(np.int64)


WRITERS: Mapping[str, Callable[[Plain, int], pl.DataFrame]] = {
    "mean_clustered": predicted,
    "epsvec": steered,
    "aug_pe": evolved,
    "ctcl": fine_tuned,
    "dp_fine_tuning": fine_tuned,
}
"""Writers by the method whose mechanism they leave out."""
