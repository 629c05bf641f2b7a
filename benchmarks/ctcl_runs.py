"""What the CTCL benchmarks share: a public base, one private fine-tuning, rows, scores.

Library level: no Dagster, no ledger. Every release of a run composes in one tight accountant to the
run's ε; ε = ∞ trains on the same pairs without clipping and noise.
"""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.fine_tuning.conditions import (
    Conditioning,
    TrainingPairs,
    conditioning,
    training_pairs,
)
from dpsynth_assets.methods.fine_tuning.config import CLASSIFIER_RATE, GeneratorConfig
from dpsynth_assets.methods.fine_tuning.downstream import text_examples
from dpsynth_assets.methods.fine_tuning.generators import (
    PairLoss,
    encode_pairs,
    fresh_generator,
    save_generator,
    trainable,
)
from dpsynth_assets.methods.fine_tuning.resampled import choose_rows, quotas
from dpsynth_assets.methods.fine_tuning.writing import equal_cells, write_rows
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs
from dpsynth_assets.methods.topic_histogram import TopicHistogram, release_topic_histogram
from dpsynth_assets.metrics.downstream import downstream_accuracy
from dpsynth_assets.metrics.mauve import MINIMUM_ROWS, MauveSettings, mauve_score
from dpsynth_assets.metrics.next_word import NextWordSettings
from dpsynth_assets.models.conditional_generator import load_conditional_generator
from dpsynth_assets.models.conditional_generator.training import (
    GeneratorTrainingSettings,
    train_conditional_generator,
)
from dpsynth_assets.models.fine_tuning import (
    CausalLoss,
    FineTuningSettings,
    PlainSampling,
    fine_tune,
    fine_tune_privately,
)
from dpsynth_assets.models.next_word_model import (
    new_next_word_model,
    score_next_words,
    train_next_word_model,
)
from dpsynth_assets.models.public_word_pieces import PublicWordPieces
from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.models.topic_model import TopicModel, TopicModelSettings, fit_topic_model
from dpsynth_assets.privacy.calibration import dp_sgd_noise_multiplier
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.events import GaussianEvent
from dpsynth_assets.privacy.per_example import GRADIENT_SLACK, most_in_company
from dpsynth_assets.privacy.units import NeighboringRelation, PrivacyUnit


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large everything is; public constants, the same for every method of a table."""

    generator: GeneratorTrainingSettings
    next_word: NextWordSettings
    topics: int = 40
    histogram_std: float = 10.0
    steps: int = 40
    batch: int = 256
    learning_rate: float = 2e-3
    plain_learning_rate: float = 1e-3
    downstream_learning_rate: float = 5e-3
    micro_batch: int = 32
    document_tokens: int = 96
    rows: int = 1000
    mauve_repeats: int = 3


SIZES = {
    "tiny": Size(
        generator=GeneratorTrainingSettings(
            vocabulary=1024, width=32, encoder_layers=1, decoder_layers=1, heads=2,
            feed_forward=64, token_budget=20_000, threads=1,
        ),
        next_word=NextWordSettings(token_budget=6_000, score_texts=60, width=32, feed_forward=64),
        topics=10, steps=3, batch=64, rows=60, document_tokens=32, mauve_repeats=1,
    ),
    "medium": Size(  # table5 and figure3 together in some twenty minutes of one processor
        generator=GeneratorTrainingSettings(token_budget=400_000, max_document_tokens=96),
        next_word=NextWordSettings(score_texts=300),
        steps=30, batch=192, rows=600,
    ),
    "small": Size(
        generator=GeneratorTrainingSettings(token_budget=1_500_000, max_document_tokens=96),
        next_word=NextWordSettings(score_texts=500),
    ),
    "gpu": Size(
        generator=GeneratorTrainingSettings(
            vocabulary=8192, width=512, encoder_layers=4, decoder_layers=6, heads=8,
            feed_forward=2048, max_condition_tokens=64, max_document_tokens=128,
            token_budget=40_000_000, batch_tokens=16_384, matrix_learning_rate=0.02,
            learning_rate=2e-3, device="cuda",
        ),
        next_word=NextWordSettings(
            vocabulary=30_000, width=256, layers=4, heads=4, feed_forward=688,
            max_document_tokens=128, token_budget=6_000_000, batch_tokens=4096, device="cuda",
            matrix_learning_rate=0.01, learning_rate=1e-3, score_texts=1000,
        ),
        topics=60, steps=300, batch=2048, learning_rate=5e-4, plain_learning_rate=3e-4,
        downstream_learning_rate=1e-3, micro_batch=256, document_tokens=128, rows=8000,
        mauve_repeats=5,
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Texts of one side with labels and embeddings."""

    texts: list[str] = field(repr=False)
    labels: list[str] = field(repr=False)
    features: np.ndarray = field(repr=False)

    def take(self, rows: Sequence[int]) -> "Corpus":
        """Some rows."""
        return Corpus(
            texts=[self.texts[row] for row in rows],
            labels=[self.labels[row] for row in rows],
            features=self.features[list(rows)],
        )


@dataclass(frozen=True, kw_only=True)
class Base:
    """Public artifacts, made once: topics, and generators with and without conditions."""

    embedder: TextEmbedder
    topics: TopicModel
    conditional: Path
    unconditional: Path


def quiet() -> None:
    """Turns off the progress bars of the model library."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def say(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", flush=True)


def public_base(documents: pl.DataFrame, size: Size, folder: Path) -> Base:
    """Fits topics and trains both generators on public documents, or finds them in the folder.

    The generator without conditions is what BART is to CTCL: same shape, tokens and documents, but
    each document comes with the keywords of another, so that conditions say nothing about it.
    """
    embedder = TextEmbedder()
    place = folder / f"public-{_digest(documents, size)}"
    if not (place / "done").exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        _make_base(documents, size, embedder, place)
        (place / "done").write_text("")
    return Base(
        embedder=embedder,
        topics=TopicModel.load(place / "topics"),
        conditional=place / "conditional",
        unconditional=place / "unconditional",
    )


def _make_base(documents: pl.DataFrame, size: Size, embedder: TextEmbedder, place: Path) -> None:
    texts = documents["text"].to_list()
    say(f"embedding {len(texts)} public documents")
    embeddings = embedder.embed(texts)
    settings = TopicModelSettings(
        min_topics=min(10, size.topics), max_topics=size.topics, min_cluster_size=10
    )
    topics = fit_topic_model(texts, embeddings, settings, embedder.embed, embedder=embedder.name)
    topics.save(place / "topics")
    keywords = [topics.condition_keywords(int(topic)) for topic in topics.assign(embeddings)]
    order = np.random.default_rng(0).permutation(len(texts))
    kinds = {
        "conditional": (documents, keywords, size.generator),
        "unconditional": (
            documents.select([name for name in ("text", "group") if name in documents.columns]),
            [keywords[row] for row in order],
            size.generator.model_copy(update={"topic_share": 1.0}),
        ),
    }
    for name, (rows, words, training) in kinds.items():
        start = time.process_time()
        facts = train_conditional_generator(rows, words, place / name, training)
        say(f"{name} generator: {facts}, {time.process_time() - start:.0f} processor-s")


def _digest(documents: pl.DataFrame, size: Size) -> str:
    content = [size.generator.model_dump(mode="json"), size.topics, documents["text"].to_list()]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """One private corpus, split, and what is public about it."""

    name: str
    train: Corpus
    test: Corpus
    labels: tuple[str, ...]
    label_texts: tuple[str, ...]
    document_type: str = ""

    @property
    def delta(self) -> float:
        """1 / (n ln n), as in the paper; the number of records is taken as public."""
        records = len(self.train.texts)
        return 1.0 / (records * math.log(records))

    def terms(self) -> CohortTerms:
        """Declared facts; ε is set by each run."""
        return CohortTerms(
            cohort=self.name,
            relation=NeighboringRelation.ADD_REMOVE,
            unit=PrivacyUnit(),
            epsilon=1.0,
            delta=self.delta,
            accountant="tight",
            labels=self.labels,
            label_texts=self.label_texts,
            public_records=len(self.train.texts),
        )

    def private(self) -> PrivateInputs:
        """Records to train on."""
        frame = pl.DataFrame({"text": self.train.texts, "label": self.train.labels})
        return PrivateInputs(records=frame, embeddings=self.train.features)

    def conditions(self, base: Base, *, keywords: bool) -> Conditioning:
        """How conditions are written, with or without keywords."""
        public = PublicInputs(language_model=None, topic_model=base.topics)
        return conditioning(self.terms(), self.document_type, public, keywords=keywords)


def mechanism(cohort: Cohort, size: Size, epsilon: float, *, histogram: bool) -> DpSgdMechanism:
    """The least noise with which training, and the histogram where there is one, cost ε."""
    records = len(cohort.train.texts)
    batch = min(size.batch, records)
    others = [GaussianEvent(noise_multiplier=size.histogram_std)] if histogram else []
    multiplier = dp_sgd_noise_multiplier(
        sampling_probability=batch / records,
        steps=size.steps,
        target_epsilon=epsilon,
        delta=cohort.delta,
        other_events=others,
    )
    return DpSgdMechanism(
        l2_bound=1.0,
        noise_multiplier=multiplier,
        sampling_probability=batch / records,
        steps=size.steps,
        expected_batch_size=batch,
        relation=NeighboringRelation.ADD_REMOVE,
        most_in_company=most_in_company(batch, GRADIENT_SLACK),
    )


@dataclass(frozen=True, kw_only=True)
class Run:
    """One private training: on what, at which ε, and whether a histogram shares it."""

    cohort: Cohort
    size: Size
    epsilon: float
    histogram: bool = False
    seed: int = 0


def fine_tuned(run: Run, start: Path, known: Conditioning, folder: Path):
    """Fine-tunes a copy of a public generator on the cohort's pairs; returns it, loaded."""
    device = run.size.generator.device
    generator = fresh_generator(str(start), device)
    pairs = training_pairs(run.cohort.private(), known)
    examples = encode_pairs(generator, pairs, run.size.document_tokens)
    model = trainable(generator, None)
    _train(model, examples, PairLoss(generator), run)
    save_generator(generator, model, None, folder)
    return load_conditional_generator(folder, device=device)


def _train(model, examples, loss, run: "Run", rate: float | None = None) -> None:
    """Trains in place: plainly at ε = ∞, else with the least noise within ε."""
    size, epsilon = run.size, run.epsilon
    settings = FineTuningSettings(
        learning_rate=rate
        or (size.plain_learning_rate if math.isinf(epsilon) else size.learning_rate),
        warmup_steps=size.steps // 20,
        micro_batch=size.micro_batch,
    )
    if math.isinf(epsilon):
        sampling = PlainSampling(steps=size.steps, batch_size=size.batch, seed=run.seed)
        fine_tune(model, examples, loss, sampling, settings)
        return
    priced = mechanism(run.cohort, size, epsilon, histogram=run.histogram)
    fine_tune_privately(model, examples, loss, priced, settings)


def topic_histogram(cohort: Cohort, base: Base, size: Size, epsilon: float) -> TopicHistogram:
    """The released histogram; without noise where ε is infinite."""
    if not math.isinf(epsilon):
        private = cohort.private()
        noise_std = size.histogram_std
        return release_topic_histogram(
            private, base.topics, cohort.terms(), noise_std=noise_std
        ).value
    labels = [cohort.labels.index(label) for label in cohort.train.labels]
    counts = np.zeros((len(cohort.labels), base.topics.bins), dtype=int)
    np.add.at(counts, (labels, base.topics.assign(cohort.train.features)), 1)
    return TopicHistogram(
        labels=cohort.labels, dp_counts=tuple(map(tuple, counts.tolist())), noise_std=0.0
    )


def write(generator, known: Conditioning, cells: np.ndarray, size: Size, seed: int) -> pl.DataFrame:
    """Rows of a corpus, one for each cell."""
    config = GeneratorConfig(max_document_tokens=size.document_tokens, rows_per_forward=512)
    return write_rows(generator, known, cells, config, seed, lambda _share, _said: None).rows


def label_cells(known: Conditioning, rows: int) -> np.ndarray:
    return equal_cells(known, rows)


def resampled(rows: pl.DataFrame, cohort: Cohort, base: Base, histogram, keep: int, seed: int):
    """Keeps rows so that labels and topics follow the histogram (Yu et al. 2024)."""
    topics = base.topics.assign(base.embedder.embed(rows["text"].to_list()))
    labels = np.array([cohort.labels.index(label) for label in rows["label"]])
    cells = labels * histogram.bins + topics
    shares = histogram.proportions().ravel()
    kept = quotas(shares, np.bincount(cells, minlength=len(shares)), min(keep, len(cells)))
    return rows[choose_rows(cells, kept, seed).tolist()]


def scores(rows: pl.DataFrame, cohort: Cohort, base: Base, size: Size, seed: int) -> dict:
    """Next-word accuracy and perplexity, accuracy of a classifier, MAUVE; all on held-out text."""
    texts, labels = rows["text"].to_list(), rows["label"].to_list()
    features = base.embedder.embed(texts)
    settings = size.next_word.model_copy(update={"seed": seed})
    model = new_next_word_model(settings)
    train_next_word_model(model, texts, settings)
    found = _next_word_scores(model, cohort, settings)
    if len(cohort.labels) > 1:
        found["accuracy"] = downstream_accuracy(
            features, labels, cohort.test.features, cohort.test.labels, seed
        )
    if min(len(texts), len(cohort.test.texts)) >= MINIMUM_ROWS:
        constants = MauveSettings(repeats=size.mauve_repeats)
        found["mauve"] = mauve_score(cohort.test.features, features, constants).mean
    return {"rows": len(texts), **found}


def downstream_scores(cohort: Cohort, size: Size, epsilon: float, seed: int) -> dict:
    """The downstream models trained on private records themselves, without a corpus."""
    settings = size.next_word.model_copy(update={"seed": seed})
    model = new_next_word_model(settings).requires_grad_(True)
    loss = CausalLoss(
        pad_token_id=PublicWordPieces.pad_token_id, start_token_id=PublicWordPieces.begin_token_id
    )
    if math.isinf(epsilon):  # The budget that every corpus gets.
        train_next_word_model(model, cohort.train.texts, settings)
    else:
        examples = text_examples(cohort.train.texts, settings)
        run = Run(cohort=cohort, size=size, epsilon=epsilon, seed=seed)
        _train(model, examples, loss, run, size.downstream_learning_rate)
    found = _next_word_scores(model, cohort, settings)
    if len(cohort.labels) > 1:
        found["accuracy"] = _classifier_accuracy(cohort, size, epsilon, seed)
    return found


def _classifier_accuracy(cohort: Cohort, size: Size, epsilon: float, seed: int) -> float:
    from dpsynth_assets.models.label_classifier import (
        LabelledEmbedding,
        LabelLoss,
        new_label_classifier,
    )

    train, test = cohort.train, cohort.test
    if math.isinf(epsilon):
        return downstream_accuracy(train.features, train.labels, test.features, test.labels, seed)
    import torch

    model = new_label_classifier(train.features.shape[1], len(cohort.labels))
    examples = [
        LabelledEmbedding(row, cohort.labels.index(label))
        for row, label in zip(train.features, train.labels, strict=True)
    ]
    plain = replace(size, micro_batch=4096)
    run = Run(cohort=cohort, size=plain, epsilon=epsilon, seed=seed)
    _train(model, examples, LabelLoss(), run, CLASSIFIER_RATE)
    with torch.inference_mode():
        predicted = model(torch.from_numpy(test.features)).argmax(dim=1).tolist()
    return float(
        np.mean([cohort.labels[p] == q for p, q in zip(predicted, test.labels, strict=True)])
    )


def _next_word_scores(model, cohort: Cohort, settings: NextWordSettings) -> dict:
    found = score_next_words(model, cohort.test.texts, settings)
    return {"next_word_accuracy": found.accuracy, "next_word_perplexity": found.perplexity}


def held_out_pairs(cohort: Cohort, known: Conditioning) -> list[tuple[str, str]]:
    """(condition, document) pairs of held-out records, for the generator's own perplexity."""
    frame = pl.DataFrame({"text": cohort.test.texts, "label": cohort.test.labels})
    private = PrivateInputs(records=frame, embeddings=cohort.test.features)
    pairs: TrainingPairs = training_pairs(private, known)
    return list(zip(pairs.conditions, pairs.documents, strict=True))


def embedded(embedder: TextEmbedder, texts: list[str], labels: list[str]) -> Corpus:
    return Corpus(texts=texts, labels=labels, features=embedder.embed(texts))


class Results:
    """Finished units of a table in a JSON file, so that a run goes on where it stopped."""

    def __init__(self, path: Path, settings: dict, minutes: float) -> None:
        self._path = path
        self._deadline = time.monotonic() + 60 * minutes
        self.settings = settings
        known = json.loads(path.read_text()) if path.exists() else {}
        self.units = known.get("units", {}) if known.get("settings") == settings else {}

    def unit(self, name: str, compute) -> dict | None:
        """The unit's values, computed if they are not there and time is left."""
        if name not in self.units:
            if time.monotonic() > self._deadline:
                say(f"no time left for {name}")
                return None
            started = time.monotonic()
            values = compute()
            self.units[name] = values | {"seconds": round(time.monotonic() - started, 1)}
            say(f"{name}: {self.units[name]}")
            self._save()
        return self.units[name]

    def _save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        content = {"settings": self.settings, "units": self.units}
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(content, indent=2) + "\n")
        part.replace(self._path)


def settings_of(size: Size, **others) -> dict:
    """Everything a table depends on, as plain JSON."""
    return json.loads(
        json.dumps(
            {
                **asdict(
                    replace(size, generator=None, next_word=None)  # type: ignore[arg-type]
                ),
                "generator": size.generator.model_dump(mode="json"),
                "next_word": size.next_word.model_dump(mode="json"),
                **others,
            }
        )
    )


def sized(name: str, **changes) -> Size:
    """A preset with changes; those that are None are left out."""
    size = SIZES[name]
    device = changes.pop("device", None)
    tokens = changes.pop("generator_tokens", None)
    if tokens is not None:
        size = replace(size, generator=size.generator.model_copy(update={"token_budget": tokens}))
    kept = {key: value for key, value in changes.items() if value is not None}
    if device is not None:
        kept["generator"] = size.generator.model_copy(update={"device": device})
        kept["next_word"] = size.next_word.model_copy(update={"device": device})
    return replace(size, **kept)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; numbers with three digits, several in a cell apart by strokes."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines) + "\n"


def _cell(value: object) -> str:
    if value is None:
        return "—"
    if isinstance(value, list):
        return " / ".join(map(_cell, value))
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
    return str(value)
